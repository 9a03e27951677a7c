"""The four formats become the same conversation; what fits none or two, and every fault of a line, is named."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from conftest import ROOT, write_jsonl
from trackbed.data.chat import jsonl, lines
from trackbed.data.chat.formats import Format, recognise
from trackbed.data.chat.jsonl import Conversation, Message
from trackbed.errors import DataError, Problem

USER, ASSISTANT = {"role": "user", "content": "a?"}, {"role": "assistant", "content": "b"}
CHATML = {"messages": [{"role": "system", "content": "s"}, USER, ASSISTANT]}
SAME = {
    "chatml": CHATML,
    "sharegpt": {
        "conversations": [
            {"from": "system", "value": "s"}, {"from": "human", "value": "a?"}, {"from": "gpt", "value": "b"}
        ]
    },
    "alpaca": {"instruction": "a?", "input": "", "output": "b", "system": "s"},
    "prompt_completion": {"prompt": [{"role": "system", "content": "s"}, USER], "completion": "b"},
}  # fmt: skip


def parse(record: Any, form: str = "chatml") -> Conversation | Problem:
    return jsonl.parse(json.dumps(record).encode() + b"\n", "f:7", Format(form), first=False)


def turns(*messages: Any, **more: Any) -> dict[str, Any]:
    return {"messages": list(messages), **more}


@pytest.mark.parametrize("form", SAME)
def test_every_format_becomes_the_same_conversation_stated_or_recognised(tmp_path: Path, form: str) -> None:
    path = write_jsonl(tmp_path / "f.jsonl", [SAME[form]] * 2)
    wanted = (Message("system", "s"), Message("user", "a?"), Message("assistant", "b"))
    for stated in (None, Format(form)):
        assert [item.messages for item in jsonl.read(path, stated)] == [wanted, wanted]
    assert recognise([SAME[form]]) is Format(form)


def test_alpaca_has_its_input_below_the_instruction_and_its_history_before() -> None:
    record = {"instruction": "do", "input": "this", "output": "done", "history": [["q", "r"]], "system": None}
    parsed = parse(record, "alpaca")
    assert isinstance(parsed, Conversation)
    assert [(item.role, item.content) for item in parsed.messages] == [
        ("user", "q"), ("assistant", "r"), ("user", "do\n\nthis"), ("assistant", "done")
    ]  # fmt: skip


def test_an_answer_in_a_prompt_is_read_and_not_learnt() -> None:
    parsed = parse({"prompt": [USER, ASSISTANT, USER], "completion": [ASSISTANT]}, "prompt_completion")
    assert isinstance(parsed, Conversation)
    assert [item.learnt for item in parsed.messages] == [False, False, False, True]


CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"x": 1}}}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {}}}]


def test_tool_turns_are_the_same_in_chatml_and_sharegpt() -> None:
    text = {**CALL, "function": {"name": "add", "arguments": '{"x": 1}'}}
    called = {"role": "assistant", "content": None, "tool_calls": [text]}
    result = {"role": "tool", "content": "2", "tool_call_id": "c1", "name": "add"}
    chatml = parse(turns(USER, called, result, ASSISTANT, tools=TOOLS))
    spoken = [("human", "a?"), ("function_call", json.dumps(CALL)), ("observation", "2"), ("gpt", "b")]
    sharegpt = parse(
        {"conversations": [{"from": who, "value": what} for who, what in spoken], "tools": json.dumps(TOOLS)},
        "sharegpt",
    )
    assert isinstance(chatml, Conversation)
    assert isinstance(sharegpt, Conversation)
    assert chatml.tools == sharegpt.tools == tuple(TOOLS)
    assert chatml.messages[1] == sharegpt.messages[1] == Message("assistant", "", tool_calls=(CALL,))
    assert chatml.messages[2] == Message("tool", "2", tool_call_id="c1", name="add")
    again = parse(chatml.to_json())
    assert isinstance(again, Conversation)
    assert again == chatml


def test_weight_0_is_not_learnt_and_survives_being_written() -> None:
    parsed = parse(turns(USER, {**ASSISTANT, "weight": 0}, USER, {**ASSISTANT, "weight": 1}))
    assert isinstance(parsed, Conversation)
    assert [item.weight for item in parsed.messages if item.role == "assistant"] == [0, 1]
    assert parse(parsed.to_json()) == parsed


FAULTS: dict[str, tuple[str, Any, str, str]] = {
    "weight": ("chatml", turns(USER, {**ASSISTANT, "weight": 0.5}), "data.weight", "message 2: weight is 0.5"),
    "weight true": ("chatml", turns(USER, {**ASSISTANT, "weight": True}), "data.weight", "weight is True"),
    "weight of a user": ("chatml", turns({**USER, "weight": 1}, ASSISTANT), "data.weight", "message 1: weight 1 is on"),
    "nothing learnt": ("chatml", turns(USER, {**ASSISTANT, "weight": 0}), "data.nothing-learnt", "each of the 1"),
    "null content": ("chatml", turns(USER, {"role": "assistant", "content": None}), "data.not-text", "but NoneType"),
    "no call": ("chatml", turns(USER, {"role": "assistant", "tool_calls": []}), "data.not-text", "but NoneType"),
    "call of a user": ("chatml", turns({**USER, "tool_calls": [CALL]}, ASSISTANT), "data.tool-call", "role user"),
    "call without name": ("chatml", turns(USER, {**ASSISTANT, "tool_calls": [{}]}), "data.tool-call", "tool call 1"),
    "arguments": (
        "chatml",
        turns(USER, {**ASSISTANT, "tool_calls": [{"name": "f", "arguments": "{"}]}),
        "data.tool-call",
        "arguments that are no object",
    ),
    "tools": ("chatml", turns(USER, ASSISTANT, tools=[{"x": 1}]), "data.tools", "f:7: tools: not a list"),
    "tool name": ("chatml", turns(USER, {**ASSISTANT, "name": 3}), "data.not-text", "name is not text but int"),
    "reasoning": ("chatml", turns(USER, {**ASSISTANT, "reasoning_content": "h"}), "data.reasoning", "beside"),
    "list content": ("chatml", turns({**USER, "content": [{"text": "a"}]}, ASSISTANT), "data.not-text", "but list"),
    "speaker": ("sharegpt", {"conversations": [{"from": "bob", "value": ""}]}, "data.role", "turn 1: unknown speaker"),
    "no speaker": ("sharegpt", {"conversations": [{"value": ""}]}, "data.message", "turn 1: a turn has no `from`"),
    "value": (
        "sharegpt",
        {"conversations": [{"from": "human", "value": 3}, {"from": "gpt", "value": "b"}]},
        "data.not-text",
        "turn 1: content is not text but int",
    ),
    "function_call": (
        "sharegpt",
        {"conversations": [{"from": "human", "value": "a"}, {"from": "function_call", "value": "add(1)"}]},
        "data.tool-call",
        "turn 2: tool call 1 has no name",
    ),
    "no turns": ("sharegpt", {"conversations": "x"}, "data.no-messages", "there is no list `conversations`"),
    "instruction": ("alpaca", {"instruction": None, "output": "b"}, "data.not-text", "instruction is not text"),
    "input": ("alpaca", {"instruction": "a", "input": 1, "output": "b"}, "data.not-text", "input is not text but int"),
    "output": ("alpaca", {"instruction": "a", "output": ""}, "data.empty-answer", "f:7: output: the assistant's turn"),
    "history": ("alpaca", {"instruction": "a", "output": "b", "history": [["q"]]}, "data.history", "list of pairs"),
    "history text": (
        "alpaca",
        {"instruction": "a", "output": "b", "history": [["q", 1]]},
        "data.not-text",
        "history 1: content is not text but int",
    ),
    "prompt": ("prompt_completion", {"prompt": 1, "completion": "b"}, "data.not-text", "prompt is not text or a list"),
    "no completion": ("prompt_completion", {"prompt": "a"}, "data.no-field", "not the keys prompt and completion"),
    "other format": ("alpaca", CHATML, "data.format", "the line is chatml, in a file that is alpaca"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_with_its_place(name: str) -> None:
    form, record, id, what = FAULTS[name]
    problem = parse(record, form)
    assert isinstance(problem, Problem)
    assert problem.id == id
    assert str(problem).startswith("f:7")
    assert what in str(problem)


def test_a_line_says_everything_that_is_wrong_with_its_turns() -> None:
    problem = parse(turns({"role": "robot"}, {"role": "user", "content": 1}, {**ASSISTANT, "content": " "}))
    assert isinstance(problem, Problem)
    assert "message 1: unknown role 'robot'" in str(problem)
    assert "message 2: content is not text but int; message 3: the assistant's turn is empty" in str(problem)


GOOD = json.dumps(CHATML).encode() + b"\n"
BAD_BYTES = {
    "data.nul": (GOOD[:9] + b"\0\0" + GOOD[9:], "byte 10 of the line is NUL"),
    "data.duplicate-key": (b'{"messages": [{"role": "user", "role": "user"}]}\n', "the key 'role' is there twice"),
    "data.not-text": (GOOD.replace(b"a?", b"\\ud83d"), "messages[1].content has half a character"),
    "data.bom": (b"\xef\xbb\xbf" + GOOD, "the line begins with a byte-order mark"),
    "data.not-utf8": (GOOD.replace(b"a?", "é".encode("latin-1")), "is not UTF-8 (0xe9)"),
    "data.not-json": (b'{"messages": NaN}\n', "NaN is no JSON number"),
    "data.cut": (GOOD[:-9], "the line is cut off"),
}


@pytest.mark.parametrize("id", BAD_BYTES)
def test_bytes_that_are_no_line_of_json_are_named(tmp_path: Path, id: str) -> None:
    path = tmp_path / "f.jsonl"
    raw, what = BAD_BYTES[id]
    path.write_bytes(GOOD + raw + (GOOD if raw.endswith(b"\n") else b""))
    with pytest.raises(DataError) as caught:
        jsonl.read(path)
    (problem,) = caught.value.problems
    assert problem.id == id
    assert str(problem).startswith(f"{path}:2")
    assert what in str(problem)


def test_whole_characters_in_escapes_are_text() -> None:
    parsed = jsonl.parse(GOOD.replace(b"a?", b"\\ud83d\\ude00"), "f:1", Format.chatml, first=True)
    assert isinstance(parsed, Conversation)
    assert parsed.messages[1].content == "\N{GRINNING FACE}"


def test_a_file_in_utf_16_is_one_problem_and_not_one_a_line(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    path.write_bytes((GOOD * 3).decode().encode("utf-16"))
    (problem,) = jsonl.scan(path)
    assert isinstance(problem, Problem)
    assert "UTF-16" in str(problem)


def test_keys_of_two_formats_are_refused_with_how_to_state_one(tmp_path: Path) -> None:
    both = {**SAME["alpaca"], **SAME["prompt_completion"]}
    path = write_jsonl(tmp_path / "f.jsonl", [both] * 3)
    with pytest.raises(DataError) as caught:
        jsonl.read(path)
    (problem,) = caught.value.problems
    assert problem.id == "data.format-ambiguous"
    assert problem.where == f"{path}:1"
    assert "fit alpaca and prompt_completion" in problem.what
    assert "data.format to alpaca or prompt_completion" in problem.remedy
    assert [item.messages[1].content for item in jsonl.read(path, Format.alpaca)] == ["a?"] * 3


def test_keys_of_no_format_are_named_and_the_first_good_line_decides(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "f.jsonl", [{"mesages": []}, [], SAME["alpaca"], CHATML])
    problems = [item for item in jsonl.scan(path) if isinstance(item, Problem)]
    assert [problem.id for problem in problems] == ["data.format-unknown", "data.format-unknown", "data.format"]
    assert [problem.where for problem in problems] == [f"{path}:{number}" for number in (1, 2, 4)]
    assert "'mesages'" in problems[0].what


def test_a_huge_line_is_a_fault_and_never_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "LONGEST", 1 << 20)
    path = tmp_path / "f.jsonl"
    path.write_bytes(GOOD + b"x" * (40 << 20) + b"\n" + GOOD)
    tracemalloc.start()
    good, problem, last = jsonl.scan(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(problem, Problem)
    assert problem.id == "data.long-line"
    assert problem.where == f"{path}:2"
    assert isinstance(good, Conversation)
    assert isinstance(last, Conversation)
    assert last.where == f"{path}:3"
    assert peak < 6 << 20


def test_a_line_as_long_as_allowed_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "LONGEST", len(GOOD))
    path = tmp_path / "f.jsonl"
    path.write_bytes(GOOD + GOOD)
    assert len(jsonl.read(path)) == 2


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    write_jsonl(path, [turns({**USER, "content": "x" * 200_000}, ASSISTANT)] * 100)
    tracemalloc.start()
    assert sum(isinstance(item, Conversation) for item in jsonl.scan(path)) == 100
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 << 20


def test_reading_needs_the_standard_library_alone() -> None:
    code = (
        "import sys; from trackbed.data.chat import formats, jsonl; "
        "print([name for name in ('numpy', 'transformers', 'torch', 'pydantic', 'jinja2') if name in sys.modules])"
    )
    command = [sys.executable, "-c", code]
    environment = {"PYTHONPATH": str(ROOT / "platform")}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"

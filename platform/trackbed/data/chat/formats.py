"""The four formats chat data comes in, each turned into the same Conversation.

chatml             {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}
sharegpt           {"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}]}
alpaca             {"instruction": "...", "input": "...", "output": "...", "system": "...", "history": [["...", "..."]]}
prompt_completion  {"prompt": "...", "completion": "..."}, or lists of messages; answers in the prompt are not learnt

Standard library only, and nothing that Python 3.10 lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

from trackbed.data.chat.lines import named
from trackbed.data.chat.turns import Conversation, Json, Part, conversation, parsed
from trackbed.errors import DataError, Problem


class Format(str, Enum):  # noqa: UP042 (StrEnum is not in Python 3.10)
    chatml = "chatml"
    sharegpt = "sharegpt"
    alpaca = "alpaca"
    prompt_completion = "prompt_completion"


KEYS = {
    Format.chatml: ("messages",),
    Format.sharegpt: ("conversations",),
    Format.alpaca: ("instruction", "output"),
    Format.prompt_completion: ("prompt", "completion"),
}
# Who speaks, by the names that ShareGPT's descendants use; a function_call is the assistant's too.
SPEAKERS = {
    "human": "user", "user": "user", "gpt": "assistant", "chatgpt": "assistant", "assistant": "assistant",
    "model": "assistant", "system": "system", "tool": "tool", "observation": "tool", "function_response": "tool",
    "function_call": "assistant",
}  # fmt: skip
Parts = list[Part]


def fitting(record: Any) -> list[Format]:
    """The formats whose keys a record has."""
    return [form for form, keys in KEYS.items() if isinstance(record, dict) and all(key in record for key in keys)]


def recognise(records_head: Sequence[Any]) -> Format:
    """The format of a file by its first records: that of the first one that fits any.

    Raises DataError: data.format-unknown when none does, data.format-ambiguous when that one fits several.
    """
    for record in records_head:
        forms = fitting(record)
        if len(forms) > 1:
            names = " and ".join(forms)
            what = f"the keys {_keys(record)} fit {names}"
            remedy = f"state it: set data.format to {' or '.join(forms)} in the job"
            raise DataError(named("data.format-ambiguous", "", what, wanted="keys of one format", remedy=remedy))
        if forms:
            return forms[0]
    shown = _keys(records_head[0]) if records_head else ""
    raise DataError(named("data.format-unknown", "", f"the keys ({shown}) fit no known format", wanted=_wanted()))


def _keys(record: Any) -> str:
    return ", ".join(map(repr, list(record)[:8])) if isinstance(record, dict) else f"of a {type(record).__name__}"


def _wanted() -> str:
    return "; ".join(f"{form.value}: {' and '.join(keys)}" for form, keys in KEYS.items())


def convert(record: Any, form: Format, where: str) -> Conversation | Problem:
    """One record of a file in the format `form`."""
    forms = fitting(record)
    if form not in forms:
        return _other_format(forms, form, where)
    parts = _PARTS[form](record, where)
    return parts if isinstance(parts, Problem) else conversation(parts, record, where)


def _other_format(forms: list[Format], form: Format, where: str) -> Problem:
    if forms:
        what = f"the line is {forms[0].value}, in a file that is {form.value}"
        return named(
            "data.format", where, what, wanted="one format in a file", remedy="split the file, or mend the line"
        )
    if form is Format.chatml:
        return _no_list("messages", where)
    if form is Format.sharegpt:
        return _no_list("conversations", where)
    what = f"the line has not the keys {' and '.join(KEYS[form])}"
    return named("data.no-field", where, what, wanted=f"a record in the format {form.value}")


def _no_list(key: str, where: str) -> Problem:
    wanted = '{"type": "chatml", "messages": [...]}' if key == "messages" else f'{{"{key}": [...]}}'
    return named("data.no-messages", where, f"there is no list `{key}`", wanted=wanted)


def _chatml(record: Json, where: str) -> Parts | Problem:
    if not isinstance(record["messages"], list):
        return _no_list("messages", where)
    if (kind := record.get("type")) not in (None, "chatml"):
        return named("data.type", where, f"type is {kind!r}", wanted='"chatml"')
    return [(f"message {number}", message) for number, message in enumerate(record["messages"], start=1)]


def _sharegpt(record: Json, where: str) -> Parts | Problem:
    if not isinstance(record["conversations"], list):
        return _no_list("conversations", where)
    parts: Parts = _system(record)
    for number, turn in enumerate(record["conversations"], start=1):
        part = _sharegpt_turn(turn, f"{where}: turn {number}")
        if isinstance(part, Problem):
            return part
        parts.append((f"turn {number}", part))
    return parts


def _sharegpt_turn(turn: Any, where: str) -> Json | Problem:
    if not isinstance(turn, dict) or "from" not in turn:
        return named("data.message", where, "a turn has no `from`", wanted='{"from": "human", "value": "..."}')
    speaker = turn["from"]
    if not isinstance(speaker, str) or speaker not in SPEAKERS:
        return named("data.role", where, f"unknown speaker {speaker!r}", wanted=f"one of {', '.join(SPEAKERS)}")
    more = {key: turn[key] for key in ("weight", "name", "tool_call_id") if key in turn}
    if speaker == "function_call":
        calls = parsed(turn.get("value"))
        return {"role": "assistant", "tool_calls": calls if isinstance(calls, list) else [calls], **more}
    return {"role": SPEAKERS[speaker], "content": turn.get("value"), **more}


def _alpaca(record: Json, where: str) -> Parts | Problem:
    for key in ("instruction", "input", "output", "system"):
        # A table writes null for what is not there.
        if not isinstance(record.get(key), str | None) or (key in KEYS[Format.alpaca] and record[key] is None):
            what = f"{key} is not text but {type(record[key]).__name__}"
            return named("data.not-text", where, what, wanted="a string")
    history = record.get("history") or []
    if not isinstance(history, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in history):
        return named("data.history", where, "history is not a list of pairs", wanted='[["question", "answer"], ...]')
    asked = "\n\n".join(text for text in (record["instruction"], record.get("input")) if text)
    turns = [(f"history {number}", pair) for number, pair in enumerate(history, start=1)]
    turns.append(("output", [asked, record["output"]]))
    return _system(record) + [
        (label, {"role": role, "content": text})
        for label, pair in turns
        for role, text in zip(("user", "assistant"), pair, strict=True)
    ]


def _system(record: Json) -> Parts:
    return [("system", {"role": "system", "content": record["system"]})] if record.get("system") else []


def _prompt_completion(record: Json, where: str) -> Parts | Problem:
    parts: Parts = []
    for key, role in (("prompt", "user"), ("completion", "assistant")):
        value = record[key]
        if isinstance(value, str):
            parts.append((key, {"role": role, "content": value}))
        elif isinstance(value, list):
            parts += [(f"{key} {number}", _asked(turn, key)) for number, turn in enumerate(value, start=1)]
        else:
            what = f"{key} is not text or a list of messages but {type(value).__name__}"
            return named("data.not-text", where, what, wanted="a string, or a list of messages")
    return parts


def _asked(turn: Any, key: str) -> Any:
    """A prompt is not learnt, whoever speaks in it."""
    if key == "prompt" and isinstance(turn, dict) and turn.get("role") == "assistant":
        return {"weight": 0, **turn}
    return turn


_PARTS: dict[Format, Callable[[Json, str], Parts | Problem]] = {
    Format.chatml: _chatml,
    Format.sharegpt: _sharegpt,
    Format.alpaca: _alpaca,
    Format.prompt_completion: _prompt_completion,
}

"""The mask, proved: decoded, the supervised tokens are the assistant's contents and their end tokens, whatever the
template and the tokenizer; and the ids are the tokenizer's own for the whole text."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, normalizers
from transformers import PreTrainedTokenizerFast

from chat_templates import BY_NAME, CHATML, FAMILIES, THINKING, TOOLS, TURN, Family, Turns, byte_level, conversations
from conftest import write_jsonl
from trackbed.data.chat import jsonl
from trackbed.data.chat.encode import Sample, attempt, load_tokenizer, prompt, tokenise
from trackbed.data.chat.formats import Format
from trackbed.data.chat.jsonl import Conversation, Message
from trackbed.data.chat.template import Rendered, Template
from trackbed.errors import DataError, ModelError, Problem
from trackbed.train.evaluate import last_question

loaded = cache(Family.tokenizer)
EACH = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


def made(turns: Turns, weights: dict[int, int] | None = None, where: str = "f:1") -> Conversation:
    messages = [Message(role, content, (weights or {}).get(index, 1)) for index, (role, content) in enumerate(turns)]
    return Conversation(tuple(messages), where=where)


def sample_of(conversation: Conversation, tokenizer: Any) -> Sample:
    (sample,) = tokenise([conversation], tokenizer)
    return sample


def runs(sample: Sample, tokenizer: Any) -> list[str]:
    """The text of every unbroken stretch of supervised tokens."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], sample.supervised, [0]])))
    pairs = zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
    return [told(sample.ids[:end], tokenizer).removeprefix(told(sample.ids[:begin], tokenizer)) for begin, end in pairs]


def told(ids: Any, tokenizer: Any) -> str:
    """Decoded from the first token on: alone, a word loses the space before it in some tokenizers."""
    return str(tokenizer.backend_tokenizer.decode(ids.tolist(), skip_special_tokens=False))


def whole(conversation: Conversation, tokenizer: Any) -> str:
    """By transformers' own front door."""
    turns = [message.turn() for message in conversation.messages]
    return str(tokenizer.apply_chat_template(turns, tools=list(conversation.tools) or None, tokenize=False))


def expected(conversation: Conversation, family: Family) -> list[str]:
    return [family.kept(message.content) + family.end for message in conversation.messages if message.learnt]


CASES: dict[str, Turns] = {
    "single": [("user", "what is it?"), ("assistant", "it is 3")],
    "system": [("system", "be brief"), ("user", "hello"), ("assistant", "yes")],
    "empty system": [("system", ""), ("user", "hello"), ("assistant", "yes")],
    "multi": [("user", "a"), ("assistant", "one"), ("user", "b"), ("assistant", "two\nlines"),
              ("user", "c"), ("assistant", "3")],
    "unicode": [("user", "日本語?"), ("assistant", "héllo 🙂 日本 👩‍👩‍👧")],
    "leading newline": [("user", "a"), ("assistant", "\n\nyes")],
    "leading space": [("user", "a"), ("assistant", "  yes")],
    "trailing newline": [("user", "a"), ("assistant", "yes\n\n"), ("user", "b"), ("assistant", "no ")],
    "one letter": [("user", ""), ("assistant", "y")],
    "a header as answer": [("user", "assistant"), ("assistant", "assistant"), ("user", "b"), ("assistant", "user")],
}  # fmt: skip


@EACH
@pytest.mark.parametrize("case", CASES)
def test_supervised_tokens_are_the_assistants_contents_and_end_tokens(family: Family, case: str) -> None:
    tokenizer, conversation = loaded(family), made(CASES[case])
    if not family.system and conversation.messages[0].role == "system":
        with pytest.raises(DataError, match=r"f:1: .*there is no system turn"):
            sample_of(conversation, tokenizer)
        return
    assert runs(sample_of(conversation, tokenizer), tokenizer) == expected(conversation, family)


@EACH
def test_a_turn_of_weight_0_is_in_the_text_and_not_learnt(family: Family) -> None:
    tokenizer = loaded(family)
    for unlearnt in (1, 3, 5):
        conversation = made(CASES["multi"], {unlearnt: 0})
        sample = sample_of(conversation, tokenizer)
        assert runs(sample, tokenizer) == expected(conversation, family)
        assert told(sample.ids, tokenizer) == told(sample_of(made(CASES["multi"]), tokenizer).ids, tokenizer)
        assert len(expected(conversation, family)) == 2


@EACH
def test_ids_are_the_tokenizers_own_where_no_token_is_cut(family: Family) -> None:
    tokenizer, conversation = loaded(family), made(CASES["multi"])
    ids = tokenizer.backend_tokenizer.encode(whole(conversation, tokenizer), add_special_tokens=False).ids
    # Where the prompt ends with a space, the word after it takes it along.
    asked_with_space = prompt(conversation, tokenizer)[0].endswith(" ")
    assert (sample_of(conversation, tokenizer).ids.tolist() == ids) is not asked_with_space


@EACH
def test_hundreds_of_generated_conversations(family: Family) -> None:
    tokenizer = loaded(family)
    backend = tokenizer.backend_tokenizer
    for turns in conversations(family, 150, seed=0):
        conversation = made(turns)
        sample = sample_of(conversation, tokenizer)
        assert runs(sample, tokenizer) == [normal(text, tokenizer) for text in expected(conversation, family)]
        ids = backend.encode(whole(conversation, tokenizer), add_special_tokens=False).ids
        assert ids == sample.ids.tolist() or torn(conversation, tokenizer, ids)
        # What comes before an answer is what the model is given when it is used.
        begin = int(np.flatnonzero(sample.supervised)[0])
        first = next(index for index, (role, _) in enumerate(turns) if role == "assistant")
        asked, _ = prompt(made(turns[: first + 1]), tokenizer)
        assert backend.encode(asked, add_special_tokens=False).ids == sample.ids[:begin].tolist()


def torn(conversation: Conversation, tokenizer: Any, ids: list[int]) -> bool:
    """Whether some answer begins where, in the ids of the whole text, no token does."""
    rendered = Template(tokenizer).rendered(conversation)
    assert isinstance(rendered, Rendered)
    decode = tokenizer.backend_tokenizer.decode
    beginnings = {decode(ids[:count], skip_special_tokens=False) for count in range(len(ids))}
    return any(normal(rendered.text[:begin], tokenizer) not in beginnings for begin, _ in rendered.spans)


def normal(text: str, tokenizer: Any) -> str:
    normalizer = tokenizer.backend_tokenizer.normalizer
    return str(normalizer.normalize_str(text)) if normalizer else text


@EACH
def test_the_text_is_that_of_transformers(family: Family) -> None:
    tokenizer = loaded(family)
    for turns in conversations(family, 50, seed=1):
        rendered = Template(tokenizer).rendered(made(turns))
        assert isinstance(rendered, Rendered)
        assert rendered.text == whole(made(turns), tokenizer)


def chatml(template: str) -> Any:
    tokenizer = BY_NAME["chatml"].tokenizer()
    tokenizer.chat_template = template
    return tokenizer


def refused(conversation: Conversation, tokenizer: Any) -> Problem:
    (problem,) = attempt([conversation], tokenizer)
    assert isinstance(problem, Problem)
    assert problem.where == "f:1"
    return problem


CALL = {"type": "function", "function": {"name": "add", "arguments": {"x": 1}}}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {}}}
CALLED = (
    Message("user", "1 and 1?"),
    Message("assistant", "", tool_calls=(CALL,)),
    Message("tool", "2", name="add"),
    Message("assistant", "it is 2"),
)


def test_tool_calls_are_learnt_and_their_results_are_not() -> None:
    tokenizer, conversation = chatml(TOOLS), Conversation(CALLED, where="f:1", tools=(TOOL,))
    sample = sample_of(conversation, tokenizer)
    call = '<tool_call>{"name": "add", "arguments": {"x": 1}}</tool_call>'
    assert runs(sample, tokenizer) == [f"{call}<|im_end|>", "it is 2<|im_end|>"]
    assert tokenizer.decode(sample.ids) == whole(conversation, tokenizer)
    assert '"parameters"' in whole(conversation, tokenizer)


@pytest.mark.parametrize(
    ("template", "what"),
    [
        (CHATML, "leaves out or rewrites the tool add, message 2: the argument x, message 2: the tool call"),
        (TOOLS.replace("tools | tojson", "'t'"), "leaves out or rewrites the tool add"),
        (TOOLS.replace("call['function'] | tojson", "call['function']['name']"), "message 2: the argument x"),
        (TOOLS.replace("+ m['content']", "+ ('' if m['role'] == 'tool' else m['content'])"), "message 3: the tool's"),
    ],
)
def test_a_template_that_leaves_out_what_concerns_tools_is_refused(template: str, what: str) -> None:
    problem = refused(Conversation(CALLED, where="f:1", tools=(TOOL,)), chatml(template))
    assert problem.id == "data.tools-not-rendered"
    assert what in problem.what


def test_a_template_that_leaves_out_a_turn_is_refused() -> None:
    template = CHATML.replace(TURN, "{% if m['role'] != 'system' %}" + TURN + "{% endif %}")
    problem = refused(made(CASES["system"]), chatml(template))
    assert problem.id == "data.turn-not-rendered"
    assert "leaves out or rewrites message 1: the content" in problem.what
    assert runs(sample_of(made(CASES["multi"]), chatml(template)), chatml(template))


THOUGHT = "<think>\nso\n</think>\n\nyes"


def test_a_turn_that_is_left_out_is_missed_also_where_its_words_stand_elsewhere() -> None:
    template = CHATML.replace(TURN, "{% if m['role'] != 'system' %}" + TURN + "{% endif %}")
    turns = [("system", "ship"), ("user", "what is a ship?"), ("assistant", "a ship")]
    problem = refused(made(turns), chatml(template))
    assert problem.id == "data.turn-not-rendered"
    assert "message 1: the content" in problem.what


@pytest.mark.parametrize("answer", ["yes", THOUGHT, "assistant\n"])
def test_a_generation_prompt_that_is_no_beginning_of_the_turn_gives_way_to_its_header(answer: str) -> None:
    tokenizer = chatml(THINKING)
    conversation = made([("user", "a"), ("assistant", "no"), ("user", "b"), ("assistant", answer)])
    assert "</think>" in prompt(conversation, tokenizer)[0]
    assert runs(sample_of(conversation, tokenizer), tokenizer) == ["no<|im_end|>", f"{answer}<|im_end|>"]


def test_a_template_that_strips_earlier_thoughts_is_refused_unless_they_are_not_learnt() -> None:
    tokenizer = chatml(THINKING)
    turns = [("user", "a"), ("assistant", THOUGHT), ("user", "b"), ("assistant", THOUGHT)]
    problem = refused(made(turns), tokenizer)
    assert problem.id == "model.template-inseparable"
    assert "rewrites earlier turns" in problem.what
    assert "weight 0" in problem.wanted
    assert runs(sample_of(made(turns, {1: 0}), tokenizer), tokenizer) == [f"{THOUGHT}<|im_end|>"]


def test_a_header_that_cannot_be_found_is_refused() -> None:
    spelt = THINKING.replace("kept + said", "said | replace('it is 3', 'three')")
    problem = refused(made(CASES["single"]), chatml(spelt))
    assert problem.id == "model.template-inseparable"
    assert "rewrites the content of message 2" in problem.what


@pytest.mark.parametrize("answer", ["yes", "yes<|im_end|>"])
def test_a_template_whose_answers_do_not_end_is_refused(answer: str) -> None:
    template = CHATML.replace("<|im_end|>", "")
    problem = refused(made([("user", "a"), ("assistant", answer)]), chatml(template))
    assert problem.id == "model.template-no-end"
    assert "message 2" in problem.what


def test_pieces_that_do_not_decode_to_the_text_are_refused() -> None:
    tokenizer = BY_NAME["chatml"].tokenizer()
    tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()
    problem = refused(made([("user", "a"), ("assistant", "\n\nYes")]), tokenizer)
    assert problem.id == "model.tokens-across"
    assert runs(sample_of(made(CASES["single"]), tokenizer), tokenizer) == ["it is 3<|im_end|>"]


def test_a_cut_text_is_compared_as_the_tokenizer_composes_it() -> None:
    tokenizer = loaded(BY_NAME["chatml-nfc"])
    conversation = made([("user", "e\u0301"), ("assistant", "\n\ne\u0301")])
    assert runs(sample_of(conversation, tokenizer), tokenizer) == ["\n\n\u00e9<|im_end|>"]


def test_a_tokenizer_without_offsets_is_refused() -> None:
    from transformers import ByT5Tokenizer

    tokenizer = ByT5Tokenizer()
    tokenizer.chat_template = CHATML
    with pytest.raises(ModelError, match="cannot say which characters a token is"):
        sample_of(made(CASES["single"]), tokenizer)


@EACH
def test_a_batch_is_encoded_as_each_is_alone(family: Family) -> None:
    """What the texts of a batch begin with is tokenised once, and the ends of turns are remembered."""
    tokenizer, system = loaded(family), [("system", "be brief\n")] if family.system else []
    batch = [made(system + turns) for turns in conversations(replace(family, system=False), 40, seed=3)]
    for conversation, sample in zip(batch, tokenise(batch, tokenizer), strict=True):
        alone = sample_of(conversation, tokenizer)
        assert sample.ids.tolist() == alone.ids.tolist()
        assert sample.supervised.tolist() == alone.supervised.tolist()


def test_a_batch_is_not_cut_where_a_token_swallows_what_is_before_it() -> None:
    raw = Tokenizer.from_str(byte_level(("<|im_end|>",)).to_str())
    raw.add_special_tokens([AddedToken("<|im_start|>", lstrip=True, normalized=False, special=True)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<|im_end|>")
    tokenizer.chat_template = (
        "{{ 'begin\\n<|im_start|>' + messages[0]['content'] + '?' }}"
        "{% if not add_generation_prompt %}{{ '\\n' + messages[1]['content'] + '<|im_end|>' }}{% endif %}"
    )
    batch = [made([("user", text), ("assistant", "yes")]) for text in "abc"]
    for conversation, sample in zip(batch, tokenise(batch, tokenizer), strict=True):
        assert sample.ids.tolist() == raw.encode(whole(conversation, tokenizer), add_special_tokens=False).ids
        assert runs(sample, tokenizer) == ["\nyes<|im_end|>"]


@pytest.mark.parametrize("name", ["chatml", "gemma"])
def test_a_tokenizer_left_padding_by_somebody_else_pads_no_sample(name: str) -> None:
    tokenizer, batch = BY_NAME[name].tokenizer(), [made(CASES["single"]), made(CASES["multi"])]
    lengths = [len(sample.ids) for sample in tokenise(batch, tokenizer)]
    tokenizer.backend_tokenizer.enable_padding(length=200)
    tokenizer.backend_tokenizer.enable_truncation(4)
    assert [len(sample.ids) for sample in tokenise(batch, tokenizer)] == lengths


def test_a_token_that_is_added_later_is_known() -> None:
    tokenizer = BY_NAME["chatml"].tokenizer()
    sample_of(made(CASES["single"]), tokenizer)
    tokenizer.add_tokens(["row of numbers"])
    sample = sample_of(made([("user", "row of numbers"), ("assistant", "row of numbers")]), tokenizer)
    assert len(tokenizer) - 1 in sample.ids[sample.supervised]
    assert runs(sample, tokenizer) == ["row of numbers<|im_end|>"]


def test_every_faulty_conversation_of_a_file_is_named(tmp_path: Path) -> None:
    good = {"instruction": "a", "output": "b"}
    path = write_jsonl(tmp_path / "f.jsonl", [good, {**good, "system": "s"}, good, {**good, "system": "s"}])
    found = attempt(jsonl.read(path, Format.alpaca), loaded(BY_NAME["gemma"]))
    assert [item.where for item in found if isinstance(item, Problem)] == [f"{path}:2", f"{path}:4"]


def test_the_real_tokenizer_of_the_demonstration() -> None:
    folder = Path.home() / ".cache" / "trackbed" / "models" / "smollm2-135m"
    if not (folder / "tokenizer.json").exists():
        pytest.skip("SmolLM2 has not been fetched to this machine")
    tokenizer = load_tokenizer(folder)
    for turns in conversations(BY_NAME["chatml"], 200, seed=2):
        sample = sample_of(made(turns), tokenizer)
        assert runs(sample, tokenizer) == [f"{text}<|im_end|>" for role, text in turns if role == "assistant"]
        assert tokenizer.backend_tokenizer.decode(sample.ids, skip_special_tokens=False) == whole(
            made(turns), tokenizer
        )


def test_the_question_of_an_answer_is_what_stands_before_it() -> None:
    turns = made([("user", "one?"), ("assistant", "1"), ("user", "two?"), ("assistant", "2")], {3: 0})
    assert last_question(turns) == "one?"
    assert prompt(turns, loaded(BY_NAME["chatml"]))[1] == "1"
    assert last_question(made([("user", "one?"), ("assistant", "1"), ("user", "thanks")])) == "one?"

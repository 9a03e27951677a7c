"""Data: every fault of a line is named; the mask is the assistant's tokens and nothing else; batches lose nothing."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import Command, conversation, write_jsonl
from trackbed.data.chat import jsonl
from trackbed.data.chat.batches import IGNORED, Batches, collate, pack
from trackbed.data.chat.encode import Sample, load_tokenizer
from trackbed.data.chat.prepare import prepare
from trackbed.data.chat.prepared import Prepared
from trackbed.data.chat.recipe import Recipe
from trackbed.data.config import DataConfig
from trackbed.data.order import Share
from trackbed.data.sets import pydocs
from trackbed.errors import DataError, ModelError

GOOD = json.dumps(conversation(1)).encode() + b"\n"
MakeJob = Callable[..., Path]


def turns(*pairs: tuple[str, Any]) -> dict[str, Any]:
    return {"type": "chatml", "messages": [{"role": role, "content": content} for role, content in pairs]}


def line(record: Any) -> bytes:
    return json.dumps(record).encode() + b"\n"


BAD_LINES = {
    "data.cut": (b'{"type": "chatml", "messages": [{"role": "us', "the line is cut off"),
    "data.not-json": (b"{'type': 1}\n", "the line is not JSON"),
    "data.not-utf8": (b'{"messages": "\xe9t\xe9"}\n', "byte 15 of the line is not UTF-8 (0xe9)"),
    "data.empty": (line(turns()), "the conversation is empty"),
    "data.role": (line(turns(("robot", "hello"))), "message 1: unknown role 'robot'"),
    "data.no-assistant": (line(turns(("user", "hello"))), "no turn is the assistant's"),
    "data.not-text": (line(turns(("user", ["a"]), ("assistant", "b"))), "message 1: content is not text but list"),
    "data.no-question": (line(turns(("assistant", "b"))), "begins with the assistant"),
    "data.empty-answer": (line(turns(("user", "a"), ("assistant", " "))), "message 2: the assistant's turn is empty"),
    "data.no-messages": (b"[]\n", "there is no list `messages`"),
    "data.type": (line({**turns(("user", "a"), ("assistant", "b")), "type": "alpaca"}), "type is 'alpaca'"),
    "data.message": (line({"messages": ["hello"]}), "message 1: a message is not an object"),
}


@pytest.mark.parametrize("id", BAD_LINES)
def test_a_faulty_line_is_named_by_file_and_line(tmp_path: Path, id: str) -> None:
    path = tmp_path / "chat.jsonl"
    raw, what = BAD_LINES[id]
    path.write_bytes(GOOD + b"\n" + raw)
    with pytest.raises(DataError) as caught:
        jsonl.read(path)
    (problem,) = caught.value.problems
    assert problem.id == id
    assert str(problem).startswith(f"{path}:3")
    assert what in str(problem)


def test_a_byte_order_mark_is_named(tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD)
    with pytest.raises(DataError, match=r"chat.jsonl:1: the file begins with a byte-order mark"):
        jsonl.read(path)


def test_all_faulty_lines_are_named_at_once_up_to_a_number(tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    path.write_bytes(GOOD + b"{\n" * 30)
    with pytest.raises(DataError) as caught:
        jsonl.read(path)
    assert len(caught.value.problems) == jsonl.MOST_PROBLEMS + 1
    assert "and 10 more faulty lines" in str(caught.value)


@pytest.mark.parametrize("content", [None, b"", b"\n\n"], ids=["missing", "empty", "blank"])
def test_a_file_with_nothing_in_it_is_an_error(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "chat.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match="cannot be read: No such file" if content is None else "has no conversation"):
        jsonl.read(path)


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> Any:
    return load_tokenizer(tiny_model)


def config(**values: Any) -> DataConfig:
    return DataConfig(**{"train": "t", "heldout": "h", "max_length": 96, "row_length": 128, **values})


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKBED_CACHE", str(tmp_path / "cache"))


def encoded(tmp_path: Path, tokenizer: Any, records: list[Any], **values: Any) -> Prepared:
    tokenizer.save_pretrained(tmp_path / "model")
    path = write_jsonl(tmp_path / "chat.jsonl", records)
    return prepare(Recipe.of(path, tmp_path / "model", config(**values)))


def test_the_assistants_turns_and_their_end_tokens_are_learnt_and_nothing_else(tmp_path: Path, tokenizer: Any) -> None:
    record = turns(
        ("system", "be brief"), ("user", "a?"), ("assistant", "one"), ("user", "b?"), ("assistant", "two\nlines")
    )
    (sample,) = encoded(tmp_path, tokenizer, [record])
    whole = tokenizer.apply_chat_template(record["messages"], tokenize=False)
    assert tokenizer.decode(sample.ids) == whole
    assert tokenizer.decode(sample.ids[sample.supervised]) == "one<|im_end|>two\nlines<|im_end|>"


def test_end_tokens_are_masked_by_position_and_never_by_being_padding(tmp_path: Path, tokenizer: Any) -> None:
    assert tokenizer.pad_token_id == tokenizer.eos_token_id
    (sample,) = encoded(tmp_path, tokenizer, [conversation(1)])
    ends = np.flatnonzero(sample.ids == tokenizer.eos_token_id)
    assert [bool(sample.supervised[end]) for end in ends] == [False, True]
    labels = collate([[sample]]).labels[0]
    assert labels[ends[1] - 1] == tokenizer.eos_token_id
    assert labels[ends[1]] == IGNORED


def test_a_template_that_rewrites_earlier_turns_is_refused(tmp_path: Path, tokenizer: Any) -> None:
    keep = tokenizer.chat_template
    tokenizer.chat_template = "{{ messages|length }}" + keep
    try:
        with pytest.raises(ModelError, match="rewrites earlier turns"):
            encoded(tmp_path, tokenizer, [conversation(1)])
    finally:
        tokenizer.chat_template = keep


LONG = turns(("user", "word " * 120), ("assistant", "yes"))


def test_long_samples_are_dropped_counted_and_named(tmp_path: Path, tokenizer: Any) -> None:
    result = encoded(tmp_path, tokenizer, [conversation(1), LONG])
    assert len(result) == 1
    (dropped,) = result.dropped
    assert dropped.where.endswith("chat.jsonl:2")
    assert "at most 96" in dropped.reason


def test_long_samples_are_cut_from_the_left(tmp_path: Path, tokenizer: Any) -> None:
    result = encoded(tmp_path, tokenizer, [LONG], too_long="truncate_left")
    (sample,) = result
    assert result.truncated == 1
    assert len(sample.ids) == 96
    assert tokenizer.decode(sample.ids[sample.supervised]) == "yes<|im_end|>"


def test_long_samples_fail_by_name(tmp_path: Path, tokenizer: Any) -> None:
    with pytest.raises(DataError, match=r"chat.jsonl:2: the sample has \d+ tokens"):
        encoded(tmp_path, tokenizer, [conversation(1), LONG], too_long="fail")


def test_a_set_of_which_nothing_is_left_is_refused_with_the_count(tmp_path: Path, tokenizer: Any) -> None:
    with pytest.raises(DataError, match="every one of the 3 samples was dropped"):
        encoded(tmp_path, tokenizer, [LONG] * 3)


LATE = turns(("user", "a"), ("assistant", "an answer"), ("user", "word " * 120))


def test_a_set_whose_answers_are_all_cut_off_is_refused_with_the_counts(tmp_path: Path, tokenizer: Any) -> None:
    later = turns(("user", "a"), ("assistant", "an answer"), ("user", "word " * 150))
    with pytest.raises(DataError) as caught:
        encoded(tmp_path, tokenizer, [LATE, later], too_long="truncate_left")
    (problem,) = caught.value.problems
    assert "every one of the 2 samples was left without a supervised token" in problem.what
    whole = encoded(tmp_path, tokenizer, [LATE, later], max_length=9999)
    assert f"the longest has {max(len(sample.ids) for sample in whole)} tokens" in problem.what
    (enough,) = map(int, re.findall(r"set data.max_length to (\d+)", problem.remedy))
    supervised = sum(int(sample.supervised[1:].sum()) for sample in whole)
    for limit, lost in ((enough, 0), (enough - 1, 1)):
        kept = encoded(tmp_path, tokenizer, [LATE, later], too_long="truncate_left", max_length=limit)
        assert supervised - sum(int(sample.supervised[1:].sum()) for sample in kept) == lost


def samples(lengths: list[int]) -> list[Sample]:
    """Samples whose ids tell which they are: sample k is full of k."""
    return [
        Sample(np.full(length, number), np.arange(length) >= length // 2, str(number))
        for number, length in enumerate(lengths)
    ]


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("packed", [True, False])
def test_no_sample_is_lost_or_seen_twice(world: int, packed: bool) -> None:
    data = samples([5 + 7 * k % 50 for k in range(97)])
    streams = [Batches(data, config(pack=packed), Share(rank, world, rows=1, accumulate=2)) for rank in range(world)]
    rows = sum(streams[0].rows_in_epoch(epoch) for epoch in range(3))
    steps = [[stream.step(number).batches for stream in streams] for number in range(rows // (world * 2) + 1)]
    in_order = [step[rank][turn] for step in steps for turn in range(2) for rank in range(world)]
    seen: Counter[int] = Counter()
    for batch in in_order[:rows]:
        firsts = (batch.positions == 0) & (batch.segments > 0)
        seen.update(batch.ids[firsts].tolist())
    assert seen == dict.fromkeys(range(97), 3)


def test_every_rank_knows_how_many_tokens_all_learn_from() -> None:
    data = samples([9, 12, 31, 7, 22, 16, 40])
    steps = [Batches(data, config(), Share(rank, 3, 2, 2)).step(1) for rank in range(3)]
    supervised = sum(batch.supervised for step in steps for batch in step.batches)
    assert {step.supervised_everywhere for step in steps} == {supervised}


def test_order_depends_on_seed_and_epoch_alone() -> None:
    data = samples(list(range(5, 60)))

    def first(seed: int, start: int) -> list[int]:
        return Batches(data, config(seed=seed), Share(0, 1, 1, 1)).step(start).batches[0].ids.ravel().tolist()

    assert first(0, 3) == first(0, 3)
    assert first(0, 3) != first(1, 3)


def test_rows_are_never_longer_than_asked_and_well_filled() -> None:
    lengths = [20 + 13 * k % 90 for k in range(2000)]
    rows = pack(range(2000), lengths, 256)
    totals = [sum(lengths[index] for index in row) for row in rows]
    assert max(totals) <= 256
    assert sum(totals) / (len(rows) * 256) > 0.95
    assert sorted(index for row in rows for index in row) == list(range(2000))


def test_packed_and_unpacked_losses_agree(tmp_path: Path, tokenizer: Any, tiny_model: Path) -> None:
    """No attention across samples, positions that begin anew: each sample's loss is what it is alone."""
    import torch

    from trackbed.train.model import SupervisedLoss, load, tensors

    data = list(encoded(tmp_path, tokenizer, [conversation(k) for k in (3, 500, 77)]))
    model = SupervisedLoss(load(tiny_model, "fp32")).eval()
    with torch.no_grad():
        alone = sum(model(**tensors(collate([[sample]]), torch.device("cpu"))) for sample in data)
        packed = model(**tensors(collate([data]), torch.device("cpu")))
        padded = model(**tensors(collate([[data[0]], [data[1]], [data[2]]]), torch.device("cpu")))
    assert float(packed) == pytest.approx(float(alone), rel=1e-5)
    assert float(padded) == pytest.approx(float(alone), rel=1e-5)


def test_the_loss_equals_that_of_transformers(tmp_path: Path, tokenizer: Any, tiny_model: Path) -> None:
    import torch

    from trackbed.train.model import SupervisedLoss, load, tensors

    (sample,) = encoded(tmp_path, tokenizer, [conversation(9)])
    model = load(tiny_model, "fp32").eval()
    ids = torch.from_numpy(sample.ids)[None]
    labels = torch.where(torch.from_numpy(sample.supervised)[None], ids, IGNORED)
    with torch.no_grad():
        mean = model(input_ids=ids, labels=labels).loss
        ours = SupervisedLoss(model)(**tensors(collate([[sample]]), torch.device("cpu")))
    assert float(ours) / int(sample.supervised.sum()) == pytest.approx(float(mean), rel=1e-5)


@pytest.fixture(scope="module")
def docs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, int]]:
    folder = tmp_path_factory.mktemp("pydocs")
    return folder, pydocs.build(folder, lambda stage, done, total: None)


def test_documentation_makes_thousands_of_unique_pairs_without_leaks(docs: tuple[Path, dict[str, int]]) -> None:
    folder, counts = docs
    parts = {name: jsonl.read(folder / f"{name}.jsonl") for name in ("train", "heldout")}
    assert {name: len(part) for name, part in parts.items()} == counts
    assert counts["train"] > 3000
    assert counts["heldout"] > 200
    answers = {name: {item.messages[-1].content for item in part} for name, part in parts.items()}
    texts = {
        name: {item.messages[-2].content.split(": ", 1)[1].lower() for item in part} for name, part in parts.items()
    }
    assert not answers["train"] & answers["heldout"]
    assert not texts["train"] & texts["heldout"]
    words = {word.strip(".") for text in texts["train"] for word in text.replace("`", " ").split()}
    assert not words & {answer.lower() for answer in answers["heldout"]}
    assert sum(map(len, answers.values())) == sum(counts.values())


def test_documentation_builds_the_same_again(docs: tuple[Path, Any], tmp_path: Path, trackbed: Command) -> None:
    folder, _ = docs
    assert trackbed("data", "build", "pydocs").returncode == 0
    for name in ("train.jsonl", "heldout.jsonl"):
        assert (tmp_path / "cache" / "data" / "pydocs" / name).read_bytes() == (folder / name).read_bytes()

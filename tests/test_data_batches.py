"""Batches: no sample lost or twice whatever the world, equal steps, exact resume anywhere; rows nearly full."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from trackbed.data.chat import batches as module
from trackbed.data.chat.batches import Batches, Step, collate
from trackbed.data.chat.encode import Sample
from trackbed.data.chat.pack import pack
from trackbed.data.config import DataConfig
from trackbed.data.order import Share
from trackbed.data.pipeline import Pipeline
from trackbed.errors import DataError

SIZE = 211
WINDOWS = [0, 40]


def samples(count: int = SIZE) -> list[Sample]:
    """Uneven samples whose ids tell which they are: sample k is full of k."""
    lengths = [5 + 7 * k % 50 for k in range(count)]
    return [
        Sample(np.full(length, number), np.arange(length) >= length // 2, str(number))
        for number, length in enumerate(lengths)
    ]


def config(**values: Any) -> DataConfig:
    return DataConfig(**{"train": "t", "heldout": "h", "max_length": 96, "row_length": 128, **values})


def stream(rank: int = 0, world: int = 1, *, packed: bool = True, **values: Any) -> Batches:
    return Batches(samples(), config(pack=packed, **values), Share(rank, world, rows=1, accumulate=2))


def in_order(steps: list[list[Step]]) -> Iterator[Any]:
    """The batches of all ranks in the order of the stream."""
    for ranks in steps:
        for part in range(2):
            yield from (step.batches[part] for step in ranks)


def equal(one: Step, other: Step) -> bool:
    arrays = [(a, b) for mine, theirs in zip(one.batches, other.batches, strict=True)
              for a, b in zip(vars(mine).values(), vars(theirs).values(), strict=True)]  # fmt: skip
    return one.supervised_everywhere == other.supervised_everywhere and all(
        a.dtype == b.dtype and np.array_equal(a, b) for a, b in arrays
    )


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("packed", [True, False])
def test_three_epochs_hold_each_sample_three_times(
    world: int, packed: bool, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK", 50)
    streams = [stream(rank, world, window=window, packed=packed) for rank in range(world)]
    rows = [streams[0].rows_in_epoch(epoch) for epoch in range(3)]
    steps = [[next(each) for each in streams] for _ in range(sum(rows) // (2 * world) + 1)]
    taken = list(in_order(steps))
    seen, done = Counter[int](), 0
    for epoch in range(3):
        for batch in taken[done : done + rows[epoch]]:
            seen.update(batch.ids[(batch.positions == 0) & (batch.segments > 0)].tolist())
        done += rows[epoch]
        assert seen == dict.fromkeys(range(SIZE), epoch + 1)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("packed", [True, False])
def test_a_stream_stopped_at_any_step_goes_on_bit_for_bit(packed: bool, window: int) -> None:
    whole = stream(1, 2, window=window, packed=packed)
    expected = [next(whole) for _ in range(40)]
    for stop in (0, 1, 7, 23, 39):
        first = stream(1, 2, window=window, packed=packed)
        for _ in range(stop):
            next(first)
        state = first.state()
        first.close()
        first.close()
        again = stream(1, 2, window=window, packed=packed)
        again.restore(state)
        assert all(equal(next(again), expected[step]) for step in range(stop, 40))
        assert again.state()["step"] == 40


def test_batches_are_a_pipeline_and_a_step_can_be_asked_for_at_any_time() -> None:
    each: Pipeline[Step] = stream()
    assert isinstance(each, Pipeline)
    expected = [next(each) for _ in range(5)]
    assert equal(stream().step(4), expected[4])


@pytest.mark.parametrize(
    "other",
    [{"seed": 1}, {"row_length": 256}, {"packed": False}, {"window": 40}, {"world": 3}],
    ids=["seed", "rows", "unpacked", "window", "world"],
)
def test_a_state_of_another_order_is_refused(other: dict[str, Any]) -> None:
    state = stream().state()
    with pytest.raises(DataError, match="other data, another seed or another order"):
        stream(**other).restore(state)


def test_a_state_of_other_data_is_refused() -> None:
    state = stream().state()
    changed = samples()
    changed[3].ids[0] += 1
    with pytest.raises(DataError, match="other data"):
        Batches(changed, config(), Share(0, 1, 1, 2)).restore(state)


def test_as_many_rows_a_step_on_another_world_is_the_same_stream() -> None:
    """Two ranks of one row take what one rank of two rows takes: the run may move."""
    one = Batches(samples(), config(), Share(0, 1, rows=2))
    two = [Batches(samples(), config(), Share(rank, 2, rows=1)) for rank in range(2)]
    next(one)
    for each in two:
        each.restore(one.state())
    whole, halves = next(one).batches[0], [next(each).batches[0] for each in two]
    for row, half in enumerate(halves):
        assert whole.ids[row, : half.ids.shape[1]].tolist() == half.ids[0].tolist()


def test_a_window_bounds_how_far_apart_samples_of_a_step_lie() -> None:
    each = stream(window=48, packed=True)
    places = [set(batch.ids[batch.segments > 0].tolist()) for _ in range(5) for batch in next(each).batches]
    first_window = set().union(*places[:3])
    assert len({number // 3 for number in first_window}) <= 16 + 1
    assert len({number // 48 for number in first_window}) > 1


class Watched(list[Sample]):
    """Counts which samples are really looked at."""

    def __init__(self, items: list[Sample]) -> None:
        super().__init__(items)
        self.read: list[int] = []
        self.lengths = np.array([len(item.ids) for item in items], dtype=np.int64)
        self.targets = np.array([item.supervised[1:].sum() for item in items], dtype=np.int64)
        self.digest = "d"

    def __getitem__(self, index: Any) -> Any:
        self.read.append(index)
        return super().__getitem__(index)

    def __iter__(self) -> Any:
        raise AssertionError("every sample would be loaded")


def test_resuming_reads_the_samples_of_its_own_step_only() -> None:
    data = Watched(samples())
    each = Batches(data, config(), Share(0, 2, 1, 1))
    each.restore({"step": 300, "data": each.digest})
    batch = next(each).batches[0]
    assert sorted(data.read) == sorted(set(batch.ids[batch.segments > 0].tolist()))


LENGTHS = {
    "short, five a row": (np.random.default_rng(0).normal(51, 9, 6000).clip(34, 115), 256, 0.99),
    "short, twenty a row": (np.random.default_rng(0).normal(51, 9, 6000).clip(34, 115), 1024, 0.99),
    "long tail": (np.random.default_rng(1).lognormal(5, 0.8, 20_000).clip(8, 1024), 1024, 0.99),
    "even": (np.random.default_rng(2).uniform(1, 1024, 20_000), 1024, 0.98),
}


@pytest.mark.parametrize("name", LENGTHS)
def test_rows_are_nearly_full_and_never_too_long(name: str) -> None:
    raw, row_length, least = LENGTHS[name]
    lengths = raw.astype(np.int64)
    order = np.random.default_rng(3).permutation(len(lengths))
    rows = pack(order, lengths, row_length)
    totals = np.array([lengths[list(row)].sum() for row in rows])
    assert totals.max() <= row_length
    assert totals.sum() / (len(rows) * row_length) >= least
    assert sorted(index for row in rows for index in row) == list(range(len(lengths)))


def test_a_sample_longer_than_a_row_has_one_of_its_own() -> None:
    assert sorted(pack(range(3), [300, 20, 30], 128)) == [(0,), (1, 2)]
    assert list(pack([], [], 128)) == []


def test_packing_keeps_the_order_random() -> None:
    """Of the samples that share rows, few are as near in length or in place as sorting would put them."""
    lengths = np.random.default_rng(0).normal(51, 9, 6000).clip(34, 115).astype(np.int64)
    rows = pack(np.random.default_rng(1).permutation(6000), lengths, 256)
    spread = np.mean([np.std(lengths[list(row)]) for row in rows if len(row) > 2])
    assert spread > 0.7 * lengths.std()
    distance = np.mean([abs(row[0] - row[1]) for row in rows if len(row) > 1])
    assert distance == pytest.approx(2000, rel=0.1)


def test_packing_time_grows_with_the_samples_and_not_with_their_square() -> None:
    def seconds(count: int) -> float:
        lengths = np.random.default_rng(0).lognormal(5, 0.8, count).clip(8, 1024).astype(np.int64)
        start = time.process_time()
        pack(np.arange(count), lengths, 1024)
        return time.process_time() - start

    small, large = min(seconds(10_000) for _ in range(3)), seconds(160_000)
    assert large < 16 * small * 3


def test_collate_still_keeps_the_mask_of_packed_rows() -> None:
    one, two = samples(2)
    batch = collate([[one, two]])
    assert batch.supervised == int(one.supervised[1:].sum() + two.supervised[1:].sum())

"""The contract of `trackbed.data.pipeline`, for every pipeline that DALI has a part in: real files, real DALI."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

import datasets
from trackbed.data.order import PADDING, Share
from trackbed.data.pipeline import Pipeline
from trackbed.data.samples.audio import Audio, AudioSettings
from trackbed.data.samples.graph import Work
from trackbed.data.samples.images import Images, ImageSettings
from trackbed.data.samples.loader import IGNORED, Batch, Loader, Loading, Step
from trackbed.data.samples.sources import Source, Subset
from trackbed.data.samples.sources.folder import SOUNDS, Folder
from trackbed.data.samples.sources.tfrecord import TFRecord
from trackbed.data.samples.sources.tokens import TokenFiles
from trackbed.data.samples.sources.webdataset import WebDataset
from trackbed.data.samples.tokens import Tokens
from trackbed.errors import DataError

EPOCHS, ROWS = 3, 2
SMALL = ImageSettings(size=32, resize=36)

Make = Callable[..., tuple[Source, Work]]


def of_folder(path: Path, train: bool, **settings: Any) -> tuple[Source, Work]:
    return Folder(datasets.folder(path)), Images(replace(SMALL, **settings), train=train)


def of_shards(path: Path, train: bool, **settings: Any) -> tuple[Source, Work]:
    return WebDataset(datasets.shards(path)), Images(replace(SMALL, **settings), train=train)


def of_records(path: Path, train: bool, **settings: Any) -> tuple[Source, Work]:
    return TFRecord(datasets.records(path)), Images(replace(SMALL, **settings), train=train)


def of_sounds(path: Path, train: bool) -> tuple[Source, Work]:
    return Folder(datasets.sounds(path), suffixes=SOUNDS), Audio(AudioSettings(seconds=0.25, mels=20), train=train)


def of_tokens(path: Path, train: bool) -> tuple[Source, Work]:
    return TokenFiles(datasets.tokens(path), row_length=8), Tokens(row_length=8)


MAKERS: dict[str, Make] = {
    "folder fast": lambda path, train: of_folder(path, train, decode="fast"),
    "folder dali": lambda path, train: of_folder(path, train, decode="dali"),
    "webdataset fast": lambda path, train: of_shards(path, train, decode="fast", dtype="float16", layout="HWC"),
    "webdataset dali": lambda path, train: of_shards(path, train, decode="dali", dtype="uint8"),
    "tfrecord fast": lambda path, train: of_records(path, train, decode="fast", dtype="uint8", layout="HWC"),
    "tfrecord dali": lambda path, train: of_records(path, train, decode="dali"),
    "audio": of_sounds,
    "tokens": of_tokens,
}


@pytest.fixture(params=MAKERS, scope="module")
def parts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[bool], Any]]:
    """A source and its work, by whether it is to train on."""
    path = tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACKBED_CACHE", str(path / "cache"))
        made = {train: MAKERS[request.param](path / "data", train) for train in (True, False)}
        yield made.__getitem__


@pytest.fixture
def load(parts: Callable[[bool], Any]) -> Iterator[Callable[..., Loader]]:
    """Makes loaders of this pipeline, and closes them."""
    made: list[Loader] = []

    def make(rank: int = 0, world: int = 1, *, rows: int = ROWS, accumulate: int = 1, once: bool = False,
             source: Source | None = None, **loading: Any) -> Loader:  # fmt: skip
        whole, work = parts(not once)
        share = Share(rank, world, rows, accumulate)
        made.append(Loader(source or whole, work, share, Loading(**loading), once=once))
        return made[-1]

    yield make
    for loader in made:
        loader.close()


def same(first: list[Step], second: list[Step]) -> bool:
    """Whether all tensors of two lists of steps are equal, bit for bit."""
    pairs = list(zip((batch for step in first for batch in step), (b for step in second for b in step), strict=True))
    return bool(pairs) and all(
        torch.equal(getattr(one, name), getattr(other, name)) for one, other in pairs for name in vars(one)
    )


def numbers(steps: list[list[Step]]) -> list[int]:
    """Sample numbers of all ranks' steps, in the order of the stream: step, forward pass, rank."""
    return [
        int(number)
        for ranks in zip(*steps, strict=True)
        for passes in zip(*ranks, strict=True)
        for batch in passes
        for number in batch.numbers
    ]


@pytest.mark.parametrize(("world", "accumulate"), [(1, 1), (2, 1), (3, 1), (2, 2)])
def test_no_sample_is_lost_or_given_twice(load: Callable[..., Loader], world: int, accumulate: int) -> None:
    loaders = [load(rank, world, accumulate=accumulate) for rank in range(world)]
    size = datasets.COUNT
    count = -(-size * EPOCHS // (world * ROWS * accumulate))
    stream = numbers([list(islice(loader, count)) for loader in loaders])[: size * EPOCHS]
    epochs = [stream[start : start + size] for start in range(0, size * EPOCHS, size)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(size))] * EPOCHS
    assert len({tuple(epoch) for epoch in epochs}) == EPOCHS


def test_it_goes_on_where_it_stopped(load: Callable[..., Loader]) -> None:
    whole = list(islice(load(1, 2), 9))
    for stop in range(9):
        first = load(1, 2)
        assert not stop or same(list(islice(first, stop)), whole[:stop])
        resumed = load(1, 2)
        resumed.restore(first.state())
        assert same(list(islice(resumed, 9 - stop)), whole[stop:])


def test_one_that_is_under_way_can_be_set_back(load: Callable[..., Loader]) -> None:
    loader = load()
    state = loader.state()
    first = list(islice(loader, 4))
    loader.restore(state)
    assert same(list(islice(loader, 4)), first)


@pytest.mark.parametrize("loading", [{"workers": 1, "ahead": 0}, {"workers": 4, "ahead": 5}])
def test_workers_change_nothing(load: Callable[..., Loader], loading: dict[str, int]) -> None:
    assert same(list(islice(load(workers=2, ahead=2), 8)), list(islice(load(**loading), 8)))


def test_an_evaluation_gives_every_sample_once(load: Callable[..., Loader], parts: Callable[[bool], Any]) -> None:
    world, size = 3, datasets.COUNT
    steps = [list(load(rank, world, once=True)) for rank in range(world)]
    assert [len(mine) for mine in steps] == [-(-size // (world * ROWS))] * world
    given = numbers(steps)
    assert given == [*range(size), *[PADDING] * (len(given) - size)]
    for batch in (batch for mine in steps for step in mine for batch in step):
        assert batch.valid.tolist() == [number != PADDING for number in batch.numbers.tolist()]
        assert not batch.inputs[~batch.valid].any()
        assert (batch.labels[~batch.valid] == IGNORED).all()


def test_each_row_is_of_the_sample_that_it_names(load: Callable[..., Loader], parts: Callable[[bool], Any]) -> None:
    source, _ = parts(False)
    (batch,) = next(load(once=True, rows=8))
    for row, number in enumerate(batch.numbers.tolist()):
        (alone,) = next(load(once=True, rows=1, source=Subset(source, [number])))
        assert torch.equal(alone.inputs[0], batch.inputs[row])
        assert torch.equal(alone.labels[0], batch.labels[row])
        if batch.labels.ndim == 1:
            assert batch.labels[row] == source.read(number).label


def test_a_batch_that_is_kept_does_not_change(load: Callable[..., Loader]) -> None:
    loader = load()
    kept = [next(loader)[0] for _ in range(12)]
    copies = [Batch(**{name: value.clone() for name, value in vars(batch).items()}) for batch in kept]
    more = [next(loader)[0] for _ in range(12)]
    assert same([kept], [copies])
    assert len({batch.inputs.data_ptr() for batch in (*kept, *more)}) == 24


def test_a_state_of_other_data_is_refused(load: Callable[..., Loader], parts: Callable[[bool], Any]) -> None:
    state = load().state()
    source, _ = parts(True)
    others = [load(seed=1), load(rows=3), load(window=4), load(once=True), load(source=Subset(source, range(9)))]
    for other in others:
        with pytest.raises(DataError, match="other data"):
            other.restore(state)
    load(rows=1, world=2).restore(state)  # as many samples a step, over more ranks: the same stream


def test_its_threads_end_with_it(load: Callable[..., Loader]) -> None:
    loader = load(workers=3)
    next(loader)
    assert any(thread.name.startswith("trackbed") for thread in threading.enumerate())
    loader.close()
    loader.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("trackbed")]


def test_it_is_a_pipeline(load: Callable[..., Loader]) -> None:
    assert isinstance(load(), Pipeline)

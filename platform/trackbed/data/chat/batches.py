"""Which samples a rank trains on at a step: a pure function of (data, seed, step, rank, world size).

The shuffled samples are packed chunk by chunk into rows; the rows of all epochs form one endless stream; a step takes
the next `world x accumulate x rows` of them. The cursor is therefore the step itself, and a resumed run sees the same
batches: to get there it packs lists of numbers, and reads no sample that it does not train on.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from trackbed.data.chat.encode import Sample
from trackbed.data.chat.pack import Numbers, Row, Rows, alone, pack
from trackbed.data.config import DataConfig
from trackbed.data.order import BLOCKS_IN_WINDOW, Order, Share
from trackbed.data.pipeline import State, agreed_step

__all__ = ["IGNORED", "Batch", "Batches", "Row", "Step", "collate", "pack"]

IGNORED = -100
# Samples packed together when the whole set is shuffled: enough to fill rows, few enough to pack in a blink.
CHUNK = 1 << 16
# Part of the digest: raised when the same data and settings come in another order than before.
PACKING = 2


@runtime_checkable
class Counted(Protocol):
    """A set that knows its lengths (tokens) and targets (tokens that are learnt), each int64 [samples], and a hash."""

    @property
    def lengths(self) -> Numbers: ...
    @property
    def targets(self) -> Numbers: ...
    @property
    def digest(self) -> str: ...


@dataclass(frozen=True)
class Batch:
    """Arrays of one forward pass, each int64 [rows, tokens].

    labels holds, at the position that predicts it, the token to be learnt, and IGNORED elsewhere. segments numbers the
    samples of a row from 1; 0 is padding. positions count from 0 in every sample.
    """

    ids: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    segments: npt.NDArray[np.int64]

    @property
    def tokens(self) -> int:
        return int((self.segments > 0).sum())

    @property
    def supervised(self) -> int:
        return int((self.labels != IGNORED).sum())


@dataclass(frozen=True)
class Step:
    """One rank's forward passes in an optimizer step, and the supervised tokens of all ranks together."""

    batches: list[Batch]
    supervised_everywhere: int


class Batches:
    """The stream of training batches for one rank; keeps the contract of `trackbed.data.pipeline`.

    `config.window` samples bound how far apart the samples of one chunk lie, for sets larger than memory; 0 shuffles
    all of them.
    """

    def __init__(self, samples: Sequence[Sample], config: DataConfig, share: Share) -> None:
        self._samples, self._config, self._share, window = samples, config, share, config.window
        self._lengths, self._targets = _counts(samples)
        self._order = Order(len(samples), config.seed, window=window)
        reach = max(1, window // BLOCKS_IN_WINDOW) * BLOCKS_IN_WINDOW
        self._chunk = reach if 0 < window < len(samples) else CHUNK
        self._chunks = -(-len(samples) // self._chunk)
        self._rows = lru_cache(maxsize=4)(self._pack_chunk)
        self._starts = [0]
        self._next = 0

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Step:
        made = self.step(self._next)
        self._next += 1
        return made

    def step(self, number: int) -> Step:
        """What this rank trains on at optimizer step `number`, counted from 0."""
        share = self._share
        rows = [self._row(number * share.step + index) for index in range(share.step)]
        starts = (share.begins(0, part) for part in range(share.accumulate))
        mine = [rows[start : start + share.rows] for start in starts]
        everywhere = sum(int(self._targets[list(row)].sum()) for row in rows)
        return Step([collate([[self._samples[i] for i in row] for row in part]) for part in mine], everywhere)

    def state(self) -> State:
        """Steps given so far, and the hash of what decides their content."""
        return {"step": self._next, "data": self.digest}

    def restore(self, state: State) -> None:
        """Continue after the state's step. DataError when it is of other data, order or rows a step."""
        self._next = agreed_step(state, self.digest)

    def close(self) -> None:
        """Let go of the packed lists; nothing else is held."""
        self._rows.cache_clear()

    @cached_property
    def digest(self) -> str:
        """Hash of data and settings. Worlds and rows may differ where a step takes as many rows in all."""
        samples = self._samples.digest if isinstance(self._samples, Counted) else _hash(self._samples)
        length = self._config.row_length if self._config.pack else 0
        said = [samples, self._config.seed, length, self._config.window, self._share.step, PACKING]
        return hashlib.sha256(json.dumps(said).encode()).hexdigest()

    def rows_in_epoch(self, epoch: int) -> int:
        """How many rows an epoch's samples make."""
        return self._start((epoch + 1) * self._chunks) - self._start(epoch * self._chunks)

    def _row(self, number: int) -> Row:
        """Row `number` of the endless stream; chunks, and so epochs, may have different numbers of rows."""
        while self._starts[-1] <= number:
            self._start(len(self._starts))
        chunk = bisect_right(self._starts, number) - 1
        return self._rows(chunk)[number - self._starts[chunk]]

    def _start(self, chunk: int) -> int:
        """The first row of a chunk, counted over all epochs."""
        while len(self._starts) <= chunk:
            self._starts.append(self._starts[-1] + len(self._rows(len(self._starts) - 1)))
        return self._starts[chunk]

    def _pack_chunk(self, chunk: int) -> Rows:
        epoch, inside = divmod(chunk, self._chunks)
        size, first = len(self._samples), inside * self._chunk
        order = self._order.at(epoch * size + first, min(self._chunk, size - first))
        if not self._config.pack:
            return alone(order)
        rows = pack(order, self._lengths, self._config.row_length)
        # The last rows of a chunk are the emptiest: their place must not be always the same.
        return rows.shuffled(np.random.default_rng((self._config.seed, epoch, inside, PACKING)))


def _counts(samples: Sequence[Sample]) -> tuple[Numbers, Numbers]:
    if isinstance(samples, Counted):
        return samples.lengths, samples.targets
    lengths = np.array([len(sample.ids) for sample in samples], dtype=np.int64)
    return lengths, np.array([sample.supervised[1:].sum() for sample in samples], dtype=np.int64)


def _hash(samples: Iterable[Sample]) -> str:
    digest = hashlib.sha256()
    for sample in samples:
        digest.update(len(sample.ids).to_bytes(8, "little") + sample.ids.tobytes() + sample.supervised.tobytes())
    return digest.hexdigest()


def collate(rows: Sequence[Sequence[Sample]]) -> Batch:
    """Lay samples out in rows as long as the longest of them."""
    width = max(sum(len(sample.ids) for sample in row) for row in rows)
    batch = Batch(*(np.full((len(rows), width), fill, dtype=np.int64) for fill in (0, IGNORED, 0, 0)))
    for line, row in enumerate(rows):
        start = 0
        for segment, sample in enumerate(row, start=1):
            end = start + len(sample.ids)
            batch.ids[line, start:end] = sample.ids
            batch.labels[line, start : end - 1] = np.where(sample.supervised[1:], sample.ids[1:], IGNORED)
            batch.positions[line, start:end] = np.arange(len(sample.ids))
            batch.segments[line, start:end] = segment
            start = end
    return batch

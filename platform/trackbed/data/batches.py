"""Which samples a rank trains on at a step: a pure function of (data, seed, step, rank, world size).

Samples are packed into rows; the rows of all epochs form one endless stream; a step takes the next
`world x accumulate x rows` of them. The cursor is therefore the step itself, and a resumed run sees the same batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from trackbed.data.config import DataConfig
from trackbed.data.encode import Sample
from trackbed.data.order import Share

IGNORED = -100
# Rows that are open at the same time while packing: enough for 97 % and more, few enough to keep the order random.
OPEN_ROWS = 64

Row = tuple[int, ...]


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
    """The stream of training batches for one rank."""

    def __init__(self, samples: Sequence[Sample], config: DataConfig, share: Share) -> None:
        self._samples = samples
        self._config = config
        self._share = share
        self._lengths = [len(sample.ids) for sample in samples]
        self._targets = [int(sample.supervised[1:].sum()) for sample in samples]
        self._epoch = lru_cache(maxsize=2)(self._pack_epoch)
        self._starts = [0]

    def step(self, number: int) -> Step:
        """What this rank trains on at optimizer step `number`, counted from 0."""
        share = self._share
        size = share.step
        rows = [self._row(number * size + index) for index in range(size)]
        mine = [self._passes(rows, index) for index in range(share.accumulate)]
        everywhere = sum(self._targets[sample] for row in rows for sample in row)
        return Step([collate([[self._samples[i] for i in row] for row in part]) for part in mine], everywhere)

    def rows_in_epoch(self, epoch: int) -> int:
        """How many rows an epoch's samples make."""
        return len(self._epoch(epoch))

    def _passes(self, rows: list[Row], index: int) -> list[Row]:
        start = self._share.begins(0, index)
        return rows[start : start + self._share.rows]

    def _row(self, number: int) -> Row:
        """Row `number` of the endless stream; epochs may have different numbers of rows."""
        epoch = 0
        while number >= self._start(epoch + 1):
            epoch += 1
        return self._epoch(epoch)[number - self._start(epoch)]

    def _start(self, epoch: int) -> int:
        while len(self._starts) <= epoch:
            self._starts.append(self._starts[-1] + len(self._epoch(len(self._starts) - 1)))
        return self._starts[epoch]

    def _pack_epoch(self, epoch: int) -> list[Row]:
        random = np.random.default_rng((self._config.seed, epoch))
        order = [int(index) for index in random.permutation(len(self._samples))]
        if not self._config.pack:
            return [(index,) for index in order]
        rows = pack(order, self._lengths, self._config.row_length)
        return [rows[index] for index in random.permutation(len(rows))]


def pack(order: Sequence[int], lengths: Sequence[int], row_length: int) -> list[Row]:
    """Put samples, in the given order, each into the fullest open row that has room."""
    done: list[Row] = []
    open_rows: list[tuple[int, list[int]]] = []
    for index in order:
        fitting = [row for row in open_rows if row[0] >= lengths[index]]
        room, row = min(fitting, key=lambda item: item[0], default=(row_length, []))
        if fitting:
            open_rows.remove((room, row))
        row.append(index)
        open_rows.append((room - lengths[index], row))
        if len(open_rows) > OPEN_ROWS:
            fullest = min(open_rows, key=lambda item: item[0])
            open_rows.remove(fullest)
            done.append(tuple(fullest[1]))
    return done + [tuple(row) for _, row in open_rows]


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

"""Samples as the model sees them: `trackbed data preview`. Which are shown depends on the data alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from trackbed.data.chat.batches import Batches
from trackbed.data.chat.encode import Sample, load_tokenizer, tokenise
from trackbed.data.chat.lines import named
from trackbed.data.chat.prepared import Prepared
from trackbed.data.config import DataConfig
from trackbed.data.inspection.shown import Piece, pieces
from trackbed.data.order import Share
from trackbed.errors import DataError


@dataclass(frozen=True)
class Shown:
    """A sample: where it lies, its tokens, and how many were cut from its left."""

    where: str
    pieces: list[Piece]
    cut: int = 0

    @property
    def learnt(self) -> int:
        return sum(piece.learnt for piece in self.pieces)

    @property
    def about(self) -> str:
        share = self.learnt / max(1, len(self.pieces))
        cut = f"cut: {self.cut} tokens on the left are lost" if self.cut else "whole"
        return f"{len(self.pieces)} tokens, {self.learnt} supervised ({share:.0%}), {cut}"


@dataclass(frozen=True)
class Row:
    """The first row that training sees, and how wide a row is at most."""

    samples: list[Shown]
    width: int

    @property
    def tokens(self) -> int:
        return sum(len(sample.pieces) for sample in self.samples)

    @property
    def padding(self) -> int:
        return max(0, self.width - self.tokens)

    @property
    def about(self) -> str:
        share = self.padding / max(1, self.width)
        return (
            f"{len(self.samples)} samples, {self.tokens} of {self.width} tokens, {self.padding} padding ({share:.1%})"
        )


@dataclass(frozen=True)
class Preview:
    """Some samples of a part, and a packed row of it (None where the job does not pack)."""

    part: str
    of: int
    samples: list[Shown]
    row: Row | None


@dataclass(frozen=True)
class Choice:
    """Which samples of which part: so many, evenly spread, or those of a line."""

    part: str = "train"
    samples: int = 3
    line: int = 0


def preview(prepared: Prepared, model: Path, config: DataConfig, choice: Choice) -> Preview:
    """DataError when there is no sample at the line that was asked for; it says so where that one was dropped."""
    viewer = _Viewer(prepared, load_tokenizer(model))
    chosen = at_line(prepared, choice.line) if choice.line else spread(len(prepared), choice.samples)
    row = viewer.row(config) if config.pack and choice.part == "train" else None
    return Preview(choice.part, len(prepared), [viewer.sample(number) for number in chosen], row)


def spread(size: int, count: int) -> list[int]:
    """At most `count` of `size` numbers, each in the middle of its stretch of them."""
    count = min(size, count)
    return [(2 * index + 1) * size // (2 * count) for index in range(count)]


def at_line(prepared: Prepared, line: int) -> list[int]:
    """The samples at that line of each file. DataError when there is none."""
    end = f":{line}"
    found = [number for number in range(len(prepared)) if prepared.where(number).endswith(end)]
    if found:
        return found
    dropped = [item for item in prepared.dropped if item.where.endswith(end)]
    if dropped:
        what = f"the sample was dropped: {dropped[0].reason}"
        raise DataError(named("data.dropped", dropped[0].where, what, remedy="see data.max_length and data.too_long"))
    where, last = prepared.where(0).rpartition(":")[0], prepared.where(len(prepared) - 1)
    what = f"no sample begins at line {line}"
    raise DataError(named("data.no-such-line", where, what, wanted=f"a line with a sample; the last is {last}"))


class _Viewer:
    def __init__(self, prepared: Prepared, tokenizer: Any) -> None:
        self._prepared, self._tokenizer = prepared, tokenizer

    def sample(self, number: int) -> Shown:
        sample = self._prepared[number]
        cut = self._whole(number) - len(sample.ids) if self._prepared.truncated else 0
        return Shown(sample.where, self._pieces(sample), cut)

    def row(self, config: DataConfig) -> Row:
        """What one rank with one row a step trains on first."""
        watched = _Watched(self._prepared)
        Batches(watched, config, Share(rank=0, world=1, rows=1)).step(0)
        return Row([self.sample(number) for number in watched.taken], config.row_length)

    def _pieces(self, sample: Sample) -> list[Piece]:
        return pieces(sample.ids, sample.supervised, self._tokenizer)

    def _whole(self, number: int) -> int:
        """Tokens of a sample before it was cut: it is encoded again, which a few samples can afford."""
        (whole,) = tokenise([self._prepared.conversation(number)], self._tokenizer)
        return len(whole.ids)


class _Watched(Sequence[Sample]):
    """Prepared data that notes which samples are taken from it."""

    def __init__(self, prepared: Prepared) -> None:
        self._prepared, self.taken = prepared, list[int]()
        self.lengths: npt.NDArray[np.int64] = prepared.lengths
        self.targets: npt.NDArray[np.int64] = prepared.targets
        self.digest = prepared.digest

    def __len__(self) -> int:
        return len(self._prepared)

    @overload
    def __getitem__(self, index: int) -> Sample: ...

    @overload
    def __getitem__(self, index: slice) -> list[Sample]: ...

    def __getitem__(self, index: int | slice) -> Sample | list[Sample]:
        if isinstance(index, int):
            self.taken.append(index)
        return self._prepared[index]

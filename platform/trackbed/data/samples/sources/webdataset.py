"""Tar shards in the WebDataset convention: the members of a sample are KEY.jpg, KEY.cls and so on."""

from __future__ import annotations

import tarfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from trackbed.data.samples.sources import Sample, digest, pread, printable, shards, stamp, unreadable
from trackbed.data.samples.sources.folder import IMAGES
from trackbed.data.samples.sources.index import Index, index
from trackbed.errors import DataError, Problem

SUFFIXES = tuple(suffix.removeprefix(".") for suffix in IMAGES)
MISSING = -1


class WebDataset:
    """The samples of all shards of a folder, or of one shard, in their order there.

    A sample is what has one key in a shard; its data is the member with one of the `data` suffixes, its label the
    number in the member with the `label` suffix ("" when there is none). A sample without one of them can be counted
    but not read: the error names the component. DataError for shards that break off, all at once.
    """

    def __init__(self, path: Path, *, data: Sequence[str] = SUFFIXES, label: str = "cls") -> None:
        self._data, self._label = tuple(data), label
        self._shards = shards(path, (".tar",))
        self._indices = _indices(self._shards, self._data, label)
        self._ends = np.cumsum([len(each.names) for each in self._indices])
        self.stamp = stamp(self._shards)
        self.digest = digest(
            f"{shard.name} {name} {span.tolist()}"
            for shard, found in zip(self._shards, self._indices, strict=True)
            for name, span in zip(found.names, found.spans, strict=True)
        )

    def __len__(self) -> int:
        return int(self._ends[-1])

    def read(self, number: int) -> Sample:
        shard, found, row = self._place(number)
        offset, size, label_offset, label_size = map(int, found.spans[row])
        if offset == MISSING:
            raise DataError(unreadable(self.where(number), f"it has no component {' or '.join(self._data)}"))
        if self._label and label_offset == MISSING:
            raise DataError(unreadable(self.where(number), f"it has no component {self._label}"))
        label = pread(shard, label_offset, label_size) if self._label else b"0"
        return Sample(pread(shard, offset, size), self._number(number, label))

    def where(self, number: int) -> str:
        shard, found, row = self._place(number)
        return printable(f"{shard}!{found.names[row]}")

    def _place(self, number: int) -> tuple[Path, Index, int]:
        at = int(np.searchsorted(self._ends, number, side="right"))
        found = self._indices[at]
        return self._shards[at], found, number - int(self._ends[at]) + len(found.names)

    def _number(self, number: int, text: bytes) -> int:
        if not text.strip().isdigit():
            what = f"its component {self._label} is no class number: {text[:20]!r}"
            raise DataError(unreadable(self.where(number), what))
        return int(text)


def _indices(paths: Sequence[Path], data: Sequence[str], label: str) -> list[Index]:
    found: list[Index] = []
    problems: list[Problem] = []
    for shard in paths:
        try:
            found.append(index(shard, f"webdataset {data} {label}", lambda path: _build(path, data, label)))
        except (tarfile.TarError, EOFError, OSError) as error:
            problems.append(unreadable(str(shard), f"it is no whole tar file: {error}"))
    if not problems and not any(len(each.names) for each in found):
        problems = [Problem(id="data.no-samples", where=str(paths[0].parent), what="the shards hold no sample")]
    if problems:
        raise DataError(problems)
    return found


def _build(shard: Path, data: Sequence[str], label: str) -> Index:
    """Offset and size of the data and of the label for every key, MISSING where there is none."""
    spans: dict[str, list[int]] = {}
    with tarfile.open(shard, "r:") as members:
        for member in members:
            path = PurePosixPath(member.name)
            stem, _, suffix = path.name.partition(".")
            column = 0 if suffix.lower() in data else 2 if suffix == label else None
            if not member.isfile() or not stem:
                continue
            span = spans.setdefault(str(path.with_name(stem)), [MISSING] * 4)
            if column is not None:
                span[column : column + 2] = member.offset_data, member.size
    if not _ended(shard):
        # tarfile takes half a header for the end.
        raise tarfile.ReadError("it breaks off before the two blocks of zeros at its end")
    return Index(list(spans), np.array(list(spans.values()), dtype=np.int64).reshape(-1, 4))


def _ended(shard: Path) -> bool:
    size, end = shard.stat().st_size, 2 * tarfile.BLOCKSIZE
    return size % tarfile.BLOCKSIZE == 0 and size >= end and not any(pread(shard, size - end, end))

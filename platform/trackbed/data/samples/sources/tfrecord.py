"""TFRecord shards of tf.train.Example messages, read without TensorFlow.

A record is its length (uint64), the masked CRC-32C of the length, the data, and the masked CRC-32C of the data, as
tensorflow/core/lib/io/record_writer.h describes. Only the length's is checked here: a wrong length loses all that
follows, and wrong data shows when it is decoded.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import BinaryIO

import numpy as np

from trackbed.data.samples.sources import Sample, digest, pread, shards, stamp, unreadable
from trackbed.data.samples.sources.example import parse
from trackbed.data.samples.sources.index import Index, index
from trackbed.errors import DataError, Problem

HEAD, TAIL = struct.Struct("<QI"), 4
POLYNOMIAL, MASK = 0x82F63B78, 0xA282EAD8


class TFRecord:
    """The records of all shards of a folder, or of one shard, in their order there.

    `data` names the feature with the encoded sample, `label` the one with the number of its class ("": there is none).
    DataError for shards that break off or whose lengths are damaged, all at once.
    """

    def __init__(self, path: Path, *, data: str = "image/encoded", label: str = "image/class/label") -> None:
        self._data, self._label = data, label
        self._shards = shards(path, (".tfrecord", ".tfrecords"))
        self._indices = _indices(self._shards)
        self._ends = np.cumsum([len(each.spans) for each in self._indices])
        self.stamp = stamp(self._shards)
        self.digest = digest(
            f"{shard.name} {found.spans.tolist()} {data} {label}"
            for shard, found in zip(self._shards, self._indices, strict=True)
        )

    def __len__(self) -> int:
        return int(self._ends[-1])

    def read(self, number: int) -> Sample:
        at, row = self._place(number)
        offset, size = map(int, self._indices[at].spans[row])
        try:
            features = parse(pread(self._shards[at], offset, size))
        except ValueError as error:
            raise DataError(unreadable(self.where(number), f"it is no tf.train.Example: {error}")) from error
        data, label = self._only(number, features, self._data), self._only(number, features, self._label)
        if not isinstance(data, bytes) or not isinstance(label, int):
            what = f"its feature {self._data} is not of bytes, or {self._label} not an int64"
            raise DataError(unreadable(self.where(number), what))
        return Sample(data, label)

    def where(self, number: int) -> str:
        at, row = self._place(number)
        return f"{self._shards[at]} record {row}"

    def _place(self, number: int) -> tuple[int, int]:
        at = int(np.searchsorted(self._ends, number, side="right"))
        return at, number - int(self._ends[at]) + len(self._indices[at].spans)

    def _only(self, number: int, features: dict[str, list[bytes] | list[int]], name: str) -> bytes | int:
        """The first value of a feature; 0 when nobody asks for one."""
        if not name:
            return 0
        values = features.get(name)
        if not values:
            what = f"it has no feature {name}, but {', '.join(sorted(features)) or 'none'}"
            raise DataError(unreadable(self.where(number), what))
        return values[0]


def _indices(paths: Sequence[Path]) -> list[Index]:
    found: list[Index] = []
    problems: list[Problem] = []
    for shard in paths:
        try:
            found.append(index(shard, "tfrecord", _build))
        except DataError as error:
            problems += error.problems
    if not problems and not any(len(each.spans) for each in found):
        problems = [Problem(id="data.no-samples", where=str(paths[0].parent), what="the shards hold no record")]
    if problems:
        raise DataError(problems)
    return found


def _build(shard: Path) -> Index:
    with shard.open("rb") as file:
        spans = list(_spans(shard, file))
    return Index([], np.array(spans, dtype=np.int64).reshape(-1, 2))


def _spans(shard: Path, file: BinaryIO) -> Iterator[tuple[int, int]]:
    """Offset and length of the data of every record."""
    end, offset = shard.stat().st_size, 0
    while offset < end:
        head = file.read(HEAD.size)
        if len(head) < HEAD.size:
            raise DataError(unreadable(str(shard), f"breaks off in the record at byte {offset}"))
        length, check = HEAD.unpack(head)
        if masked(head[:8]) != check:
            raise DataError(unreadable(str(shard), f"the length of the record at byte {offset} is damaged"))
        start, offset = offset, offset + HEAD.size + length + TAIL
        if offset > end:
            raise DataError(unreadable(str(shard), f"breaks off in the record at byte {start}"))
        yield start + HEAD.size, length
        file.seek(offset)


def masked(data: bytes) -> int:
    """CRC-32C (Castagnoli), rotated right by 15 bits plus a constant, as TFRecord stores it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _table()[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + MASK) & 0xFFFFFFFF


@cache
def _table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return table

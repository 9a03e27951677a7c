"""Where samples come from: an index of them, any of which can be read at any time by its number.

Reading is ours and not a DALI reader's: those forget their epoch and shard when they are made anew, and end on the
first bad sample. What is known by number can be put in any order, shared over any world and resumed by seeking.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from trackbed.errors import DataError, Problem

# How many of the faulty are named one by one; the rest is counted.
NAMED = 20


@dataclass(frozen=True)
class Sample:
    """One encoded sample (a JPEG, a WAV, a row of tokens) and the number of its class; 0 where there are none."""

    data: bytes
    label: int = 0


class Source(Protocol):
    """An index of samples that is the same for every rank. Safe to read from many threads."""

    @property
    def digest(self) -> str:
        """Hash over the name and size of every sample, and its label where the index has it: other data has another."""
        ...

    @property
    def stamp(self) -> str:
        """Hash over the place, inode and times of every file: what was found out about them holds as long as it does.
        Copied data has the same digest and another stamp."""
        ...

    def __len__(self) -> int: ...

    def read(self, number: int) -> Sample:
        """The sample. DataError when it, or a component of it, is not there or is cut off."""
        ...

    def where(self, number: int) -> str:
        """Where it lies, for a person: a path, or SHARD!MEMBER."""
        ...


class Subset:
    """The samples of a source with these numbers, counted anew from 0."""

    def __init__(self, source: Source, numbers: Sequence[int]) -> None:
        self._source, self._numbers = source, numbers
        self.digest = digest([source.digest, *map(str, numbers)])
        self.stamp = digest([source.stamp, *map(str, numbers)])

    def __len__(self) -> int:
        return len(self._numbers)

    def read(self, number: int) -> Sample:
        return self._source.read(self._numbers[number])

    def where(self, number: int) -> str:
        return self._source.where(self._numbers[number])


def digest(parts: Iterable[str]) -> str:
    """SHA-256 of texts, one after the other; names of files may hold bytes that are no UTF-8."""
    made = hashlib.sha256()
    for part in parts:
        made.update(part.encode(errors="surrogateescape") + b"\0")
    return made.hexdigest()


def identity(status: os.stat_result) -> str:
    """Changes when a file is written to or replaced, also by one of the same size and time of change."""
    return f"{status.st_size} {status.st_ino} {status.st_mtime_ns} {status.st_ctime_ns}"


def stamp(paths: Iterable[Path]) -> str:
    """The stamp of a source whose files are these."""
    return digest(f"{path.resolve()} {identity(path.stat())}" for path in paths)


def printable(name: object) -> str:
    r"""A path or a name for a person: bytes that are no UTF-8 as \xe9."""
    return os.fsencode(str(name)).decode(errors="backslashreplace")


def pread(path: Path, offset: int, size: int) -> bytes:
    """`size` bytes of a file from `offset` on, without a shared file position. DataError when there are fewer."""
    try:
        handle = os.open(path, os.O_RDONLY)
        try:
            data = os.pread(handle, size, offset)
        finally:
            os.close(handle)
    except OSError as error:
        raise DataError(unreadable(str(path), f"cannot be read: {error.strerror}")) from error
    if len(data) < size:
        raise DataError(unreadable(str(path), f"ends {size - len(data)} bytes before the sample at byte {offset} does"))
    return data


def unreadable(where: str, what: str) -> Problem:
    return Problem(id="data.unreadable", where=where, what=what, remedy="copy it again, or leave it out")


def shards(path: Path, suffixes: Sequence[str]) -> list[Path]:
    """The shards in a folder, sorted by name, or the one named. DataError when there is none."""
    found = sorted(each for each in path.iterdir() if each.suffix in suffixes) if path.is_dir() else [path]
    if not found or not all(each.is_file() for each in found):
        wanted = f"a file or a folder of {', '.join(suffixes)}"
        raise DataError(Problem(id="data.no-shards", where=str(path), what="there is no shard here", wanted=wanted))
    return found

"""Tokens that were made before, in NumPy or raw files, mapped into memory and cut into rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trackbed.data.samples.sources import Sample, digest, shards, stamp, unreadable
from trackbed.errors import DataError, Problem


class TokenFiles:
    """Rows of row_length + 1 tokens, int64, of every .npy and .bin file of a folder, or of one.

    Rows overlap by one token, so that every token but a file's first is predicted once. What is left at the end of a
    file is `dropped`. `dtype` is of .bin files; .npy files carry theirs.
    """

    def __init__(self, path: Path, row_length: int, *, dtype: str = "uint16") -> None:
        self._length = row_length
        self._paths = shards(path, (".npy", ".bin"))
        self._files = _mapped(self._paths, dtype)
        rows = [max(0, len(file) - 1) // row_length for file in self._files]
        self._ends = np.cumsum(rows)
        if not len(self):
            what = f"no file has the {row_length + 1} tokens of a row"
            raise DataError(Problem(id="data.no-rows", where=str(path), what=what, wanted="a smaller row_length"))
        self.dropped = sum(max(0, len(file) - 1) for file in self._files) - len(self) * row_length
        self.stamp = stamp(self._paths)
        names = zip(self._paths, self._files, strict=True)
        self.digest = digest([*(f"{name.name} {len(file)} {file.dtype}" for name, file in names), str(row_length)])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def read(self, number: int) -> Sample:
        at, start = self._place(number)
        return Sample(self._files[at][start : start + self._length + 1].astype(np.int64).tobytes())

    def where(self, number: int) -> str:
        at, start = self._place(number)
        return f"{self._paths[at]} tokens {start} to {start + self._length}"

    def _place(self, number: int) -> tuple[int, int]:
        at = int(np.searchsorted(self._ends, number, side="right"))
        return at, (number - (int(self._ends[at - 1]) if at else 0)) * self._length


def _mapped(paths: Sequence[Path], dtype: str) -> list[npt.NDArray[Any]]:
    """The files as integers [tokens]; DataError for those that hold something else, all at once."""
    files: list[npt.NDArray[Any]] = []
    problems: list[Problem] = []
    for path in paths:
        try:
            npy = path.suffix == ".npy"
            file = np.load(path, mmap_mode="r", allow_pickle=False) if npy else np.memmap(path, dtype=dtype, mode="r")
        except (ValueError, OSError, EOFError) as error:
            problems.append(unreadable(str(path), f"cannot be mapped as an array: {error}"))
            continue
        files.append(file)
        if file.ndim != 1 or file.dtype.kind not in "iu":
            problems.append(unreadable(str(path), f"holds {file.dtype} {list(file.shape)}, not integers [tokens]"))
    if problems:
        raise DataError(problems)
    return files

"""A prepared data set: token ids and masks in memory-mapped files that any number of ranks share.

In the folder, as plain arrays: ids.bin (uint16 or uint32 [tokens]), supervised.bin (uint8 [tokens]), offsets.bin (int64
[samples + 1]), lengths.bin and targets.bin (int64 [samples]), lines.bin (int64 [samples, 3]: file, line, byte),
dropped.bin (int64 [dropped, 4]: file, line, tokens, and the max_length that keeps it), and meta.json with counts, sizes
and hashes. No file holds a path or a time: the same data gives the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, overload

import numpy as np
import numpy.typing as npt

from trackbed.data.chat import jsonl
from trackbed.data.chat.encode import Dropped, Sample
from trackbed.data.chat.formats import Format
from trackbed.data.chat.lines import named
from trackbed.data.chat.recipe import Ingredients, Recipe, gather
from trackbed.data.chat.turns import Conversation
from trackbed.errors import DataError, Problem

COLUMNS = {"ids": 0, "supervised": 0, "offsets": 0, "lengths": 0, "targets": 0, "lines": 3, "dropped": 4}
Numbers = npt.NDArray[np.int64]
ItemT = TypeVar("ItemT")


class Lazy(Sequence[ItemT]):
    """A sequence whose items are made when they are asked for."""

    def __init__(self, size: int, item: Callable[[int], ItemT]) -> None:
        self._size, self._item = size, item

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, index: int) -> ItemT: ...

    @overload
    def __getitem__(self, index: slice) -> list[ItemT]: ...

    def __getitem__(self, index: int | slice) -> ItemT | list[ItemT]:
        if isinstance(index, slice):
            return [self._item(each) for each in range(*index.indices(self._size))]
        if not -self._size <= index < self._size:
            raise IndexError(index)
        return self._item(index % self._size)


class Prepared(Lazy[Sample]):
    """Samples of a data set, read from the files when they are asked for. `fresh`: made by the call that gave it."""

    def __init__(self, folder: Path, files: Sequence[Path], *, fresh: bool = False) -> None:
        self.folder, self._files, self.fresh = folder, list(files), fresh
        meta = json.loads((folder / "meta.json").read_bytes())
        self._arrays = {name: _map(folder, name, meta["dtype"]) for name in COLUMNS}
        self.format = Format(meta["format"])
        self.tokens: int = meta["tokens"]
        self.supervised_tokens: int = meta["supervised_tokens"]
        self.truncated: int = meta["truncated"]
        self.digest: str = meta["digest"]
        self.lengths: Numbers = self._arrays["lengths"]
        self.targets: Numbers = self._arrays["targets"]
        self.dropped = dropped(self._arrays["dropped"], files, meta["max_length"], meta["too_long"])
        super().__init__(len(self.lengths), self._sample)

    def where(self, index: int) -> str:
        """file:line of a sample."""
        file, line, _ = self._arrays["lines"][index].tolist()
        return f"{self._files[file]}:{line}"

    def conversation(self, index: int) -> Conversation:
        """What a sample was made of, read from its file again. DataError when the file is no longer what it was."""
        file, line, offset = self._arrays["lines"][index].tolist()
        try:
            with self._files[file].open("rb") as data:
                data.seek(offset)
                raw = data.readline()
        except OSError as error:
            raise _moved(self.where(index), str(error.strerror)) from error
        item = jsonl.parse(raw, self.where(index), self.format, first=line == 1)
        if isinstance(item, Problem):
            raise _moved(item.where, item.what)
        return item

    def _sample(self, index: int) -> Sample:
        begin, end = self._arrays["offsets"][index : index + 2].tolist()
        return Sample(
            self._arrays["ids"][begin:end].astype(np.int64),
            self._arrays["supervised"][begin:end].astype(np.bool_),
            self.where(index),
        )


def dropped(rows: Numbers, files: Sequence[Path], max_length: int, too_long: str) -> Sequence[Dropped]:
    """The dropped samples behind the rows of dropped.bin, said as `encode.fit` says them."""

    def item(index: int) -> Dropped:
        file, line, tokens, needs = rows[index].tolist()
        reason = f"no supervised token in the last {min(tokens, max_length)} of {tokens} tokens"
        if tokens > max_length and too_long == "drop":
            reason = f"{tokens} tokens, at most {max_length}"
        return Dropped(f"{files[file]}:{line}", reason, tokens, needs)

    return Lazy(len(rows), item)


def open_prepared(recipe: Recipe, job: str = "JOB.yaml") -> Prepared:
    """What `trackbed data prepare` made of the data; nothing is made here, so ranks may call it at any time.

    DataError (data.not-prepared) when there is none, with the command that makes it.
    """
    ingredients = gather(recipe, lambda stage, done, total: None)
    if found := opened(ingredients):
        return found
    damaged = ingredients.folder.exists()
    what = "the prepared data is damaged" if damaged else "the data is not prepared for this tokenizer and settings"
    remedy, where = f"trackbed data prepare {job}", str(ingredients.folder if damaged else recipe.data)
    raise DataError(named("data.not-prepared", where, what, wanted=str(ingredients.folder), remedy=remedy))


def opened(ingredients: Ingredients) -> Prepared | None:
    """The prepared data, when it is there and every file of it has its size."""
    folder = ingredients.folder
    try:
        sizes = json.loads((folder / "meta.json").read_bytes())["files"]
        whole = all((folder / f"{name}.bin").stat().st_size == sizes[name]["bytes"] for name in COLUMNS)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Prepared(folder, [file.path for file in ingredients.files]) if whole else None


def _map(folder: Path, name: str, ids: str) -> npt.NDArray[Any]:
    dtype = np.dtype({"ids": ids, "supervised": "uint8"}.get(name, "int64"))
    path = folder / f"{name}.bin"
    shape = (-1, COLUMNS[name]) if COLUMNS[name] else (-1,)
    # An empty file cannot be mapped.
    if not path.stat().st_size:
        return np.zeros((0, *shape[1:]), dtype)
    return np.memmap(path, dtype, mode="r").reshape(shape)


def _moved(where: str, what: str) -> DataError:
    return DataError(named("data.changed", where, f"the data has changed since it was prepared: {what}"))

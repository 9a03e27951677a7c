"""A folder of files: one folder a class, as FOLDER/CLASS/FILE."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from trackbed.data.samples.sources import Sample, digest, identity, printable, unreadable
from trackbed.errors import DataError, Problem

IMAGES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff")
SOUNDS = (".wav", ".flac", ".ogg")

Entry = tuple[str, int, os.stat_result]
"""Its name below the folder, its label and its status."""


class Folder:
    """The files below a folder with one of these suffixes, sorted by class and name.

    `classes` are the names of the folders in it, sorted, unless given: then a label means the same in two folders.
    Raises DataError when there is no class, no file, a class that was not given, or a folder inside a class.
    """

    def __init__(self, path: Path, *, suffixes: Sequence[str] = IMAGES, classes: Sequence[str] | None = None) -> None:
        self._path = path
        found = _classes(path)
        self.classes = list(classes or found)
        _check(path, found, self.classes)
        self._entries = [entry for name in found for entry in _files(path, name, self.classes.index(name), suffixes)]
        if not self._entries:
            raise DataError(_empty(path, f"FOLDER/CLASS/FILE with one of {', '.join(suffixes)}"))
        self.empty = sorted(set(found) - {name.split("/", 1)[0] for name, *_ in self._entries})
        """Classes without a file."""
        self.digest = digest(f"{name} {label} {status.st_size}" for name, label, status in self._entries)
        places = (f"{name} {label} {identity(status)}" for name, label, status in self._entries)
        self.stamp = digest([str(path.resolve()), *places])

    def __len__(self) -> int:
        return len(self._entries)

    def read(self, number: int) -> Sample:
        name, label, _ = self._entries[number]
        try:
            return Sample((self._path / name).read_bytes(), label)
        except OSError as error:
            raise DataError(unreadable(self.where(number), f"cannot be read: {error.strerror}")) from error

    def where(self, number: int) -> str:
        return printable(self._path / self._entries[number][0])


def _classes(path: Path) -> list[str]:
    if not path.is_dir():
        what = "this is a file" if path.exists() else "there is no such folder"
        raise DataError(Problem(id="data.no-files", where=str(path), what=what, wanted="a folder, or shards"))
    return sorted(each.name for each in path.iterdir() if each.is_dir() and not each.name.startswith("."))


def _check(path: Path, found: Sequence[str], classes: Sequence[str]) -> None:
    if not found:
        raise DataError(_empty(path, "one folder for each class in it"))
    if unknown := sorted(set(found) - set(classes)):
        what = f"classes that nobody named: {', '.join(unknown[:10])}"
        raise DataError(Problem(id="data.classes", where=str(path), what=what, wanted=f"some of {', '.join(classes)}"))


def _files(path: Path, name: str, label: int, suffixes: Sequence[str]) -> list[Entry]:
    """Found by one look at the folder: a call for each file costs minutes on a network's file system."""
    with os.scandir(path / name) as entries:
        found = [each for each in entries if not each.name.startswith(".")]
    if deeper := next((each.name for each in found if each.is_dir()), ""):
        what = "a folder inside a class, whose files would be left out"
        wanted = "FOLDER/CLASS/FILE and nothing deeper"
        raise DataError(Problem(id="data.nested", where=str(path / name / deeper), what=what, wanted=wanted))
    kept = [each for each in found if each.name.lower().endswith(tuple(suffixes)) and each.is_file()]
    return sorted(((f"{name}/{each.name}", label, each.stat()) for each in kept), key=lambda entry: entry[0])


def _empty(path: Path, wanted: str) -> Problem:
    return Problem(id="data.no-files", where=str(path), what="there is nothing to load here", wanted=wanted)

"""The two parts of a job's labelled samples: which source lies at a path, and what is left out of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trackbed import folders
from trackbed.data.config import ImageConfig, SampleConfig
from trackbed.data.samples.corrupt import Bad, Fault, Policy, healthy, image_fault, scan, sound_fault
from trackbed.data.samples.settings import work
from trackbed.data.samples.sources import NAMED, Sample, Source, digest, unreadable
from trackbed.data.samples.sources.folder import IMAGES, SOUNDS, Folder
from trackbed.data.samples.sources.tfrecord import TFRecord
from trackbed.data.samples.sources.webdataset import WebDataset
from trackbed.errors import DataError, Problem
from trackbed.job import data_path
from trackbed.wheels import Progress


@dataclass(frozen=True)
class Parts:
    """The two parts of a set, without the samples that cannot be read, and what was left out of each."""

    train: Source
    heldout: Source
    classes: tuple[str, ...]
    left_out: dict[str, list[Bad]]


def open_parts(config: SampleConfig, progress: Progress | None = None) -> Parts:
    """Find the samples of both parts and leave out those that a scan finds bad.

    DataError by policy (`data.on_corrupt`), and when the classes are not such as can be told apart. A scan is kept in
    the cache, so that the ranks of a job, and its next runs, do not scan again.
    """
    sources: dict[str, Source] = {}
    left_out: dict[str, list[Bad]] = {}
    classes = tuple(config.classes)
    for part in ("train", "heldout"):
        opened, classes = _open(data_path(getattr(config, part)), config, classes)
        sources[part], left_out[part] = _healthy(opened, config, progress)
    return Parts(sources["train"], sources["heldout"], classes, left_out)


def look(path: Path, workers: int, progress: Progress) -> tuple[int, list[Problem]]:
    """How many samples lie at a path, and what is wrong with those that cannot be used. DataError when it has none.

    Taken for sounds where not one of them is a picture.
    """
    total, bad = _looked(path, IMAGES, image_fault, workers, progress)
    if len(bad) == total:
        heard, unheard = _looked(path, SOUNDS, sound_fault, workers, progress)
        total, bad = (heard, unheard) if len(unheard) < heard or not total else (total, bad)
    if not total:
        wanted = f"FOLDER/CLASS/FILE with one of {', '.join((*IMAGES, *SOUNDS))}, or shards"
        raise DataError(Problem(id="data.no-files", where=str(path), what="there is nothing to load", wanted=wanted))
    return total, [Problem(id="data.corrupt", where=each.where, what=each.reason) for each in bad]


def _looked(
    path: Path, suffixes: tuple[str, ...], fault: Fault, workers: int, progress: Progress
) -> tuple[int, list[Bad]]:
    """Samples of one kind, and those of them that cannot be used; (0, []) when there is none."""
    try:
        source = _source(path, suffixes, ())
    except DataError as error:
        if error.problems[0].id != "data.no-files":
            raise
        return 0, []
    return len(source), scan(source, fault, workers=workers, progress=_counted(progress, len(source)))


def count(parts: Parts, config: SampleConfig) -> dict[str, dict[str, Any]]:
    """What the parts come to, in the words of a plan; the first 20 samples that are left out are named."""
    return {
        part: {
            "file": getattr(config, part),
            "samples": len(source),
            "rows": len(source),
            "classes": len(parts.classes),
            "dropped": len(parts.left_out[part]),
            "dropped_samples": [f"{bad.where}: {bad.reason}" for bad in parts.left_out[part][:NAMED]],
        }
        for part, source in (("train", parts.train), ("heldout", parts.heldout))
    }


def _open(path: Path, config: SampleConfig, classes: tuple[str, ...]) -> tuple[Source, tuple[str, ...]]:
    """The source behind a path, and the names of its classes."""
    source = _source(path, IMAGES if isinstance(config, ImageConfig) else SOUNDS, classes)
    classes = classes or tuple(getattr(source, "classes", ()))
    if not classes:
        what = "shards hold the numbers of classes, not their names"
        remedy = "name the classes in the job, in the order of their numbers: data.classes: [cat, dog]"
        raise DataError(Problem(id="data.classes", where=str(path), what=what, remedy=remedy))
    if len(classes) < 2:
        what = f"there is one class, {classes[0]}: nothing to tell apart"
        raise DataError(Problem(id="data.classes", where=str(path), what=what, wanted="two classes or more"))
    return Classified(source, len(classes)), classes


class Classified:
    """A source whose class numbers are all below `classes`: another is a sample that cannot be used."""

    def __init__(self, source: Source, classes: int) -> None:
        self._source, self._classes = source, classes
        self.digest, self.stamp = source.digest, digest([source.stamp, str(classes)])

    def __len__(self) -> int:
        return len(self._source)

    def read(self, number: int) -> Sample:
        sample = self._source.read(number)
        if not 0 <= sample.label < self._classes:
            what = f"its class is {sample.label}, and {self._classes} classes are named, counted from 0"
            raise DataError(unreadable(self.where(number), what))
        return sample

    def where(self, number: int) -> str:
        return self._source.where(number)


def _source(path: Path, suffixes: tuple[str, ...], classes: tuple[str, ...]) -> Source:
    """What lies at a path: tar shards, TFRecord shards, or class folders."""
    names = {file.suffix for file in ([path] if path.is_file() else path.glob("*"))}
    if ".tar" in names:
        return WebDataset(path, data=[suffix.removeprefix(".") for suffix in suffixes])
    if names & {".tfrecord", ".tfrecords"}:
        return TFRecord(path)
    found = Folder(path, suffixes=suffixes, classes=classes or None)
    if found.empty and not classes:
        wanted = f"a file with one of {', '.join(suffixes)}, or no such folder"
        said = [(str(path / name), "the class has no file") for name in found.empty]
        raise DataError([Problem(id="data.empty-class", where=at, what=what, wanted=wanted) for at, what in said])
    return found


def _counted(progress: Progress | None, total: int) -> Callable[[int], None] | None:
    return (lambda done: progress("look at samples", done, total)) if progress else None


def _healthy(source: Source, config: SampleConfig, progress: Progress | None) -> tuple[Source, list[Bad]]:
    kept = folders.data() / "scans" / f"{digest([source.stamp, type(config).__name__])[:32]}.jsonl"
    policy = Policy(config.on_corrupt, config.skip_at_most, kept)
    fault = work(config, train=False).fault
    whole, quarantine = healthy(source, fault, policy, workers=config.workers, progress=_counted(progress, len(source)))
    return whole, quarantine.found

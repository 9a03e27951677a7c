"""The two parts of a job's labelled samples: which source lies at a path, and what is left out of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trackbed import folders
from trackbed.data.config import ImageConfig, SampleConfig
from trackbed.data.samples.corrupt import Policy, healthy, image_fault, scan, sound_fault
from trackbed.data.samples.settings import work
from trackbed.data.samples.sources import NAMED, Source
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
    left_out: dict[str, list[str]]


def open_parts(config: SampleConfig, progress: Progress | None = None) -> Parts:
    """Find the samples of both parts and leave out those that a scan finds bad.

    DataError by policy (`data.on_corrupt`), and when the two parts have different classes. A scan is kept in the cache,
    so that the ranks of a job, and its next runs, do not scan again.
    """
    sources: dict[str, Source] = {}
    left_out: dict[str, list[str]] = {}
    classes = tuple(config.classes)
    for part in ("train", "heldout"):
        opened, classes = _open(data_path(getattr(config, part)), config, classes)
        sources[part], left_out[part] = _healthy(opened, config, progress)
    return Parts(sources["train"], sources["heldout"], classes, left_out)


def look(path: Path, workers: int, progress: Progress) -> tuple[int, list[Problem]]:
    """How many samples lie at a path, and what is wrong with those that cannot be used. DataError when it has none."""
    for suffixes, fault in ((IMAGES, image_fault), (SOUNDS, sound_fault)):
        try:
            source = _source(path, suffixes, ())
        except DataError:
            if suffixes == SOUNDS:
                raise
            continue
        bad = scan(source, fault, workers=workers, progress=_counted(progress, len(source)))
        return len(source), [Problem(id="data.corrupt", where=each.where, what=each.reason) for each in bad]
    raise AssertionError


def count(parts: Parts, config: SampleConfig) -> dict[str, dict[str, Any]]:
    """What the parts come to, in the words of a plan; the first 20 samples that are left out are named."""
    return {
        part: {
            "file": getattr(config, part),
            "samples": len(source),
            "rows": len(source),
            "classes": len(parts.classes),
            "dropped": len(parts.left_out[part]),
            "dropped_samples": [_named(line) for line in parts.left_out[part][:NAMED]],
        }
        for part, source in (("train", parts.train), ("heldout", parts.heldout))
    }


def _named(line: str) -> str:
    bad = json.loads(line)
    return f"{bad['where']}: {bad['reason']}"


def _open(path: Path, config: SampleConfig, classes: tuple[str, ...]) -> tuple[Source, tuple[str, ...]]:
    """The source behind a path, and the names of its classes."""
    source = _source(path, IMAGES if isinstance(config, ImageConfig) else SOUNDS, classes)
    classes = classes or tuple(getattr(source, "classes", ()))
    if not classes:
        what = "shards hold the numbers of classes, not their names"
        remedy = "name the classes in the job, in the order of their numbers: data.classes: [cat, dog]"
        raise DataError(Problem(id="data.classes", where=str(path), what=what, remedy=remedy))
    return source, classes


def _source(path: Path, suffixes: tuple[str, ...], classes: tuple[str, ...]) -> Source:
    """What lies at a path: tar shards, TFRecord shards, or class folders."""
    names = {file.suffix for file in ([path] if path.is_file() else path.glob("*"))}
    if ".tar" in names:
        return WebDataset(path, data=[suffix.removeprefix(".") for suffix in suffixes])
    if names & {".tfrecord", ".tfrecords"}:
        return TFRecord(path)
    return Folder(path, suffixes=suffixes, classes=classes or None)


def _counted(progress: Progress | None, total: int) -> Callable[[int], None] | None:
    return (lambda done: progress("look at samples", done, total)) if progress else None


def _healthy(source: Source, config: SampleConfig, progress: Progress | None) -> tuple[Source, list[str]]:
    kept = folders.cache() / "scans" / f"{source.digest[:32]}.jsonl"
    policy = Policy(config.on_corrupt, config.skip_at_most, kept)
    fault = work(config, train=False).fault
    whole, _ = healthy(source, fault, policy, workers=config.workers, progress=_counted(progress, len(source)))
    return whole, kept.read_text("utf-8").splitlines()

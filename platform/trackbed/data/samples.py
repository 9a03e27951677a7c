"""From a job's `data` section to its pipelines of labelled samples: which source, which work, what is left out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trackbed import folders
from trackbed.data.config import AudioConfig, ImageConfig, SampleConfig
from trackbed.data.corrupt import Policy, Quarantine, healthy, image_fault, scan, sound_fault
from trackbed.data.graph import Work
from trackbed.data.loader import Batch, Loader, Loading
from trackbed.data.order import Share
from trackbed.data.pipeline import State
from trackbed.data.sources import NAMED, Source
from trackbed.data.sources.folder import IMAGES, SOUNDS, Folder
from trackbed.data.sources.tfrecord import TFRecord
from trackbed.data.sources.webdataset import WebDataset
from trackbed.errors import DataError, Problem
from trackbed.job import data_path
from trackbed.wheels import Progress

# Every other size is cut from a picture an eighth larger, as evaluations of ImageNet do: 224 from 256.
RESIZE = 8 / 7


@dataclass(frozen=True)
class Parts:
    """The two parts of a set, without the samples that cannot be read, and what was left out of each."""

    train: Source
    heldout: Source
    classes: tuple[str, ...]
    left_out: dict[str, list[str]]


@dataclass(frozen=True)
class Step:
    """One rank's forward passes in an optimizer step, and how many samples all ranks take."""

    batches: list[Batch]
    supervised_everywhere: int


class Training:
    """A loader's steps as the loop takes them; keeps `trackbed.data.pipeline`."""

    def __init__(self, loader: Loader, share: Share) -> None:
        self._loader, self._everywhere = loader, share.step

    def __next__(self) -> Step:
        return Step(next(self._loader), self._everywhere)

    def state(self) -> State:
        return self._loader.state()

    def restore(self, state: State) -> None:
        self._loader.restore(state)

    def close(self) -> None:
        self._loader.close()


class Evaluation:
    """Every held-out sample once, each time it is gone through; all ranks take equally many batches."""

    def __init__(self, source: Source, config: SampleConfig, share: Share) -> None:
        self._source, self._config, self._share = source, config, Share(share.rank, share.world, share.rows)

    def __iter__(self) -> Iterator[Batch]:
        loader = Loader(self._source, work(self._config, train=False), self._share, _loading(self._config), once=True)
        try:
            for batches in loader:
                yield from batches
        finally:
            loader.close()


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


def training(parts: Parts, config: SampleConfig, share: Share, quarantine: Path) -> Training:
    """The endless stream of steps of one rank. What fails at a step is listed beside `quarantine`, by rank."""
    policy = Policy(config.on_corrupt, config.skip_at_most, quarantine)
    late = Quarantine(policy, len(parts.train), rank=share.rank)
    loader = Loader(parts.train, work(config, train=True), share, _loading(config), quarantine=late)
    return Training(loader, share)


def shape(config: SampleConfig) -> tuple[int, int, int]:
    """Channels, height and width of what the model sees."""
    if isinstance(config, ImageConfig):
        return 3, config.size, config.size
    assert isinstance(config, AudioConfig)
    settings = audio_settings(config)
    # A window is centred on every hop, the first on the first sample.
    return 1, config.mels, 1 + settings.samples // round(settings.hop * settings.sample_rate)


def work(config: SampleConfig, *, train: bool) -> Work:
    """What DALI does with a sample of this job."""
    if isinstance(config, ImageConfig):
        return _images(config, train=train)
    assert isinstance(config, AudioConfig)
    from trackbed.data.audio import Audio

    return Audio(audio_settings(config), train=train, gpu=torch.cuda.is_available())


def _images(config: ImageConfig, *, train: bool) -> Work:
    from trackbed.data.images import Images, ImageSettings

    gpu = torch.cuda.is_available()
    settings = ImageSettings(
        size=config.size,
        resize=config.resize or round(config.size * RESIZE),
        mean=_colours(config.mean),
        std=_colours(config.std),
        dtype=config.dtype,
        layout=config.layout,
        area=(config.crop_area, 1.0),
        flip=0.5 if config.flip else 0.0,
        decode=config.decode if config.decode != "auto" else ("dali" if gpu else "fast"),
    )
    return Images(settings, train=train, gpu=gpu)


def audio_settings(config: AudioConfig) -> Any:
    from trackbed.data.audio import AudioSettings

    return AudioSettings(sample_rate=config.sample_rate, seconds=config.seconds, mels=config.mels)


def _colours(values: list[float]) -> tuple[float, float, float]:
    red, green, blue = values
    return red, green, blue


def _loading(config: SampleConfig) -> Loading:
    device = torch.cuda.current_device() if torch.cuda.is_available() else None
    return Loading(seed=config.seed, window=config.window, workers=config.workers, device=device)


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

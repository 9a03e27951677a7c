"""Labelled pictures and sounds looked at: what a set comes to, and samples before and after their augmentation."""

from __future__ import annotations

import base64
import hashlib
import io
import wave
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from trackbed.data.chat.fingerprint import Progress
from trackbed.data.chat.lines import named
from trackbed.data.config import AudioConfig, ImageConfig, SampleConfig
from trackbed.data.inspection.preview import Choice, spread
from trackbed.data.inspection.repeats import NAMED, Finding, Group, Pair, first_equal, in_other
from trackbed.data.inspection.stats import described
from trackbed.data.order import uniform
from trackbed.data.samples import decode
from trackbed.data.samples.corrupt import Bad
from trackbed.data.samples.graph import Array, Drawn, Graph, Undecodable, Work
from trackbed.data.samples.jpeg import SizeError
from trackbed.data.samples.parts import Parts
from trackbed.data.samples.settings import work
from trackbed.data.samples.sources import Source
from trackbed.errors import DataError, Problem

EVERY = 500
SIZES = 10
SIDE = 256  # pixels, the longer side of an original on the page
STEPS = 1024  # widths in bytes that are told apart, in all

Json = dict[str, Any]
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Read:
    """A part, read once: the first 64 bits of each sample's SHA-256, its class and bytes, and how large they are."""

    source: Source
    keys: npt.NDArray[np.uint64]
    labels: Numbers
    bytes: Numbers
    sizes: Counter[str]


@dataclass(frozen=True)
class Seen:
    """A sample on the page: pictures by what they are of, each as a data URI."""

    where: str
    label: str
    pictures: dict[str, str]


def stats(parts: Parts, progress: Progress) -> Json:
    """Samples of each class, sizes, what was left out, and exact duplicates, in JSON values."""
    reads = {name: _read(getattr(parts, name), name, progress) for name in ("train", "heldout")}
    figures = {name: _part(each, parts.classes, parts.left_out[name]) for name, each in reads.items()}
    found = _leaks(reads["train"], reads["heldout"], parts.classes)
    for name, each in reads.items():
        found += _repeated(name, each, parts.classes)
    return {"parts": figures, "findings": [asdict(each) for each in found if each.count]}


def _read(source: Source, name: str, progress: Progress) -> Read:
    keys, labels = np.zeros(len(source), np.uint64), np.zeros(len(source), np.int64)
    lengths, sizes = np.zeros(len(source), np.int64), Counter[str]()
    for number in range(len(source)):
        sample = source.read(number)
        keys[number] = int.from_bytes(hashlib.sha256(sample.data).digest()[:8], "little")
        labels[number], lengths[number] = sample.label, len(sample.data)
        sizes[_size(sample.data)] += 1
        if number % EVERY == 0 or number + 1 == len(source):
            progress(f"read {name}", number + 1, len(source))
    return Read(source, keys, labels, lengths, sizes)


def _size(data: bytes) -> str:
    """Pixels of a picture, or rate and length of a WAV file, by its header."""
    try:
        height, width = decode.size(data)
        return f"{width} x {height}"
    except SizeError:
        pass
    try:
        with wave.open(io.BytesIO(data)) as sound:
            rate = sound.getframerate()
            return f"{rate} Hz, {sound.getnframes() / rate:.1f} s"
    except (wave.Error, EOFError):
        return "another format"


def _part(each: Read, classes: Sequence[str], left_out: Sequence[Bad]) -> Json:
    counts = np.bincount(each.labels, minlength=len(classes))
    return {
        "samples": len(each.labels),
        "classes": [{"name": _name(classes, label), "samples": int(count)} for label, count in enumerate(counts)],
        "bytes": _described(each.bytes),
        "sizes": [{"size": size, "samples": count} for size, count in each.sizes.most_common(SIZES)],
        "left_out": [each.line for each in left_out],
    }


def _described(values: Numbers) -> Json:
    """As lengths are, in steps that keep large files from needing a count for every byte."""
    step = max(1, -(-int(values.max()) // STEPS))
    found = described(np.bincount(values // step))
    exact = {"min": int(values.min()), "mean": round(float(values.mean()), 2), "max": int(values.max())}
    rough = {name: found[name] * step for name in ("median", "p95", "p99")}
    return {**exact, **rough}


def _name(classes: Sequence[str], label: int) -> str:
    return classes[label] if label < len(classes) else str(label)


def _leaks(train: Read, heldout: Read, classes: Sequence[str]) -> list[Finding]:
    other = in_other(heldout.keys, train.keys)
    there = np.flatnonzero(other >= 0)
    shown = [
        Pair(heldout.source.where(int(mine)), train.source.where(int(other[mine])), 1.0,
             _name(classes, int(heldout.labels[mine])))
        for mine in there[:NAMED]
    ]  # fmt: skip
    return [
        Finding(
            id="leak.bytes", part="heldout", count=len(there), named=shown,
            what=f"{len(there)} of {len(other)} held-out samples are in train as well, byte for byte",
            means="the held-out accuracy measures memory, not learning",
            remedy="delete these files from one of the two parts",
        )
    ]  # fmt: skip


def _repeated(name: str, each: Read, classes: Sequence[str]) -> list[Finding]:
    first = first_equal(each.keys)
    again = np.flatnonzero(first != np.arange(len(first)))
    torn = again[each.labels[again] != each.labels[first[again]]]
    often = Counter(first[again].tolist()).most_common(NAMED)
    groups = [Group(each.source.where(at), count + 1, _name(classes, int(each.labels[at]))) for at, count in often]
    return [
        Finding(
            id="repeat.exact", part=name, count=len(again), named=_pairs(each, again, first, classes), groups=groups,
            what=f"{len(again)} of {len(first)} samples of {name} repeat an earlier one, byte for byte",
            means="they count more than the others and are learnt by heart first",
            remedy="delete the later files, unless the weight is meant",
        ),
        Finding(
            id="repeat.label", part=name, count=len(torn), named=_pairs(each, torn, first, classes),
            what=f"{len(torn)} of {len(first)} samples of {name} have another class than the same bytes have before",
            means="one of the two labels is wrong, and the model is taught both",
            remedy="look at the named pairs and keep the right one",
        ),
    ]  # fmt: skip


def _pairs(each: Read, numbers: Numbers, first: Numbers, classes: Sequence[str]) -> list[Pair]:
    return [
        Pair(each.source.where(int(number)), each.source.where(int(first[number])), 1.0,
             _name(classes, int(each.labels[number])))
        for number in numbers[:NAMED]
    ]  # fmt: skip


def preview(parts: Parts, config: SampleConfig, choice: Choice) -> list[Seen]:
    """Samples as they lie there, as the first epoch trains on them, and as they are evaluated."""
    if choice.line:
        raise DataError(named("data.no-lines", "", "files of samples have no lines", remedy="use --samples N"))
    source: Source = getattr(parts, choice.part)
    numbers = spread(len(source), choice.samples)
    made = {
        "training": _worked(source, numbers, work(config, train=True), config),
        "evaluation": _worked(source, numbers, work(config, train=False), config),
    }
    seen = []
    for index, number in enumerate(numbers):
        sample = source.read(number)
        original = {"original": _original(sample.data, source.where(number))} if isinstance(config, ImageConfig) else {}
        pictures = {what: _picture(arrays[index], config) for what, arrays in made.items()}
        seen.append(Seen(source.where(number), _name(parts.classes, sample.label), original | pictures))
    return seen


def _worked(source: Source, numbers: Sequence[int], task: Work, config: SampleConfig) -> npt.NDArray[np.float32]:
    """What the model sees of these samples in the first epoch, float32 [samples, ...]. DataError names what cannot be
    decoded."""
    device = torch.cuda.current_device() if torch.cuda.is_available() else None
    places = np.array(numbers, dtype=np.int64)
    drawn = uniform(places, np.zeros_like(places), config.seed, task.draws)
    rows = [_row(source, number, task, mine) for number, mine in zip(numbers, drawn, strict=True)]
    graph = Graph(task, rows=len(numbers), workers=1, device=device)
    try:
        # Copied: what DALI gave is its own once the graph is closed.
        made: npt.NDArray[np.float32] = graph.run(rows)[0].float().cpu().clone().numpy()
        return made
    except Undecodable as error:
        faults = [_broken(source.where(numbers[row]), fault) for row, fault in error.faults.items()]
        raise DataError(faults) from error
    finally:
        graph.close()


def _row(source: Source, number: int, task: Work, drawn: Drawn) -> tuple[Array, ...]:
    try:
        return task.sample(source.read(number).data, drawn)
    except ValueError as error:
        raise DataError(_broken(source.where(number), str(error))) from error


def _broken(where: str, what: str) -> Problem:
    return named("data.corrupt", where, what, wanted="samples that can all be read", remedy="mend or delete it")


def _original(data: bytes, where: str) -> str:
    try:
        with Image.open(io.BytesIO(data)) as opened:
            picture = opened.convert("RGB")
    except OSError as error:
        raise DataError(_broken(where, str(error))) from error
    picture.thumbnail((SIDE, SIDE))
    return _uri(picture)


def _picture(array: npt.NDArray[np.float32], config: SampleConfig) -> str:
    """One sample of the model's input as a picture: its colours restored, or a spectrogram with low tones below."""
    if isinstance(config, ImageConfig):
        pixels = array.transpose(1, 2, 0) if config.layout == "CHW" else array
        if config.dtype != "uint8":
            pixels = 255 * (pixels * np.array(config.std) + np.array(config.mean))
        return _uri(Image.fromarray(np.clip(np.rint(pixels), 0, 255).astype(np.uint8)))
    assert isinstance(config, AudioConfig)
    loud = array[0, ::-1]
    span = max(float(loud.max() - loud.min()), 1e-6)
    return _uri(Image.fromarray((255 * (loud - loud.min()) / span).astype(np.uint8)))


def _uri(picture: Image.Image) -> str:
    file = io.BytesIO()
    picture.save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"

"""Samples that cannot be used: found before the order is made, or at a step, and failed on or skipped by policy.

A scan looks at the structure of every sample: is it empty, cut off, something else, CMYK, too large. Damage in the
middle of a file shows only when it is decoded; then the row is zeros and not valid, on every rank at the same step, so
that all ranks still take equally many steps.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from PIL import Image

from trackbed import folders
from trackbed.data.samples import decode, jpeg
from trackbed.data.samples.sources import NAMED, Source, Subset
from trackbed.errors import DataError, Problem

Fault = Callable[[bytes], str]
Progress = Callable[[int], None]

CMYK = 4
# Samples that one task of the scan looks at: a task for each costs more than the look.
CHUNK = 64
SOUNDS = (b"RIFF", b"fLaC", b"OggS")


@dataclass(frozen=True)
class Bad:
    """A sample that cannot be used: its number in the source, where it lies, why, and the hash of what was read."""

    number: int
    where: str
    reason: str
    sha256: str = ""

    @property
    def line(self) -> str:
        return json.dumps({"where": self.where, "reason": self.reason, "sha256": self.sha256}, ensure_ascii=False)


@dataclass(frozen=True)
class Policy:
    """What is done with a sample that cannot be used."""

    on_corrupt: Literal["fail", "skip"] = "fail"
    skip_at_most: float = 0.01
    """Share of the set; above it something else is wrong than a sample."""
    quarantine: Path | None = None
    """JSONL that names each skipped sample. What a step finds goes beside it, into one file for each rank."""


class Quarantine:
    """The skipped samples of one rank, of `total` with those that the scan found, which are in no order any more.

    Under `skip` the list of an earlier attempt of the run is gone on with: what it names counts still.
    """

    def __init__(self, policy: Policy, total: int, found: Sequence[Bad] = (), *, rank: int = 0) -> None:
        self._policy, self._total, self.found = policy, total, list(found)
        self.late: dict[str, Bad] = {}
        """By place: samples that failed at a step."""
        path = policy.quarantine
        self._path = path.with_suffix(f".rank{rank}{path.suffix}") if path else None
        before = read_list(self._path) if self._path and policy.on_corrupt == "skip" else []
        self._earlier = {bad.where: bad for bad in before}

    def add(self, found: Sequence[Bad]) -> None:
        """Skip samples, or raise DataError: under `fail`, and when they are too many."""
        late = self.late | {bad.where: bad for bad in found}
        if len(late) == len(self.late):
            return
        named = self._earlier | late
        if self._path:
            write_list(self._path, named.values())
        decide(self._policy, list(named.values()), total=self._total, before=len(self.found))
        # Only what may be skipped: one that fails the run fails it again when it is tried again.
        self.late = late


def healthy(
    source: Source, fault: Fault, policy: Policy, *, workers: int = 2, rank: int = 0, progress: Progress | None = None
) -> tuple[Source, Quarantine]:
    """The source without the samples that a scan finds bad. DataError by policy, which names them.

    A list that was written for the same files is read instead of scanning again; one that is damaged or cannot be
    written costs time and nothing else.
    """
    bad = _known(source, policy)
    if bad is None:
        bad = scan(source, fault, workers=workers, progress=progress)
        _record(source, policy, bad)
    decide(policy, bad, total=len(source))
    left_out = {each.number for each in bad}
    kept = [number for number in range(len(source)) if number not in left_out]
    return Subset(source, kept) if bad else source, Quarantine(policy, len(source), bad, rank=rank)


def scan(source: Source, fault: Fault, *, workers: int = 2, progress: Progress | None = None) -> list[Bad]:
    """Every bad sample, by number. progress is called with the number of samples looked at so far."""

    def look(start: int) -> list[Bad]:
        numbers = range(start, min(start + CHUNK, len(source)))
        return [bad for number in numbers if (bad := _look(source, number, fault))]

    found: list[Bad] = []
    with ThreadPoolExecutor(workers, thread_name_prefix="trackbed-scan") as pool:
        starts = range(0, len(source), CHUNK)
        for start, bad in zip(starts, pool.map(look, starts), strict=True):
            found += bad
            if progress:
                progress(min(start + CHUNK, len(source)))
    return found


def decide(policy: Policy, bad: Sequence[Bad], *, total: int, before: int = 0) -> None:
    """Nothing when these may be skipped; DataError that names the first of them otherwise."""
    count = len(bad) + before
    if not bad or (policy.on_corrupt == "skip" and count <= policy.skip_at_most * total):
        return
    skip = policy.on_corrupt == "skip"
    limit = f"at most {policy.skip_at_most:.2%} of {total} samples" if skip else "samples that can all be read"
    remedy = (
        "mend or delete them" if skip else "mend or delete them, or let them be skipped and listed: on_corrupt: skip"
    )
    problems = [
        Problem(id="data.corrupt", where=each.where, what=each.reason, wanted=limit, remedy=remedy)
        for each in bad[:NAMED]
    ]
    if count > len(problems) or skip:
        what = f"{count} of {total} samples cannot be used"
        problems.append(Problem(id="data.corrupt-count", what=what, wanted=limit, remedy=remedy))
    raise DataError(problems)


def image_fault(data: bytes) -> str:
    """What is wrong with an encoded image, by its structure; its pixels are not decoded."""
    if not data:
        return "it is empty"
    if not data.startswith(jpeg.START):
        return _other_fault(data)
    try:
        found = jpeg.header(data)
        decode.size(data)
    except jpeg.SizeError as error:
        return str(error)
    if found.components == CMYK:
        return "its colours are CMYK: each decoder makes other colours of them"
    # Only after the first scan begins: a thumbnail in the header has an end marker of its own.
    return "" if data.find(jpeg.END, found.scan) >= 0 else "it is cut off: it has no end marker"


def sound_fault(data: bytes) -> str:
    """What is wrong with an encoded sound (WAV, FLAC, Ogg), by its header."""
    if not data:
        return "it is empty"
    if not data.startswith(SOUNDS):
        return f"it begins with 0x{data[:4].hex()}: no sound format that is known here"
    if not data.startswith(b"RIFF"):
        return ""
    if len(data) < int.from_bytes(data[4:8], "little") + 8:
        return "it is cut off: shorter than its header says"
    return "" if _wave_bytes(data) else "it holds no sound"


def _wave_bytes(data: bytes) -> int:
    """How long the chunk with the samples of a WAV is; chunks begin at even bytes."""
    position = 12
    while position + 8 <= len(data):
        size = int.from_bytes(data[position + 4 : position + 8], "little")
        if data[position : position + 4] == b"data":
            return size
        position += 8 + size + size % 2
    return 0


def _other_fault(data: bytes) -> str:
    try:
        decode.size(data)
        with Image.open(io.BytesIO(data)) as opened:
            if opened.mode in decode.WITHOUT_SCALE:
                return f"its pixels are of the kind {opened.mode}, which has no white: save it with 8 or 16 bits"
            opened.verify()
    except jpeg.SizeError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - PIL's decoders raise what they like on broken files
        return f"it is damaged: {' '.join(str(error).split()) or type(error).__name__}"
    return ""


def _look(source: Source, number: int, fault: Fault) -> Bad | None:
    try:
        data = source.read(number).data
    except DataError as error:
        return Bad(number, source.where(number), error.problems[0].what)
    reason = fault(data)
    return Bad(number, source.where(number), reason, hashlib.sha256(data).hexdigest()) if reason else None


def read_list(path: Path) -> list[Bad]:
    """What a list names, without their numbers; nothing when it is not there or damaged."""
    try:
        lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        return [Bad(-1, str(line["where"]), str(line["reason"]), str(line["sha256"])) for line in lines]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def write_list(path: Path, bad: Iterable[Bad]) -> None:
    """Raises OSError."""
    folders.replace(path, "".join(f"{each.line}\n" for each in bad))


def _known(source: Source, policy: Policy) -> list[Bad] | None:
    """What a scan of the same files found; None when there was none, or its list is damaged."""
    if policy.quarantine is None:
        return None
    try:
        mark = json.loads(_scanned(policy.quarantine).read_text("utf-8"))
        bad = read_list(policy.quarantine)
        numbered = [replace(each, number=number) for number, each in zip(mark["numbers"], bad, strict=True)]
        return numbered if mark["stamp"] == source.stamp else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _record(source: Source, policy: Policy, bad: Sequence[Bad]) -> None:
    if policy.quarantine is None:
        return
    mark = {"stamp": source.stamp, "numbers": [each.number for each in bad]}
    with contextlib.suppress(OSError):
        policy.quarantine.parent.mkdir(parents=True, exist_ok=True)
        write_list(policy.quarantine, bad)
        folders.replace(_scanned(policy.quarantine), json.dumps(mark))


def _scanned(path: Path) -> Path:
    """Which files a quarantine list was made of; written after it, so that a list without it is made again."""
    return path.with_suffix(".scanned.json")

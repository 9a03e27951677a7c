"""What JSONL files hold, by hash: cut at line borders into parts, each hashed and its lines counted, in threads.

A file's entry is kept in an index, so that a second start answers without reading the data. An entry is believed only
when size, inode and both times are the same and the file had been left alone for 2 s before it was read: a write within
one tick of a file system's clock changes no time.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

from trackbed import folders
from trackbed.data.chat.lines import named
from trackbed.errors import DataError, Problem

Progress = Callable[[str, int, int], None]
"""Called with (stage, bytes done, bytes in all)."""

MIB = 1 << 20
LARGEST_PART = 8 * MIB
PARTS_OF_A_SMALL_FILE = 64
SETTLED_NS = 2_000_000_000


@dataclass(frozen=True)
class Part:
    """Whole lines of a file: bytes start to end, and how many lines begin in them."""

    start: int
    end: int
    lines: int
    sha256: str


@dataclass(frozen=True)
class File:
    """A JSONL file in parts, in order."""

    path: Path
    parts: tuple[Part, ...]

    @property
    def size(self) -> int:
        return self.parts[-1].end if self.parts else 0


def jsonl_files(path: Path) -> list[Path]:
    """The file itself, the *.jsonl files of a folder, or those that a pattern such as shards/train-*.jsonl names; by
    name. DataError when there is none."""
    if path.is_dir():
        found = sorted(path.glob("*.jsonl"))
    elif not path.exists() and set("*?[") & set(path.name):
        found = sorted(path.parent.glob(path.name))
    else:
        return [path]
    if not found:
        what = "no file here is named *.jsonl" if path.is_dir() else "no file has a name like this"
        raise DataError(named("data.missing-file", str(path), what, wanted="JSONL files of conversations"))
    return found


def fingerprint(paths: Sequence[Path], part_bytes: int, progress: Progress) -> list[File]:
    """Each file in parts of about `part_bytes` (0: by its size). DataError for files that cannot be read."""
    problems: list[Problem] = []
    known: dict[Path, File | None] = {}
    for path in paths:
        try:
            known[path] = _remembered(path, part_bytes)
        except OSError as error:
            problems.append(unreadable(path, error))
    if problems:
        raise DataError(problems)
    fresh = [path for path, file in known.items() if not file]
    known.update({file.path: file for file in _hash_files(fresh, part_bytes, progress)})
    return [file for path in paths if (file := known[path])]


def digest(files: Sequence[File]) -> str:
    """One hash of what all files hold, whatever their names."""
    listed = [[[part.end - part.start, part.sha256] for part in file.parts] for file in files]
    return hashlib.sha256(json.dumps(listed).encode()).hexdigest()


def unreadable(path: Path, error: OSError) -> Problem:
    return named(
        "data.missing-file",
        str(path),
        f"the data file cannot be read: {error.strerror}",
        wanted="a JSONL file of conversations",
        remedy="correct the path in the job's data section",
    )


def changed(path: Path) -> DataError:
    what, remedy = "the file was written to while it was read", "wait until it is whole, then start again"
    return DataError(named("data.changed", str(path), what, remedy=remedy))


def _hash_files(paths: list[Path], part_bytes: int, progress: Progress) -> list[File]:
    before = {path: (_identity(path), time.time_ns()) for path in paths}
    cuts = {path: _cut(path, part_bytes) for path in paths}
    hashed = _hash_parts([(path, *cut) for path in paths for cut in cuts[path]], progress)
    files = [File(path, tuple(hashed[path, start] for start, _ in cuts[path])) for path in paths]
    for file in files:
        identity, began = before[file.path]
        if _identity(file.path) != identity:
            raise changed(file.path)
        _remember(file, part_bytes, identity, began)
    return files


def _cut(path: Path, part_bytes: int) -> list[tuple[int, int]]:
    """Where parts begin and end: behind the first line that ends after `part_bytes` bytes."""
    size = path.stat().st_size
    wanted = part_bytes or min(LARGEST_PART, max(MIB, size // PARTS_OF_A_SMALL_FILE))
    cuts, start = [], 0
    with path.open("rb") as file:
        while start < size:
            file.seek(start + wanted - 1)
            while (read := file.readline(MIB)) and not read.endswith(b"\n"):
                pass
            end = min(file.tell(), size) if read else size
            cuts.append((start, end))
            start = end
    return cuts


def _hash_parts(cuts: list[tuple[Path, int, int]], progress: Progress) -> dict[tuple[Path, int], Part]:
    done, total = 0, sum(end - start for _, start, end in cuts)
    names = sorted({path.name for path, _, _ in cuts})
    stage = f"hash {names[0] if len(names) == 1 else f'{len(names)} files'}" if names else ""
    hashed = {}
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        waiting = {pool.submit(_hash_part, *cut): cut for cut in cuts}
        for future in as_completed(waiting):
            path, start, end = waiting[future]
            hashed[path, start] = future.result()
            done += end - start
            progress(stage, done, total)
    return hashed


def _hash_part(path: Path, start: int, end: int) -> Part:
    sha256, lines, left, last = hashlib.sha256(), 0, end - start, b"\n"
    with path.open("rb") as file:
        file.seek(start)
        while left and (chunk := file.read(min(MIB, left))):
            sha256.update(chunk)
            lines, left, last = lines + chunk.count(b"\n"), left - len(chunk), chunk[-1:]
    if left:
        raise changed(path)
    return Part(start, end, lines + (last != b"\n"), sha256.hexdigest())


def _identity(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns]


def _entry(path: Path, part_bytes: int) -> Path:
    name = hashlib.sha256(f"{path.resolve()}:{part_bytes}".encode()).hexdigest()[:32]
    return folders.data() / "prepared" / "index" / f"{name}.json"


def _remembered(path: Path, part_bytes: int) -> File | None:
    """The file as the index knows it, when that can be believed. Raises OSError when the file cannot be read."""
    with path.open("rb"):
        identity = _identity(path)
    try:
        entry = json.loads(_entry(path, part_bytes).read_bytes())
        if entry["identity"] != identity or entry["began_ns"] - max(identity[2:]) < SETTLED_NS:
            return None
        return File(path, tuple(Part(**part) for part in entry["parts"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _remember(file: File, part_bytes: int, identity: list[int], began_ns: int) -> None:
    entry = {"identity": identity, "began_ns": began_ns, "parts": [asdict(part) for part in file.parts]}
    path = _entry(file.path, part_bytes)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        folders.replace(path, json.dumps(entry))
    except OSError:
        # The index saves time and nothing else: a cache that cannot be written is told about where it matters.
        return

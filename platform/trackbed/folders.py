"""Where things live. Two folders: a cache that can be made again, and the runs, which cannot."""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from trackbed.errors import Problem, TrackbedError


def cache() -> Path:
    """Models and built data sets: $TRACKBED_CACHE, else ~/.cache/trackbed."""
    return Path(os.environ.get("TRACKBED_CACHE") or Path.home() / ".cache" / "trackbed")


def runs() -> Path:
    """One folder a run: $TRACKBED_RUNS, else ./runs."""
    return Path(os.environ.get("TRACKBED_RUNS") or "runs").absolute()


def lock(folder: Path) -> TextIO:
    """Hold a run's folder for this process; the lock ends with it. Raises TrackbedError when another has it."""
    file = (folder / ".lock").open("a", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise TrackbedError(
            Problem(
                id="run.busy",
                where=str(folder),
                what="another attempt of this run is still going on",
                remedy="wait for it, or stop it: it commits a checkpoint before it ends",
            )
        ) from error
    return file


def replace(path: Path, content: str | bytes) -> None:
    """Write a file as a whole, or not at all: nobody ever reads half of it, also after a crash. Raises OSError."""
    partial = _partial(path)
    try:
        with partial.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    sync(path.parent)


def _partial(path: Path) -> Path:
    """A name beside a path that nobody else has. Process numbers would not do: in containers that share a cache, two
    processes often have the same, and so has the next one after one that was killed."""
    return path.with_name(f".{path.name}.partial-{secrets.randbelow(10**15)}")


def sync(folder: Path) -> None:
    """Only with its folder's entry on the disk does a new name outlive a crash."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256(path: Path) -> str:
    """A file's hash as hex digits, read a MiB at a time."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def digest(path: Path) -> str:
    """A file's hash; of a folder, that of the names and sizes of all files in it, which is read in no time."""
    if path.is_file():
        return sha256(path)
    files = sorted(file for file in path.rglob("*") if file.is_file())
    lines = (f"{file.relative_to(path)} {file.stat().st_size}\n" for file in files)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def models() -> Path:
    return cache() / "models"


def data() -> Path:
    return cache() / "data"


@contextmanager
def staged(folder: Path) -> Iterator[Path]:
    """An empty folder beside another, which takes its place as a whole when the work in it is done, or not at all."""
    staging = _partial(folder)
    staging.mkdir(parents=True)
    try:
        yield staging
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(staging, folder)
        sync(folder.parent)
    finally:
        shutil.rmtree(staging, ignore_errors=True)

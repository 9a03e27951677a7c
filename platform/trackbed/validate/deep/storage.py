"""Rates and latencies of the file system that runs are written to."""

from __future__ import annotations

import errno
import mmap
import os
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from trackbed.validate import MIB, Context, amount
from trackbed.validate.deep.compute import rows
from trackbed.validate.machine.mounts import must_answer

BYTES = 512 * MIB
CHUNK = 8 * MIB
# What must be free: the file, and as much again, because a full file system is slow.
ROOM = 2 * BYTES
REPEATS = 5
PAGE = 4096
ROUNDS, READS, ROUND_SECONDS = 5, 1000, 4.0


def measure_write(context: Context) -> dict[str, Any]:
    """MiB/s of writing a file and waiting until it is on the disk."""
    with _room(context.output) as (folder, why):
        if folder is None:
            return {"skip": why}
        runs = [_rate(lambda path: _write(path, BYTES), folder) for _ in range(REPEATS)]
    return {"figures": rows({"write": runs}, "MiB/s"), "how": {"bytes": BYTES}}


def measure_read(context: Context) -> dict[str, Any]:
    """MiB/s of reading a file that is not in memory."""
    with _room(context.output) as (folder, why):
        if folder is None:
            return {"skip": why}
        path = folder / "data"
        _write(path, BYTES)
        runs = [_read(path) for _ in range(REPEATS)]
    return {"figures": rows({"read": runs}, "MiB/s"), "how": {"bytes": BYTES}}


def measure_small_reads(context: Context) -> dict[str, Any]:
    """Milliseconds of reading 4 KiB somewhere in a file that is not in memory: 50 and 99 of 100 wait less."""
    with _room(context.output) as (folder, why):
        if folder is None:
            return {"skip": why}
        path = folder / "data"
        _write(path, BYTES)
        direct, rounds = _small_reads(path)
    runs = {"p50": [quantile(each, 0.50) for each in rounds], "p99": [quantile(each, 0.99) for each in rounds]}
    how = {"direct": direct, "reads": sum(map(len, rounds))}
    return {"figures": rows(runs, "ms", "lower"), "how": how}


def quantile(values: list[float], share: float) -> float:
    """The smallest value that this share of all does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@contextmanager
def _room(runs: Path) -> Iterator[tuple[Path | None, str]]:
    """A folder to measure in, taken away with all in it; or why there is none."""
    must_answer(runs)
    made = [path for path in (runs, *runs.parents) if not path.exists()]
    try:
        runs.mkdir(parents=True, exist_ok=True)
        stat = os.statvfs(runs)
        free = stat.f_frsize * stat.f_bavail
        if free < ROOM:
            yield None, f"{amount(free)} free in {runs}, and measuring needs {amount(ROOM)}"
            return
        with tempfile.TemporaryDirectory(prefix=".trackbed-validate-", dir=runs) as folder:
            yield Path(folder), ""
    except OSError as error:
        yield (
            None,
            f"{runs} cannot be written: {errno.errorcode.get(error.errno or 0, str(error))} (see storage.commit)",
        )
    finally:
        for path in made:
            with suppress(OSError):
                path.rmdir()


def _rate(work: Any, folder: Path) -> float:
    path = folder / "data"
    started = time.perf_counter()
    work(path)
    seconds = time.perf_counter() - started
    path.unlink()
    return BYTES / MIB / seconds


def _write(path: Path, size: int) -> None:
    """A new file of what no file system can compress; when this returns it is on the disk, and not in memory."""
    chunk = os.urandom(CHUNK)
    with path.open("wb", buffering=0) as file:
        for index in range(size // CHUNK):
            file.write(index.to_bytes(8, "big") + chunk[8:])
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _read(path: Path) -> float:
    buffer = bytearray(CHUNK)
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        started = time.perf_counter()
        while file.readinto(buffer):
            pass
        seconds = time.perf_counter() - started
    return BYTES / MIB / seconds


def _small_reads(path: Path) -> tuple[bool, list[list[float]]]:
    """Whether the page cache was passed by, and the milliseconds of each read, a list a round."""
    try:
        handle, direct = os.open(path, os.O_RDONLY | os.O_DIRECT), True
    except OSError:
        # tmpfs and some network file systems have no such reads.
        handle, direct = os.open(path, os.O_RDONLY), False
    try:
        # Memory of a mapping is aligned, as direct reads need it.
        with mmap.mmap(-1, PAGE) as buffer:
            return direct, [_round(handle, buffer, seed) for seed in range(ROUNDS)]
    finally:
        os.close(handle)


def _round(handle: int, buffer: mmap.mmap, seed: int) -> list[float]:
    chosen, found = random.Random(seed), []
    end = time.perf_counter() + ROUND_SECONDS
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    for _ in range(READS):
        where = chosen.randrange(BYTES // PAGE) * PAGE
        started = time.perf_counter()
        os.preadv(handle, [buffer], where)
        now = time.perf_counter()
        found.append(1000 * (now - started))
        if now > end:
            break
    return found

"""storage.leftovers: what killed runs left behind, and `clean`, which takes it away again.

Only what this user owns, only what has one of our names, only what nothing uses, and never in a run that is going on.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shlex
import shutil
import signal
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from trackbed.validate import Check, Context, Outcome, amount, number, unreadable
from trackbed.validate.data.checkpoints import MANIFEST, busy, committed, held, runs_in

SHARED_MEMORY = Path("/dev/shm")
# Nothing younger: a segment that is just being shared, or a run on another node whose lock is not seen here.
LEAST_AGE = 600.0
PARTIAL = re.compile(r"\.(step-\d+|latest)\.partial|\..+\.partial-\d+")
PROBES = re.compile(r"\.trackbed-validate-\d+|\.probe-\d+")
F_SETSIG = 10
SEGMENTS = re.compile(r"(nccl-|torch_)[\w.-]+")


@dataclass(frozen=True, kw_only=True)
class Leftover:
    """One file or folder: its size in bytes, seconds since it last changed, and the run it lies in, if any."""

    path: str
    kind: str
    size: int
    age: float
    run: str = ""


def find(output: Path, shared: Path = SHARED_MEMORY) -> list[Leftover]:
    """Left-overs in the folder for runs (or in the one run that it is) and in shared memory, largest first."""
    runs = runs_in(output)
    found = [*_of(_in_folder(output), ""), *_segments(shared)]
    for run in runs:
        found += [] if busy(run) else _of(_in_run(run), str(run))
    unique = {each.path: each for each in found}
    return sorted(unique.values(), key=lambda each: each.size, reverse=True)


def clean(found: Iterable[Leftover]) -> list[Leftover]:
    """Remove what is still a left-over now, and say what was removed. The run's lock is held meanwhile."""
    removed = []
    for each in found:
        with held(Path(each.run)) if each.run else nullcontext(True) as ours:
            if ours and _still(each) and _remove(Path(each.path)):
                removed.append(each)
    return removed


def measure(context: Context, shared: Path = SHARED_MEMORY) -> list[Leftover]:
    return find(context.output, shared)


def judge(found: object) -> Outcome:
    """They cost space, and shared memory that a later run lacks."""
    if not isinstance(found, list) or any(not isinstance(each, Leftover) for each in found):
        return unreadable("the left-overs", found)
    if any(number(each.size) is None or number(each.age) is None for each in found):
        return unreadable("a left-over", found)
    if not found:
        return Outcome(status="pass", observed="killed runs have left nothing behind")
    first = found[0]
    named = f"{first.path} ({first.kind}, {amount(first.size)}, {_days(first.age)} old)"
    more = f", and {len(found) - 1} more" if len(found) > 1 else ""
    return Outcome(
        status="warn",
        observed=f"{amount(sum(each.size for each in found))} left behind: {named}{more}",
        expected="nothing that a killed run left behind",
        evidence="; ".join(f"{each.path} {each.kind} {each.size} bytes {each.age:.0f} s" for each in found),
        remedy="trackbed validate --clean removes exactly these; or: rm -r "
        + shlex.join(each.path for each in found[:3]),
    )


def _in_folder(output: Path) -> Iterator[tuple[Path, str]]:
    for path in _entries(output):
        if PROBES.fullmatch(path.name):
            yield path, "a killed check's test data"


def _in_run(run: Path) -> Iterator[tuple[Path, str]]:
    checkpoints = run / "checkpoints"
    for path in (*_entries(run), *_entries(checkpoints)):
        if PARTIAL.fullmatch(path.name):
            yield path, "half-written"
        elif PROBES.fullmatch(path.name):
            yield path, "a killed check's test data"
        elif path.parent == checkpoints and re.fullmatch(r"bad-step-\d+", path.name):
            yield path, "a bad checkpoint that a resume passed over"
    for path in committed(run):
        if _half(path):
            yield path, "a checkpoint without a manifest, with a shard of 0 bytes"


def _half(checkpoint: Path) -> bool:
    if (checkpoint / MANIFEST).exists():
        return False
    return any(path.is_file() and not path.stat().st_size for path in checkpoint.rglob("*"))


def _segments(shared: Path) -> list[Leftover]:
    found = list(_of(((path, "shared memory of an ended run") for path in _segment_files(shared)), ""))
    used = _used(shared) if found else set()
    return [each for each in found if each.path not in used and not _open_elsewhere(each.path)]


def _segment_files(shared: Path) -> Iterator[Path]:
    return (path for path in _entries(shared) if SEGMENTS.fullmatch(path.name))


def _used(shared: Path) -> set[str]:
    """Files there that a process we can see has mapped or open; those of other users are not ours to look at."""
    used: set[str] = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            used |= {each.path for each in process.memory_maps() if each.path.startswith(str(shared))}
            used |= {each.path for each in process.open_files() if each.path.startswith(str(shared))}
    return used


def _open_elsewhere(path: str) -> bool:
    """Whether anyone has the file open or mapped, also in a container whose processes are not seen from this one.

    The kernel grants this kind of lease on a file only while nobody else holds it.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        # Should somebody open it at this very moment, the kernel's signal must not end us: this one is ignored.
        fcntl.fcntl(handle, F_SETSIG, signal.SIGURG)
        fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError as error:
        # What has no leases at all is held by what processes say of themselves.
        return error.errno == errno.EAGAIN
    finally:
        os.close(handle)
    return False


def _of(paths: Iterable[tuple[Path, str]], run: str) -> Iterator[Leftover]:
    """The ones that are this user's and old enough; what vanishes meanwhile is none."""
    for path, kind in paths:
        with suppress(OSError):
            if _ours(path) and (age := _age(path)) >= LEAST_AGE:
                yield Leftover(path=str(path), kind=kind, size=_size(path), age=age, run=run)


def _ours(path: Path) -> bool:
    """This user's own file or folder, with everything in it; a link is never ours, whatever it points to."""
    status = path.lstat()
    if status.st_uid != os.getuid() or not (stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)):
        return False
    inside = path.rglob("*") if stat.S_ISDIR(status.st_mode) else ()
    return all(each.lstat().st_uid == os.getuid() for each in inside)


def _age(path: Path) -> float:
    """Seconds since anything in it last changed; 0 for a time in the future."""
    newest = max(each.lstat().st_mtime for each in (path, *path.rglob("*")))
    return max(0.0, time.time() - newest)


def _size(path: Path) -> int:
    return sum(each.lstat().st_size for each in (path, *path.rglob("*")) if stat.S_ISREG(each.lstat().st_mode))


def _still(each: Leftover) -> bool:
    """Whether it is a left-over now, not when it was found: looked for again, the same way."""
    path = Path(each.path)
    if each.run:
        again = _of(_in_run(Path(each.run)), each.run)
    elif SEGMENTS.fullmatch(path.name):
        again = iter(_segments(path.parent))
    else:
        again = _of(_in_folder(path.parent), "")
    return each.path in {found.path for found in again}


def _remove(path: Path) -> bool:
    try:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    except OSError:
        return False
    return True


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _days(seconds: float) -> str:
    return f"{seconds / 86400:.0f} days" if seconds >= 172800 else f"{seconds / 3600:.1f} hours"


CHECKS = (
    Check(
        id="storage.leftovers",
        title="what killed runs left behind",
        measure=measure,
        judge=judge,
        deadline=60,
        child="checkpoints",
        why="A half-written checkpoint keeps a full disk full, and a stale segment in /dev/shm ends the next run with "
        "`unable to allocate shared memory(shm) for file </torch_...>: No space left on device (28)`.",
        rule="Warns when there is any, with path, size and age: half-written or bad checkpoints of runs that are not "
        "going on, test data of killed checks, nccl-* and torch_* segments that no process uses; this user's own and "
        "ten minutes old.",
    ),
)

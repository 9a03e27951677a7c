"""storage.*: whether a checkpoint can be committed in the folder for runs."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from trackbed.validate import MIB, Check, Context, Outcome, number, unreadable

BLOCKS = 64
REMEDIES = {
    "EACCES": "give uid {uid} the folder: chown {uid}:{gid}, or run with --user as its owner",
    "EPERM": "give uid {uid} the folder: chown {uid}:{gid}, or run with --user as its owner",
    "EROFS": "mount a volume there: the file system is read-only",
    "ENOSPC": "free space on that file system, or choose another folder",
    "EDQUOT": "your quota there is used up: free space, or choose another folder",
    "EFBIG": "raise the largest file size (ulimit -f unlimited)",
    "ENOTDIR": "part of that path is a file: choose another folder",
    "EEXIST": "that path is a file: choose another folder",
    "EXDEV": "the folder spans file systems: choose one where a rename is atomic",
    "EIO": "the disk or the network file system fails: look at the kernel log",
    "ESTALE": "the network file system went away: mount it again",
}


@dataclass(frozen=True, kw_only=True)
class Commit:
    """What came of one commit: the hashes, or the step that failed and its errno's name."""

    folder: str
    written: str = ""
    read: str = ""
    seconds: float = 0.0
    step: str = ""
    error: str = ""


def measure_commit(context: Context) -> Commit:
    """Write 64 MiB under a temporary name, fsync, rename, fsync the parent, read it back, leave nothing behind."""
    folder, step = context.output.absolute(), ["create the folder"]
    try:
        with _folder(folder), _cleaned(folder / f".trackbed-validate-{os.getpid()}") as work:
            return _commit(folder, work, step)
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, str(error))
        return Commit(folder=str(folder), step=step[0], error=name)


def judge_commit(commit: Commit) -> Outcome:
    """The same steps a checkpoint takes: when one fails here, the first checkpoint of a run would."""
    expected = f"{BLOCKS} MiB written, renamed and read back the same"
    if commit.error:
        remedy = REMEDIES.get(commit.error, "choose another folder with --output").format(
            uid=os.getuid(), gid=os.getgid()
        )
        observed = f"cannot {commit.step or 'write'} in {commit.folder}: {commit.error}"
        return Outcome(status="fail", observed=observed, expected=expected, remedy=remedy)
    seconds = number(commit.seconds)
    if not commit.written or not seconds:
        return unreadable("what was written", commit.written or None)
    evidence = f"sha256 written {commit.written[:16]}, read {commit.read[:16] or '-'}"
    if commit.read != commit.written:
        observed = f"{commit.folder} gives back other bytes than were written"
        remedy = "do not keep checkpoints there: look at the kernel log and the disk"
        return Outcome(status="fail", observed=observed, expected=expected, evidence=evidence, remedy=remedy)
    observed = f"{BLOCKS} MiB committed in {seconds:.2g} s ({BLOCKS / seconds:.0f} MiB/s)"
    return Outcome(status="pass", observed=observed, expected=expected, evidence=evidence)


def _commit(folder: Path, work: Path, step: list[str]) -> Commit:
    """The steps; `step` holds the name of the one being done, for the error."""
    started = time.monotonic()
    step[0] = "make a folder"
    work.mkdir()
    step[0] = "write"
    written = _write(work / "data.tmp")
    step[0] = "rename"
    (work / "data.tmp").rename(work / "data")
    step[0] = "fsync a folder"
    _sync_folder(work)
    seconds = time.monotonic() - started
    step[0] = "read"
    return Commit(folder=str(folder), written=written, read=_hash(work / "data"), seconds=seconds)


def _write(path: Path) -> str:
    digest, block = hashlib.sha256(), os.urandom(MIB)
    with path.open("wb") as file:
        for index in range(BLOCKS):
            # Each block differs, so that a block written to the wrong place is seen.
            piece = index.to_bytes(8, "big") + block[8:]
            digest.update(piece)
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
        # Else the pages just written would be read from memory, and the disk never asked.
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return digest.hexdigest()


def _hash(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(MIB):
            digest.update(chunk)
    return digest.hexdigest()


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _folder(folder: Path) -> Iterator[None]:
    """The folder, made when there is none; what was made is taken away again: a check leaves no trace."""
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    finally:
        for path in made:
            # Someone else may have put something there meanwhile: then it stays.
            with suppress(OSError):
                path.rmdir()


@contextmanager
def _cleaned(work: Path) -> Iterator[Path]:
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


CHECKS = (
    Check(
        id="storage.commit",
        title="a checkpoint's steps in the folder for runs",
        measure=measure_commit,
        judge=judge_commit,
        deadline=60,
    ),
)

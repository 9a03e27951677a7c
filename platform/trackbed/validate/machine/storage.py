"""storage.*: whether a checkpoint can be committed in the folder for runs."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trackbed import folders
from trackbed.validate import GIB, MIB, Check, Context, Outcome, Status, amount, number, skip, unreadable
from trackbed.validate.machine.filesystems import LEAST_BYTES, LEAST_INODES, existing
from trackbed.validate.machine.mounts import NETWORK, Unreachable, mount_of

BLOCKS = 64
RATE_BLOCKS = 512  # enough that a disk's own cache does not decide
DEFAULT_CHECKPOINT = 2 * GIB  # about what the demo's 135 M parameters come to, with their optimizer state
GIVE = "chown {owner} {folder} on the host, docker run --user with its owner, or Kubernetes securityContext.fsGroup"
REMEDIES = {
    "EACCES": "give uid {uid} the folder: {give}",
    "EPERM": "give uid {uid} the folder: {give}",
    "EROFS": "mount a volume to write to: docker run -v runs:{folder} (not :ro), compose `volumes: [runs:{folder}]`, "
    "Kubernetes volumeMounts without readOnly; or set TRACKBED_RUNS to a folder that can be written",
    "ENOSPC": "free space on that file system, or choose another folder",
    "EDQUOT": "your quota there is used up: free space, or choose another folder",
    "EFBIG": "raise the largest file size (ulimit -f unlimited)",
    "ENOTDIR": "part of that path is a file: choose another folder",
    "EEXIST": "that path is a file: choose another folder",
    "EXDEV": "the folder spans file systems: choose one where a rename is atomic",
    "EIO": "the disk or the network file system fails: look at the kernel log",
    "ETIMEDOUT": "its file system does not answer: look at the kernel log, and mount it again (umount -f -l); or set "
    "TRACKBED_RUNS to another one",
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
    squashed: str = ""
    """The kind of network file system on which root may not write, which says nothing of who runs the jobs."""
    no_room: str = ""
    """Why it was not tried: another check says so, and one cause needs one failure."""


def measure_commit(context: Context) -> Commit:
    """Write 64 MiB under a temporary name, fsync, rename, fsync the parent, read it back, leave nothing behind."""
    folder, step = context.output.absolute(), ["create the folder"]
    try:
        no_room = _no_room(existing(folder))
    except Unreachable as error:
        if error.check != "storage.commit":
            raise
        return Commit(folder=str(folder), step="look", error="ETIMEDOUT")
    if no_room:
        return Commit(folder=str(folder), no_room=no_room)
    try:
        with _folder(folder), _cleaned(folder / f".trackbed-validate-{os.getpid()}") as work:
            return _commit(folder, work, step)
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, str(error))
        return Commit(folder=str(folder), step=step[0], error=name, squashed=_squashed(folder, name))


def judge_commit(commit: object) -> Outcome:
    """The same steps a checkpoint takes: when one fails here, the first checkpoint of a run would."""
    if not isinstance(commit, Commit):
        return unreadable("what was committed", commit)
    if commit.no_room:
        return skip(f"not tried: {commit.no_room}", "free space, then validate again")
    if commit.squashed:
        why = f"root may not write in {commit.folder}: {commit.squashed} takes it for nobody (root_squash)"
        return skip(why, "ask as a user who runs jobs: sudo -u USER trackbed validate --only storage.commit")
    expected = f"{BLOCKS} MiB written, renamed and read back the same"
    if commit.error:
        words = {"uid": os.getuid(), "folder": commit.folder, "give": GIVE.format(owner=_owner(), folder=commit.folder)}
        remedy = REMEDIES.get(commit.error, "choose another folder with --output").format(**words)
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


def _owner() -> str:
    return f"{os.getuid()}:{os.getgid()}"


def _commit(folder: Path, work: Path, step: list[str]) -> Commit:
    """The steps; `step` holds the name of the one being done, for the error."""
    started = time.monotonic()
    partial, final = work / "partial", work / "final"
    step[0] = "make a folder"
    partial.mkdir(parents=True)
    step[0] = "write"
    written = _write(partial / "data")
    step[0] = "fsync a folder"
    folders.sync(partial)
    step[0] = "rename a folder"
    partial.rename(final)
    step[0] = "fsync a folder"
    folders.sync(work)
    seconds = time.monotonic() - started
    step[0] = "read"
    return Commit(folder=str(folder), written=written, read=folders.sha256(final / "data"), seconds=seconds)


def _squashed(folder: Path, error: str) -> str:
    """The kind of a network file system that refuses root, as it does for the root of every client; else empty."""
    mount = mount_of(folder) if os.getuid() == 0 and error in ("EACCES", "EPERM") else None
    return mount.kind if mount and mount.kind in NETWORK else ""


def _no_room(folder: Path) -> str:
    """Why there is certainly no room, in the words of the check that fails for it; empty when there is."""
    stat = os.statvfs(folder)
    free = stat.f_frsize * stat.f_bavail
    if free < LEAST_BYTES:
        return f"{amount(free)} free, see storage.free-space"
    few = stat.f_files and stat.f_favail < LEAST_INODES
    return f"{stat.f_favail} inodes free, see storage.inodes" if few else ""


def measure_rate(context: Context) -> dict[str, Any]:
    """Bytes a second written and synced; a checkpoint's size and the seconds between two, if an expectation says.

    `expect["checkpoint"]` is {"bytes": one checkpoint, "every_seconds": time between two}. None for the rate when
    there is no room for the test.
    """
    wanted = context.expect.get("checkpoint") or {}
    size = {"bytes": wanted.get("bytes", DEFAULT_CHECKPOINT), "every_seconds": wanted.get("every_seconds")}
    folder = context.output.absolute()
    stat = os.statvfs(existing(folder))
    if stat.f_frsize * stat.f_bavail < 2 * RATE_BLOCKS * MIB:
        return {**size, "rate": None, "why": "under 1 GiB is free, see storage.free-space"}
    with _folder(folder), _cleaned(folder / f".trackbed-validate-{os.getpid()}") as work:
        work.mkdir()
        started = time.monotonic()
        _write(work / "data", RATE_BLOCKS)
        return {**size, "rate": RATE_BLOCKS * MIB / (time.monotonic() - started)}


def judge_rate(found: object) -> Outcome:
    """A save stops the training: more than a tenth of the time between two saves is worth a faster disk."""
    measured = found if isinstance(found, Mapping) else {}
    size, every = number(measured.get("bytes")), measured.get("every_seconds")
    if measured.get("why"):
        return skip(f"not tried: {measured['why']}", "free space, then validate again")
    rate = number(measured.get("rate"))
    if not rate or not size or (every is not None and not number(every)):
        return unreadable("the write rate", found)
    seconds, between = size / rate, number(every) or 0.0
    observed = f"{rate / MIB:.0f} MiB/s: a checkpoint of {amount(size)} takes {seconds:.3g} s"
    if not between:
        return Outcome(status="pass", observed=observed, expected="no job is known, so none is too slow")
    share = 100 * seconds / between
    status: Status = "fail" if share > 100 else "warn" if share > 10 else "pass"
    longer = int(seconds * 10) + 1
    return Outcome(
        status=status,
        observed=f"{observed}, {share:.2g} % of the {between:g} s between two",
        expected="at most 10 % of the time between two checkpoints; never more than that time",
        remedy=""
        if status == "pass"
        else f"checkpoint less often (checkpoint.every: {longer} s apart or more), or "
        "set TRACKBED_RUNS to a faster file system",
    )


def _write(path: Path, blocks: int = BLOCKS) -> str:
    digest, block = hashlib.sha256(), os.urandom(MIB)
    with path.open("wb") as file:
        for index in range(blocks):
            # Each block differs, so that a block written to the wrong place is seen.
            piece = index.to_bytes(8, "big") + block[8:]
            digest.update(piece)
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
        # Else the pages just written would be read from memory, and the disk never asked.
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return digest.hexdigest()


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
        why="An output folder that cannot be written is found at the first save, after the steps before it: "
        "`Parent directory runs/global_step5 does not exist.` is all that DeepSpeed says of a read-only one.",
        rule="Fails when a step of a commit fails, with the step and the error's name (ENOSPC, EDQUOT, EROFS, EACCES, "
        "EXDEV), when the file system does not answer within 5 s (ETIMEDOUT), and when other bytes come "
        "back. Skipped when free space or inodes have already failed, on a network file system that "
        "hangs, and for root where such a file system refuses it (root_squash).",
    ),
    Check(
        id="storage.write-rate",
        title="how long a checkpoint takes to write",
        measure=measure_rate,
        judge=judge_rate,
        deadline=300,
        levels=("deep",),
        why="No message: every save stops all ranks for as long as the slowest disk takes.",
        rule="Warns when a save takes more than 10 % of the time between two, fails when it takes longer than that "
        "time; with no job known it only says the rate.",
    ),
)

"""Which file system a folder is on, from this process's own table of mounts; and whether it answers at all.

The root of the file system is a parameter, so that a recorded tree can stand in for a machine.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath

NETWORK = frozenset((
    "9p", "afs", "beegfs", "ceph", "cifs", "fuse.ceph", "fuse.gcsfuse", "fuse.glusterfs", "fuse.s3fs", "fuse.sshfs",
    "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "smb3", "wekafs",
))  # fmt: skip
PATIENCE = 5.0  # seconds after which a file system hangs
PROBE = ("stat", "--file-system")
LAYERS = frozenset(("overlay", "aufs", "fuse.fuse-overlayfs"))


@dataclass(frozen=True, kw_only=True)
class Mount:
    """One mount: where, the kind of file system, its options."""

    point: PurePosixPath
    kind: str
    options: frozenset[str] = frozenset()


class Unreachable(Exception):
    """A file system does not answer: to touch it is to hang. `check` is the one that fails for it."""

    def __init__(self, folder: Path, check: str) -> None:
        super().__init__(f"{folder} does not answer within {PATIENCE:g} s, see {check}")
        self.check = check


def mount_of(folder: Path, root: Path = Path("/")) -> Mount | None:
    """The mount that a folder is on, existing or not; None when the table cannot be read."""
    path = PurePosixPath(folder.absolute())
    holders = [mount for mount in mounts(root) if mount.point == path or mount.point in path.parents]
    # Of two mounts at one place the later one hides the earlier.
    return max(reversed(holders), key=lambda mount: len(mount.point.parts), default=None)


def mounts(root: Path = Path("/")) -> Iterator[Mount]:
    """Every mount this process sees, in the kernel's order; none when the table cannot be read."""
    try:
        text = (root / "proc/self/mountinfo").read_text("utf-8", "replace")
    except OSError:
        return
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()[:1]
        if kind and len(fields) > 5:
            point = PurePosixPath(unescaped(fields[4]))
            yield Mount(point=point, kind=kind[0], options=frozenset(fields[5].split(",")))


def unescaped(path: str) -> str:
    """A path of the table as it is: blanks, tabs, line feeds and backslashes stand there as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), path)


def must_answer(folder: Path) -> None:
    """Raise Unreachable where a file system hangs, before this process touches it and hangs with it."""
    if not _answers(folder.absolute()):
        mount = mount_of(folder)
        network = mount is not None and mount.kind in NETWORK
        raise Unreachable(folder, "storage.network-file-systems" if network else "storage.commit")


@cache
def _answers(folder: Path) -> bool:
    """Asked by another process: one that hangs in the kernel cannot be ended, and is left behind."""
    child = subprocess.Popen([*PROBE, str(folder)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        child.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        child.kill()
        return False
    return True

"""Which file system a folder is on, from this process's own table of mounts.

The root of the file system is a parameter, so that a recorded tree can stand in for a machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

NETWORK = frozenset(("nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "lustre", "gpfs", "beegfs", "fuse.sshfs"))
LAYERS = frozenset(("overlay", "aufs", "fuse.fuse-overlayfs"))


@dataclass(frozen=True, kw_only=True)
class Mount:
    """One mount: where, the kind of file system, its options."""

    point: PurePosixPath
    kind: str
    options: frozenset[str] = frozenset()


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
            # A blank in a path is written as an octal number.
            point = PurePosixPath(fields[4].replace("\\040", " "))
            yield Mount(point=point, kind=kind[0], options=frozenset(fields[5].split(",")))

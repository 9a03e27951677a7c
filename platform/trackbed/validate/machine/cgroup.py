"""The limits a control group sets, read at this process's own path, in version 1, version 2 and the mixed layout.

The root of the file system is a parameter, so that a recorded tree can stand in for a machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

# Version 1 says "no limit" with the largest page-aligned number; anything near it is no limit.
NO_LIMIT = 1 << 60
CPUSETS = ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus")
LIMITS = {
    "cpu": ("cpu.max", "cpu.cfs_quota_us"),
    "memory": ("memory.max", "memory.limit_in_bytes"),
    "cpuset": CPUSETS,
    "pids": ("pids.max",),
}


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits in force: CPUs of quota (inf without one), CPUs in the cpuset (None unknown), bytes, OOM kills so far."""

    cpu_quota: float
    cpuset: int | None
    memory: float
    oom_kills: int


def limits(root: Path = Path("/")) -> Limits:
    """The tightest limits of this process's group and every group above it; the OOM kills of its own group only."""
    cpu, memory, cpuset = (list(_folders(root, name)) for name in ("cpu", "memory", "cpuset"))
    kills = [_oom_kills(folder) for folder in memory[:1]]
    sets = [count for folder in cpuset[:1] if (count := _cpuset(folder)) is not None]
    return Limits(
        cpu_quota=min(map(_quota, cpu), default=math.inf),
        cpuset=min(sets, default=None),
        memory=min(map(_memory, memory), default=math.inf),
        oom_kills=max(kills, default=0),
    )


def processes(root: Path = Path("/")) -> tuple[float, int]:
    """The most processes and threads allowed (inf without a limit) and those there are, where the least are left."""
    groups = [(_pids(folder), _number(folder / "pids.current")) for folder in _folders(root, "pids")]
    return min(groups, key=lambda group: group[0] - group[1], default=(math.inf, 0))


def throttling(root: Path = Path("/")) -> tuple[int, int]:
    """Scheduling periods in which this process's own group wanted to run, and those in which its quota ran out."""
    text = next((_text(folder / "cpu.stat") for folder in _folders(root, "cpu")), "")
    found = {pair[0]: pair[1] for line in text.splitlines() if len(pair := line.split()) == 2 and pair[1].isdigit()}
    return int(found.get("nr_periods", 0)), int(found.get("nr_throttled", 0))


def count_cpus(text: str) -> int | None:
    """CPUs in a list such as `0-3,8`; None when it is empty or no list."""
    total = 0
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if not first.isdigit() or not (last or first).isdigit() or int(last or first) < int(first):
            return None
        total += int(last or first) - int(first) + 1
    return total


def _folders(root: Path, controller: str) -> Iterator[Path]:
    """The group's folder for a controller, then its parents up to the mount."""
    paths = dict(_paths(root))
    for names, mount_root, mount in _mounts(root):
        name = controller if controller in names else "" if not names else None
        if name is None or name not in paths:
            continue
        folder = mount / _below(paths[name], mount_root)
        while True:
            if _controls(folder, controller):
                yield folder
            if folder == mount or mount not in folder.parents:
                break
            folder = folder.parent


def _controls(folder: Path, controller: str) -> bool:
    """Whether the folder really has this controller's limits: a mixed layout mounts version 2 with none of them."""
    return any((folder / name).exists() for name in LIMITS[controller])


def _paths(root: Path) -> Iterator[tuple[str, str]]:
    """(controller, path) of this process; version 2 has the empty controller."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for controller in controllers.split(","):
            yield controller, path


def _mounts(root: Path) -> Iterator[tuple[set[str], str, Path]]:
    """(controllers, root inside the hierarchy, where) of each mount; version 2 has no controllers."""
    for line in _text(root / "proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        kind, options = right.split()[:1], right.split()[-1:]
        fields = left.split()
        if kind in (["cgroup"], ["cgroup2"]) and len(fields) > 4:
            names = set(options[0].split(",")) - {"rw", "ro"} if kind == ["cgroup"] else set()
            yield names, fields[3], root / fields[4].lstrip("/")


def _below(path: str, mount_root: str) -> PurePosixPath:
    """The part of a group's path that is visible in a mount; the mount itself when the group is outside of it."""
    try:
        return PurePosixPath(path).relative_to(mount_root)
    except ValueError:
        return PurePosixPath()


def _quota(folder: Path) -> float:
    quota, _, period = _text(folder / "cpu.max").strip().partition(" ")
    if not quota:
        quota, period = _text(folder / "cpu.cfs_quota_us").strip(), _text(folder / "cpu.cfs_period_us").strip()
    # "max" and -1 mean no quota, and neither is all digits.
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(period) else math.inf


def _memory(folder: Path) -> float:
    text = _text(folder / "memory.max") or _text(folder / "memory.limit_in_bytes")
    value = text.strip()
    return float(value) if value.isdigit() and int(value) < NO_LIMIT else math.inf


def _pids(folder: Path) -> float:
    value = _text(folder / "pids.max").strip()
    return float(value) if value.isdigit() else math.inf


def _number(path: Path) -> int:
    value = _text(path).strip()
    return int(value) if value.isdigit() else 0


def _oom_kills(folder: Path) -> int:
    text = _text(folder / "memory.events") or _text(folder / "memory.oom_control")
    pairs = (line.split() for line in text.splitlines())
    return sum(int(pair[1]) for pair in pairs if len(pair) == 2 and pair[0] == "oom_kill" and pair[1].isdigit())


def _cpuset(folder: Path) -> int | None:
    return next((count for name in CPUSETS if (count := count_cpus(_text(folder / name))) is not None), None)


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError:
        return ""

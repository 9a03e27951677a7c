"""host.*: limits that a container engine, a cgroup or a login shell puts on this process."""

from __future__ import annotations

import math
import os
import resource
from pathlib import Path
from typing import Any

import psutil

from trackbed.validate import GIB, MIB, Check, Context, Outcome, Status, amount, number, unreadable
from trackbed.validate.machine import cgroup

SHARED_MEMORY = Path("/dev/shm")
INFINIBAND = Path("/sys/class/infiniband")
VERBS = Path("/dev/infiniband")
WANTED_MEMORY = 8 * GIB


def measure_shared_memory(context: Context, folder: Path = SHARED_MEMORY) -> int | None:
    """Size in bytes of the shared-memory file system; None when there is none."""
    try:
        stat = os.statvfs(folder)
    except OSError:
        return None
    return stat.f_frsize * stat.f_blocks


def judge_shared_memory(size: object) -> Outcome:
    """64 MiB is what Docker gives by default, and too little for data workers, NCCL and gloo."""
    value = number(size)
    expected = "more than 64 MiB; 1 GiB or more for data workers"
    remedy = "docker run --shm-size=1g; compose `shm_size: 1g`; Kubernetes: an emptyDir, medium Memory, on /dev/shm"
    if size is None:
        return Outcome(status="fail", observed="there is no /dev/shm", expected=expected, remedy=remedy)
    if value is None:
        return unreadable("the size of /dev/shm", size)
    status: Status = "fail" if value <= 64 * MIB else "warn" if value < GIB else "pass"
    observed = f"{amount(value)} in /dev/shm"
    return Outcome(status=status, observed=observed, expected=expected, remedy="" if status == "pass" else remedy)


def measure_cpus(context: Context, root: Path = Path("/")) -> dict[str, Any]:
    """CPUs as the system reports them, and as affinity, cpuset and quota allow; and the ranks that share them."""
    limits = cgroup.limits(root)
    return {
        "reported": os.cpu_count(),
        "affinity": len(os.sched_getaffinity(0)),
        "cpuset": limits.cpuset,
        "quota": limits.cpu_quota,
        "ranks": context.ranks,
    }


def judge_cpus(cpus: dict[str, Any]) -> Outcome:
    """Fewer CPUs than libraries see means threads that throttle each other. Slow, not wrong: never a fail."""
    known = [number(cpus.get(name)) for name in ("reported", "affinity", "quota")]
    ranks = number(cpus.get("ranks"))
    if None in known or not ranks:
        return unreadable("the number of CPUs", cpus)
    limits = [*(value for value in known if value is not None), number(cpus.get("cpuset")) or math.inf]
    effective = min(limits)
    if not effective:
        return unreadable("the number of CPUs", cpus)
    threads = max(1, int(effective / ranks))
    observed = f"{effective:g} usable of {cpus['reported']}, {ranks:g} ranks of {threads} threads"
    ok = effective >= max(limits[0], ranks)
    use = f"export OMP_NUM_THREADS={threads}, and {threads} data workers and DALI threads a rank"
    remedy = (
        "" if ok else f"{use}; or docker run --cpus {max(limits[0], ranks):g} (compose `cpus`, Kubernetes limits.cpu)"
    )
    evidence = f"affinity {cpus['affinity']}, cpuset {cpus.get('cpuset')}, quota {cpus['quota']:g}"
    expected = f"every CPU the system reports is usable, and one a rank ({ranks:g}) or more"
    status: Status = "pass" if ok else "warn"
    return Outcome(status=status, observed=observed, expected=expected, evidence=evidence, remedy=remedy)


def measure_memory(context: Context, root: Path = Path("/")) -> dict[str, Any]:
    """Bytes this process may use, by its control group or by what the machine has free; OOM kills in the group."""
    limits = cgroup.limits(root)
    return {"limit": limits.memory, "available": psutil.virtual_memory().available, "oom_kills": limits.oom_kills}


def judge_memory(memory: dict[str, Any]) -> Outcome:
    """The fail line is what importing the stack in two ranks and a small model need; larger jobs are planned for."""
    limit, available, kills = (number(memory.get(name)) for name in ("limit", "available", "oom_kills"))
    if limit is None or available is None or kills is None:
        return unreadable("the memory limit", memory)
    usable = min(limit, available)
    killed = f", {kills:g} processes killed for memory in this container" if kills else ""
    status: Status = "fail" if usable < 4 * GIB else "warn" if usable < WANTED_MEMORY or kills else "pass"
    source = "limit" if limit < available else "free"
    return Outcome(
        status=status,
        observed=f"{amount(usable)} ({source}){killed}",
        expected="8 GiB or more; less than 4 GiB does not hold two ranks",
        evidence=f"limit {amount(limit)}, available {amount(available)}, oom_kill {kills:g}",
        remedy=""
        if status == "pass"
        else f"docker run --memory {WANTED_MEMORY // GIB}g (compose `mem_limit: {WANTED_MEMORY // GIB}g`, Kubernetes "
        f"resources.limits.memory: {WANTED_MEMORY // GIB}Gi, Slurm --mem={WANTED_MEMORY // GIB}G), or close programs; "
        "a rank that ends with exit code -9 or 137 was killed for memory",
    )


def measure_open_files(context: Context) -> dict[str, Any]:
    """The soft and hard limit of open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return {"soft": _limit(soft), "hard": _limit(hard)}


def judge_open_files(files: dict[str, Any]) -> Outcome:
    """The hard limit fails, the soft one warns: a login gives 1024 soft, and any process may raise it to the hard."""
    soft, hard = number(files.get("soft")), number(files.get("hard"))
    if soft is None or hard is None or soft > hard:
        return unreadable("the limit of open files", files)
    status: Status = "fail" if hard < 4096 else "warn" if soft < 4096 or hard < 65536 else "pass"
    raise_soft = f"ulimit -n {int(min(hard, 1048576))}" if soft < hard else ""
    raise_hard = (
        "docker run --ulimit nofile=1048576:1048576; where that is refused, LimitNOFILE=1048576 in the unit of the "
        "engine (docker, containerd) or of slurmd, then restart it"
    )
    return Outcome(
        status=status,
        observed=f"{_files(soft)} open files, may be raised to {_files(hard)}",
        expected="4096 or more usable; 65536 or more allowed",
        remedy="" if status == "pass" else "; ".join(filter(None, [raise_soft, raise_hard if hard < 65536 else ""])),
    )


def measure_locked_memory(context: Context, devices: Path = INFINIBAND, verbs: Path = VERBS) -> dict[str, Any]:
    """The soft limit of locked memory in bytes, and the RDMA devices that would need it.

    A container may be given the device files alone, and see nothing of them in /sys.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    names = sorted(device.name for device in devices.iterdir()) if devices.is_dir() else []
    return {"soft": _limit(soft), "devices": names or sorted(path.name for path in verbs.glob("uverbs*"))}


def judge_locked_memory(locked: dict[str, Any]) -> Outcome:
    """RDMA pins its buffers; without an RDMA device nothing here does, and Docker's 8 MiB is fine."""
    soft, devices = number(locked.get("soft")), locked.get("devices")
    if soft is None or not isinstance(devices, list):
        return unreadable("the limit of locked memory", locked)
    expected = "16 GiB or more, where there are RDMA devices"
    if not devices:
        observed = f"{amount(soft)}; no RDMA device, so none is needed"
        return Outcome(status="pass", observed=observed, expected=expected)
    status: Status = "fail" if soft < GIB else "warn" if soft < 16 * GIB else "pass"
    remedy = (
        "docker run --ulimit memlock=-1 (compose `ulimits: {memlock: -1}`); where that is refused, set LimitMEMLOCK "
        "to infinity in the unit of the engine (docker, containerd) or of slurmd, then restart it"
    )
    observed = f"{amount(soft)} with {len(devices)} RDMA devices"
    evidence = ", ".join(map(str, devices))
    remedy = "" if status == "pass" else remedy
    return Outcome(status=status, observed=observed, expected=expected, evidence=evidence, remedy=remedy)


def _limit(value: int) -> float:
    return math.inf if value == resource.RLIM_INFINITY else float(value)


def _files(count: float) -> str:
    return "unlimited" if count == math.inf else str(int(count))


CHECKS = (
    Check(
        id="host.shared-memory",
        title="shared memory",
        measure=measure_shared_memory,
        judge=judge_shared_memory,
        deadline=10,
        child="host",
        why="Docker gives 64 MiB. Data workers and ranks then die with `unable to allocate shared "
        "memory(shm)` or `Bus error`, or NCCL with `No space left on device`.",
        rule="Fails at 64 MiB or less and without /dev/shm; warns below 1 GiB.",
    ),
    Check(
        id="host.cpus",
        title="CPUs this process may use",
        measure=measure_cpus,
        judge=judge_cpus,
        deadline=10,
        child="host",
        why="A container's quota is not what `os.cpu_count()` says: threads then throttle each other, and "
        "nothing says why a job is slow.",
        rule="Warns when the CPUs that may be used are fewer than those reported, or fewer than the ranks.",
    ),
    Check(
        id="host.memory-limit",
        title="memory this process may use",
        measure=measure_memory,
        judge=judge_memory,
        deadline=10,
        child="host",
        why="Over its limit a rank is killed with no traceback: `exits with return code = -9`, exit code 137.",
        rule="Fails below what a small run needs; warns when the kernel has killed something in this group before.",
    ),
    Check(
        id="host.open-files",
        title="open files",
        measure=measure_open_files,
        judge=judge_open_files,
        deadline=10,
        child="host",
        why="Data workers that hand over many tensors end with `received 0 items of ancdata` or `Too many open files`.",
        rule="Fails below 4096 that may be used; warns below 65536 allowed.",
    ),
    Check(
        id="host.locked-memory",
        title="locked memory",
        measure=measure_locked_memory,
        judge=judge_locked_memory,
        deadline=10,
        child="host",
        why="RDMA registers memory that must not move: `ibv_reg_mr_iova2 failed with error Cannot allocate memory`.",
        rule="With an RDMA device: fails below 1 GiB, warns below 16 GiB. Passes without one.",
    ),
)

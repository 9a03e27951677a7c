"""limits.* of the kernel: processes that are stuck, core dumps, and the clock."""

from __future__ import annotations

import ctypes
import errno
import math
import os
import resource
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from trackbed.validate import GIB, Check, Context, Outcome, Status, amount, number, skip, text_of, unreadable
from trackbed.validate.machine.filesystems import existing
from trackbed.validate.machine.mounts import PROBE
from trackbed.validate.network.addresses import nodes

ROOT = Path("/")
STUCK_FAIL, STUCK_SECONDS = 5, 1.0
ZOMBIES = 50
CORE = GIB  # a rank's memory is larger, and a smaller limit cuts the dump there
CLOCKS = Path("sys/devices/system/clocksource/clocksource0")
SLOW = frozenset(("hpet", "acpi_pm", "jiffies", "refined-jiffies", "pit"))
UNSYNCHRONIZED = 0x40  # STA_UNSYNC of adjtimex(2)


def measure_stuck(context: Context, seconds: float = STUCK_SECONDS) -> dict[str, Any]:
    """Processes that sleep in the kernel and did not run once in `seconds`, and those nobody has reaped."""
    first = _sleeping_in_kernel()
    if first:
        time.sleep(seconds)
    # One that reads a slow disk also shows this state, but it runs between two reads.
    still = {key: name for key, name in _sleeping_in_kernel().items() if first.get(key) == name}
    zombies = sum(_status(process) == psutil.STATUS_ZOMBIE for process in psutil.process_iter())
    return {"stuck": [f"{name} (PID {pid}, {wait})" for (pid, _, wait), name in still.items()], "zombies": zombies}


def judge_stuck(found: object) -> Outcome:
    """No signal reaches a process in that state, SIGKILL neither: mostly a mount or a driver that hangs."""
    value = found if isinstance(found, Mapping) else {}
    stuck, zombies = value.get("stuck"), number(value.get("zombies"))
    if not isinstance(stuck, Sequence) or isinstance(stuck, str) or zombies is None:
        return unreadable("processes that are stuck", found)
    expected = f"no process stuck in the kernel, {ZOMBIES} or fewer that nobody has reaped"
    if stuck:
        status: Status = "fail" if len(stuck) > STUCK_FAIL else "warn"
        observed = f"{len(stuck)} stuck in the kernel: {', '.join(map(str, stuck[:3]))}"
        remedy = "sudo cat /proc/PID/stack says where; mend the mount or the driver it waits for, or reboot"
        return Outcome(status=status, observed=observed, expected=expected, remedy=remedy)
    if zombies > ZOMBIES:
        remedy = "docker run --init (compose `init: true`), so that PID 1 reaps what others leave"
        observed = f"{zombies:g} processes ended and nobody has reaped them"
        return Outcome(status="warn", observed=observed, expected=expected, remedy=remedy)
    return Outcome(status="pass", observed="no process is stuck in the kernel", expected=expected)


def _sleeping_in_kernel() -> dict[tuple[int, int, str], str]:
    """(pid, voluntary context switches so far, where it waits) of processes in state D, with their names."""
    found = {}
    for process in psutil.process_iter():
        try:
            # Our own question to a mount that hangs is what storage.network-file-systems speaks of.
            if process.status() == psutil.STATUS_DISK_SLEEP and tuple(process.cmdline()[:2]) != PROBE:
                where = text_of(ROOT / f"proc/{process.pid}/wchan") or "unknown"
                found[process.pid, process.num_ctx_switches().voluntary, where] = process.name()
        except (psutil.Error, NotImplementedError):
            continue
    return found


def _status(process: psutil.Process) -> str:
    try:
        return str(process.status())
    except psutil.Error:
        return ""


def measure_core_dumps(context: Context, root: Path = ROOT, here: Path | None = None) -> dict[str, Any]:
    """The limit of a core dump in bytes, the kernel's pattern, and whether dumps land where runs are written."""
    soft, _ = resource.getrlimit(resource.RLIMIT_CORE)
    pattern = text_of(root / "proc/sys/kernel/core_pattern").strip()
    here = Path.cwd() if here is None else here
    folder = (here / pattern).parent
    output = existing(context.output)
    beside = folder.is_dir() and os.access(folder, os.W_OK) and folder.stat().st_dev == output.stat().st_dev
    return {
        "limit": math.inf if soft == resource.RLIM_INFINITY else float(soft),
        "pattern": pattern,
        "folder": str(folder),
        "beside_runs": beside and not pattern.startswith("|"),
    }


def judge_core_dumps(found: object) -> Outcome:
    """A rank's dump is as large as its memory, and every rank of a crashed job writes one."""
    value = found if isinstance(found, Mapping) else {}
    limit, pattern, beside = number(value.get("limit")), value.get("pattern"), value.get("beside_runs")
    if limit is None or not isinstance(pattern, str) or not isinstance(beside, bool):
        return unreadable("the limit of core dumps", found)
    expected = f"no core dumps of {amount(CORE)} or more where runs are written"
    if limit < CORE or not beside:
        observed = f"core dumps of {amount(limit)} at most, pattern {pattern or 'unknown'}"
        return Outcome(status="pass", observed=observed, expected=expected)
    return Outcome(
        status="warn",
        observed=f"core dumps ({'of any size' if limit == math.inf else amount(limit)}) go to {value.get('folder')}, "
        "on the file system of the runs",
        expected=expected,
        remedy="ulimit -c 0; docker run --ulimit core=0; compose `ulimits: {core: 0}`; LimitCORE=0 in slurmd's unit",
    )


def measure_clock_source(context: Context, root: Path = ROOT) -> dict[str, Any]:
    """The clock the kernel reads, and whether this machine is a virtual one; an empty name where none is shown."""
    flags = next((line for line in text_of(root / "proc/cpuinfo").splitlines() if line.startswith("flags")), "")
    return {
        "name": text_of(root / CLOCKS / "current_clocksource").strip(),
        "available": text_of(root / CLOCKS / "available_clocksource").split(),
        "virtual": "hypervisor" in flags.split(),
    }


def judge_clock_source(found: object) -> Outcome:
    """A slow clock costs a microsecond a call, and profilers and NCCL ask it all the time."""
    value = found if isinstance(found, Mapping) else {}
    name, virtual = value.get("name"), value.get("virtual")
    if not isinstance(name, str) or not isinstance(virtual, bool):
        return unreadable("the kernel's clock", found)
    if not name:
        return skip("this kernel does not show which clock it reads", "nothing to do")
    if name not in SLOW:
        return Outcome(status="pass", observed=f"the kernel reads {name}", expected="a fast clock, such as tsc")
    if virtual:
        return Outcome(status="pass", observed=f"the kernel reads {name}, as this virtual machine's host lets it")
    return Outcome(
        status="warn",
        observed=f"the kernel reads {name}: each look at the clock is a slow one",
        expected="tsc",
        evidence=f"available: {' '.join(map(str, value.get('available') or []))}",
        remedy="the kernel log says why tsc was given up (dmesg | grep -i tsc); the kernel arguments clocksource=tsc "
        "tsc=reliable; update the firmware",
    )


class _Timex(ctypes.Structure):
    """struct timex of adjtimex(2), up to the status; the rest is only room."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("frequency", ctypes.c_long),
        ("largest_error", ctypes.c_long),
        ("estimated_error", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_long * 32),
    )


def measure_clock_sync(context: Context, environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Whether the kernel's clock is kept by something, the largest error in seconds, and the nodes of the job."""
    clock = _Timex()
    failed = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(clock)) < 0
    return {
        "error": errno.errorcode.get(ctypes.get_errno(), "unknown") if failed else "",
        "synchronized": not clock.status & UNSYNCHRONIZED,
        "largest_error": clock.largest_error / 1e6,
        "nodes": nodes(environment),
    }


def judge_clock_sync(found: object) -> Outcome:
    """One machine has nobody to disagree with."""
    value = found if isinstance(found, Mapping) else {}
    error, synchronized = value.get("error"), value.get("synchronized")
    count, largest = number(value.get("nodes")), number(value.get("largest_error"))
    if not isinstance(error, str) or not isinstance(synchronized, bool) or not count or largest is None:
        return unreadable("whether the clock is synchronized", found)
    expected = "a clock that NTP keeps, where there are several nodes"
    if error:
        return skip(f"the kernel does not say whether its clock is kept ({error})", "ask on the host: chronyc tracking")
    if synchronized:
        return Outcome(status="pass", observed=f"synchronized, {largest:.2g} s off at most", expected=expected)
    if count < 2:
        return Outcome(status="pass", observed="not synchronized, but one node has nobody to disagree with")
    return Outcome(
        status="warn",
        observed=f"nothing keeps this node's clock, and the job has {count:g} nodes",
        expected=expected,
        remedy="on the host: systemctl enable --now chrony (or timedatectl set-ntp true), then chronyc tracking",
    )


CHECKS = (
    Check(
        id="limits.stuck-processes",
        title="processes that hang in the kernel",
        measure=measure_stuck,
        judge=judge_stuck,
        deadline=10,
        child="host",
        why="A rank that waits in the kernel for a dead mount or a hung driver cannot be killed, holds its GPU, and "
        "the next job on the node hangs where it did.",
        rule=f"Warns for a process that has been in state D for {STUCK_SECONDS:g} s without running once, fails for "
        f"more than {STUCK_FAIL}; warns for more than {ZOMBIES} zombies.",
    ),
    Check(
        id="limits.core-dumps",
        title="core dumps stay away from the runs",
        measure=measure_core_dumps,
        judge=judge_core_dumps,
        deadline=10,
        child="host",
        why="Eight ranks that crash with an unlimited core size write their whole memory beside the checkpoints: the "
        "disk is full, and the next save says `No space left on device`.",
        rule=f"Warns when dumps of {amount(CORE)} or more are allowed and land on the file system of the runs.",
    ),
    Check(
        id="limits.clock-source",
        title="the kernel's clock is a fast one",
        measure=measure_clock_source,
        judge=judge_clock_source,
        deadline=10,
        child="host",
        proof="mixed",
        why="No message: after `Marking clocksource 'tsc' as unstable` every look at the clock takes a microsecond "
        "instead of 20 ns, and one node of many is slower.",
        rule="Warns for hpet, acpi_pm, jiffies and pit on a real machine; in a virtual one it passes.",
    ),
    Check(
        id="limits.clock-sync",
        title="something keeps the clock",
        measure=measure_clock_sync,
        judge=judge_clock_sync,
        deadline=10,
        child="host",
        why="`Munge decode failed: Rewound credential`, and torchrun drops a node whose heartbeat is older than 15 s "
        "by the other node's clock.",
        rule="Warns when nothing keeps the clock and the job has two nodes or more; skips where the kernel does not "
        "say.",
    ),
)

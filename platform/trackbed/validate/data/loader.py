"""loader.*: whether the data workers a job asks for fit this machine's processors and shared memory.

A job says what it asks for in `expect["loader"]`, or in the environment: TRACKBED_LOADER_WORKERS (a rank),
TRACKBED_LOADER_PREFETCH (batches a worker holds ready), TRACKBED_LOADER_BATCH_BYTES (one rank's batch, as tensors),
TRACKBED_LOADER_THREADS (DALI's num_threads a rank). Without, there is nothing to check: Trackbed's own jobs have no
workers.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trackbed.validate import Check, Context, Outcome, Status, amount, number, skip, unreadable
from trackbed.validate.machine import host

# A batch in shared memory has an index, padding and an allocator around it.
SLACK = 1.2
PREFETCH = 2  # torch's DataLoader, when it is not told
SAY = "say what a job uses to have it checked: TRACKBED_LOADER_{NAME}"
SETTINGS = ("workers", "prefetch", "batch_bytes", "threads")


def settings(context: Context) -> dict[str, Any]:
    """What is asked for, by name; empty when nothing is. Text stays text, so that a judge can call it garbage."""
    asked = dict(context.expect.get("loader") or {})
    for name in SETTINGS:
        text = os.environ.get(f"TRACKBED_LOADER_{name.upper()}")
        if text:
            asked[name] = int(text) if text.isdigit() else text
    return asked


def measure_workers(context: Context, root: Path = Path("/")) -> dict[str, Any]:
    """Workers and DALI threads a rank, the ranks, and the processors this process may really use."""
    cpus = host.measure_cpus(context, root)
    known = [number(cpus[name]) for name in ("reported", "affinity", "cpuset", "quota")]
    usable = min((value for value in known if value is not None), default=math.inf)
    asked = settings(context)
    return {name: asked.get(name) for name in ("workers", "threads")} | {"ranks": context.ranks, "cpus": usable}


def judge_workers(asked: object) -> Outcome:
    """Slow, not wrong, until there are so many that starting them takes the memory."""
    return _judge_share(asked, "workers", "data workers", fails=True)


def judge_threads(asked: object) -> Outcome:
    """DALI's threads wait for each other at the end of every batch: more than there are processors only add waiting."""
    return _judge_share(asked, "threads", "DALI threads", fails=False)


def measure_shared_memory(context: Context, folder: Path = host.SHARED_MEMORY) -> dict[str, Any]:
    """The settings, the ranks, and the bytes that are free in shared memory now; None when there is none."""
    asked = settings(context)
    found = {name: asked.get(name) for name in ("workers", "prefetch", "batch_bytes")}
    try:
        stat = os.statvfs(folder)
    except OSError:
        return {**found, "ranks": context.ranks, "free": None}
    return {**found, "ranks": context.ranks, "free": stat.f_frsize * stat.f_bavail}


def shared_memory_need(*, ranks: float, workers: float, prefetch: float, batch_bytes: float) -> float:
    """Bytes that all ranks' workers hold ready in shared memory, with a fifth more."""
    return ranks * workers * prefetch * batch_bytes * SLACK


def judge_shared_memory(asked: object) -> Outcome:
    """Every batch that is ready lies in shared memory; the first that does not fit ends its worker with a bus error."""
    found = asked if isinstance(asked, Mapping) else {}
    if not isinstance(asked, Mapping) or "workers" not in found:
        return unreadable("the loader's settings", asked)
    if not found["workers"] or found.get("batch_bytes") is None:
        return skip("no data workers with a known batch are asked for", SAY.format(NAME="WORKERS=4, and _BATCH_BYTES"))
    prefetch = found.get("prefetch")
    named = {
        "ranks": number(found.get("ranks")),
        "workers": number(found["workers"]),
        "prefetch": number(PREFETCH if prefetch is None else prefetch),
        "batch_bytes": number(found.get("batch_bytes")),
    }
    known = {name: value for name, value in named.items() if value}
    free = number(found.get("free"))
    if len(known) < len(named) or free is None:
        return unreadable("the loader's settings or the free shared memory", asked)
    need = shared_memory_need(**known)
    sum_ = (
        f"{known['ranks']:g} ranks x {known['workers']:g} workers x {known['prefetch']:g} batches x "
        f"{amount(known['batch_bytes'])} + 20 % = {amount(need)}"
    )
    status: Status = "fail" if need > free else "pass"
    return Outcome(
        status=status,
        observed=f"{sum_}; {amount(free)} free in /dev/shm",
        expected=f"{amount(need)} free",
        remedy="" if status == "pass" else _roomier(need, known, free),
    )


def _roomier(need: float, known: Mapping[str, float], free: float) -> str:
    gib = math.ceil(need / 2**30)
    fits = int(free / (need / known["workers"]))
    return (
        f"docker run --shm-size={gib}g; compose `shm_size: {gib}g`; Kubernetes: an emptyDir of {gib}Gi, medium Memory, "
        f"on /dev/shm; Slurm with enroot or pyxis: the node's own /dev/shm; or {fits} workers a rank"
    )


def _judge_share(asked: object, name: str, what: str, *, fails: bool) -> Outcome:
    found = asked if isinstance(asked, Mapping) else {}
    if not isinstance(asked, Mapping) or name not in found:
        return unreadable(f"the number of {what}", asked)
    if found[name] in (None, 0):
        return skip(f"no {what} are asked for", SAY.format(NAME=f"{name.upper()}=4"))
    each, ranks, cpus = (number(found.get(key)) for key in (name, "ranks", "cpus"))
    if not each or not ranks or not cpus or cpus == math.inf:
        return unreadable(f"the number of {what}", asked)
    total = each * ranks
    status: Status = "fail" if fails and total > 4 * cpus else "warn" if total > cpus else "pass"
    fits = int(cpus / ranks)
    # Without workers the rank itself loads; DALI has one thread at least.
    fewer = f"{fits} {what} a rank (TRACKBED_LOADER_{name.upper()}={fits}); or " if fits or fails else ""
    return Outcome(
        status=status,
        observed=f"{ranks:g} ranks x {each:g} {what} = {total:g} for {cpus:g} usable CPUs",
        expected=f"{cpus:g} or fewer" + ("; more than four times as many never" if fails else ""),
        remedy=""
        if status == "pass"
        else f"{fewer}more CPUs: docker run --cpus={total:g}, compose `cpus: {total:g}`, Kubernetes limits.cpu, Slurm "
        "--cpus-per-task",
    )


CHECKS = (
    Check(
        id="loader.workers",
        title="data workers against CPUs",
        measure=measure_workers,
        judge=judge_workers,
        deadline=10,
        child="host",
        why="No error: data workers that share too few processors make every step wait, and a container's CPU quota "
        "does not show in os.cpu_count().",
        rule="Warns when workers x ranks are more than the usable CPUs, fails at more than four times as many. Skipped "
        "when no workers are asked for.",
    ),
    Check(
        id="loader.shared-memory",
        title="data workers against shared memory",
        measure=measure_shared_memory,
        judge=judge_shared_memory,
        deadline=10,
        child="host",
        why="`DataLoader worker (pid N) is killed by signal: Bus error. It is possible that dataloader's workers are "
        "out of shared memory.`, hours into an epoch, or a loader that waits for ever.",
        rule="Fails when ranks x workers x prefetched batches x bytes of a batch, and 20 %, are more than what is free "
        "in /dev/shm. Skipped when no workers or no batch size are said.",
    ),
    Check(
        id="loader.dali-threads",
        title="DALI's threads against CPUs",
        measure=measure_workers,
        judge=judge_threads,
        deadline=10,
        child="host",
        why="No error: DALI's threads of all ranks share the container's processors with the training.",
        rule="Warns when num_threads x ranks are more than the usable CPUs. Skipped when none are said.",
    ),
)

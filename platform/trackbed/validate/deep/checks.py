"""deep.*: how fast this machine is, each figure the median of repeats, held against the site's own baseline.

For an idle machine: a minute or two. Every check is one child's, one after another; the first waits until the checks
beside it are done. How things are measured is in compute.py, ring.py and storage.py.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import psutil

from trackbed.validate import Check, Context, Outcome, Proof, Status, baseline, number, skip, unreadable
from trackbed.validate.deep import compute, ring, storage
from trackbed.validate.figures import figure, to_evidence

BUSY_PERCENT = 20.0
SIBLINGS_SECONDS = 120.0
RUNNER = "trackbed.validate.runner"


def measure_idle(context: Context) -> dict[str, Any]:
    """How busy all CPUs are, in percent, when the checks beside this one have ended; and with what, as far as is seen.

    Of the whole machine, not of this container: it is the neighbours that spoil a figure.
    """
    me = psutil.Process()
    end = time.monotonic() + SIBLINGS_SECONDS
    while time.monotonic() < end and _siblings(me):
        time.sleep(0.1)
    others = [process for process in psutil.process_iter() if process.pid != me.pid]
    for process in others:
        with suppress(psutil.Error):
            process.cpu_percent()
    busy = psutil.cpu_percent(interval=2.0)
    return {"busy": busy, "cpus": os.cpu_count(), "top": _top(others)}


def _siblings(me: psutil.Process) -> bool:
    """Whether the runner has other checks going."""
    parent = me.parent()
    return parent is not None and any(_is_check(child) for child in parent.children() if child.pid != me.pid)


def _is_check(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return RUNNER in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _top(processes: list[psutil.Process]) -> list[list[Any]]:
    used = []
    for process in processes:
        with suppress(psutil.Error):
            used.append([process.cpu_percent(), process.name()])
    return sorted(used, reverse=True)[:3]


def judge_idle(idle: object) -> Outcome:
    """A busy machine does not fail: it makes the figures below it worth little, and that is said."""
    busy = number(idle.get("busy")) if isinstance(idle, Mapping) else None
    if busy is None or not isinstance(idle, Mapping):
        return unreadable("how busy the CPUs are", idle)
    status: Status = "warn" if busy > BUSY_PERCENT else "pass"
    observed = f"the CPUs are {busy:.0f} % busy with something else"
    top = ", ".join(f"{name} {percent:.0f} %" for percent, name in idle.get("top") or ())
    remedy = (
        "run it where nothing else runs (Slurm: --exclusive; drain the node first), or the figures are the neighbours'"
    )
    return Outcome(
        status=status,
        observed=observed,
        expected=f"at most {BUSY_PERCENT:g} %",
        evidence=top,
        remedy="" if status == "pass" else f"{remedy}; busiest: {top or 'not visible from this container'}",
    )


def judge(measured: object) -> Outcome:
    """Figures against the baseline. What could not be measured is a skip, unless the baseline has figures of it."""
    if not isinstance(measured, Mapping) or not isinstance(measured.get("baseline"), Mapping):
        return unreadable("the figures", measured)
    then = measured["baseline"]
    why = measured.get("skip")
    if why and not then.get("figures"):
        return skip(str(why), "nothing to do, unless this machine should have it")
    try:
        now = {name: figure(row["runs"], row["unit"], row["better"]) for name, row in measured["figures"].items()}
        good = bool(now or why) and all(number(each.value) for each in now.values())
        if not good:
            return unreadable("the figures", measured["figures"])
        outcome = baseline.compare(now, then, to_evidence(now, how=measured.get("how", {}), runs=_short(measured)))
    except (AttributeError, KeyError, TypeError, ValueError, ZeroDivisionError):
        return unreadable("the figures", str(measured)[:300])
    if not why:
        return outcome
    return Outcome(status="fail", observed=str(why), expected=outcome.expected, remedy=outcome.remedy)


def _short(measured: Mapping[str, Any]) -> dict[str, list[float]]:
    """Every repeat, with as many digits as say something."""
    return {name: [float(f"{each:.4g}") for each in row["runs"]] for name, row in measured["figures"].items()}


Measure = Callable[[Context], dict[str, Any]]


def _check(name: str, title: str, measure: Measure, why: str, *, proof: Proof = "real", deadline: float = 120) -> Check:
    """One check of figures. Its measure gives {"figures": {NAME: {runs, unit, better}}, "how"}, or {"skip": why}."""

    def with_baseline(context: Context) -> dict[str, Any]:
        return {"figures": {}, **measure(context), "baseline": baseline.part(context.baseline, f"deep.{name}")}

    return Check(
        id=f"deep.{name}",
        title=title,
        measure=with_baseline,
        judge=judge,
        deadline=deadline,
        child="deep",
        levels=("deep",),
        proof=proof,
        why=why,
        rule=RULE,
    )


RULE = (
    "Against this site's own baseline (--baseline FILE): warns when a figure is 5 % worse, fails when it is 10 % "
    "worse or was not measured; both are set in the file, and what is within three times the spread of the repeats is"
    " no finding. Without a baseline it passes with the figure."
)
CHECKS = (
    Check(
        id="deep.idle",
        title="nothing else runs here",
        measure=measure_idle,
        judge=judge_idle,
        deadline=SIBLINGS_SECONDS + 30,
        child="deep",
        levels=("deep",),
        why="A neighbour that uses the CPUs makes a good machine look slow, and a baseline that was saved then hides "
        "a slow one for ever.",
        rule="Warns when the CPUs of the machine are more than 20 % busy with something else.",
    ),
    # First: its ranks are forked, and a process whose OpenMP threads have run must not be.
    _check(
        "all-reduce",
        "sums of two local ranks by gloo",
        ring.measure_gloo,
        "Gradients of CPU ranks pass through it; a loopback or shared memory that is slow makes every step slow, with"
        " no message at all.",
    ),
    _check(
        "memory-bandwidth",
        "memory bandwidth",
        compute.measure_memory,
        "Optimizer states in CPU memory (ZeRO-Offload) and decoding are bound by it. A DIMM that is missing or in the"
        " wrong slot halves it, and nothing else shows.",
    ),
    _check(
        "matrix-product",
        "matrix products by data type",
        compute.measure_products,
        "A CPU that is throttled, or a torch built without this CPU's instructions, computes right and many times "
        "slower.",
    ),
    _check(
        "gpu-memory-bandwidth",
        "GPU memory bandwidth",
        compute.measure_gpu_memory,
        "A GPU with a degraded memory stack or a low memory clock slows every job it is in; `nvidia-smi` shows "
        "nothing.",
        proof="mixed",
    ),
    _check(
        "gpu-matrix-product",
        "GPU matrix products by data type",
        compute.measure_gpu_products,
        "One GPU held back by heat or a power cap is the speed of the whole job: all others wait for it in every step.",
        proof="mixed",
    ),
    _check(
        "gpu-all-reduce",
        "sums of all local GPUs by NCCL",
        ring.measure_nccl,
        "Where peer to peer is off, NCCL goes through the host's memory without a word: ten times slower on NVLink "
        "machines.",
        proof="mixed",
        deadline=240,
    ),
    _check(
        "image-decode",
        "JPEG decoding by DALI on one core",
        compute.measure_decode,
        "Where the cores decode fewer images than the GPUs eat, the GPUs wait: a step that is slow for no reason at "
        "all.",
    ),
    _check(
        "checkpoint-write",
        "writing a checkpoint, to the disk",
        storage.measure_write,
        "A save that takes longer than the time between two saves stops the training. Measured with fsync: what is "
        "only in memory is lost with the node.",
        deadline=300,
    ),
    _check(
        "checkpoint-read",
        "reading a checkpoint, from the disk",
        storage.measure_read,
        "Every restart reads the whole checkpoint on every node at once; a slow read turns a fault into an hour.",
        deadline=300,
    ),
    _check(
        "small-reads",
        "latency of small reads",
        storage.measure_small_reads,
        "A data set of small files waits for each of them; a file system that is fast for one large file may need 20 "
        "ms for 4 KiB, and the loader shows as `data/wait`.",
        deadline=180,
    ),
)

"""limits.*: what the kernel and the engine allow, held against what ranks start and use."""

from __future__ import annotations

import math
import os
import resource
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

from trackbed.validate import Check, Context, Outcome, Status, amount, number, text_of, unreadable
from trackbed.validate.machine import cgroup

ROOT = Path("/")
# A rank's interpreter, torch's and gloo's threads, DALI's, data workers with theirs: measured 20 to 50.
PROCESSES_A_RANK = 64
THROTTLED_SHARE, ENOUGH_PERIODS = 0.05, 100
SWAP_SHARE = 0.1
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
THREADS_WARN, THREADS_FAIL = 1.0, 4.0


def measure_processes(context: Context, root: Path = ROOT) -> dict[str, Any]:
    """Processes and threads that are allowed and that there are: of the control group, and of this user."""
    allowed, running = cgroup.processes(root)
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    # The kernel does not hold root to it.
    unlimited = soft == resource.RLIM_INFINITY or os.geteuid() == 0
    return {
        "allowed": allowed,
        "running": running,
        "user_allowed": math.inf if unlimited else float(soft),
        "user_running": sum(_threads_of(os.getuid())),
        "ranks": context.ranks,
    }


def judge_processes(found: object) -> Outcome:
    """Every thread counts as a process here."""
    value = found if isinstance(found, Mapping) else {}
    names = ("allowed", "running", "user_allowed", "user_running", "ranks")
    numbers = [number(value.get(name)) for name in names]
    known = [one for one in numbers if one is not None]
    if len(known) < len(names) or not known[4]:
        return unreadable("the limit of processes", found)
    allowed, running, user_allowed, user_running, ranks = known
    need = PROCESSES_A_RANK * ranks
    group, user = allowed - running, user_allowed - user_running
    left = min(group, user)
    status: Status = "fail" if left < need else "warn" if left < 2 * need else "pass"
    more = int(running + 4 * need) if group <= user else int(user_running + 4 * need)
    mend = f"docker run --pids-limit {more} (or -1); compose `pids_limit`; Kubernetes: the kubelet's podPidsLimit"
    mend_user = f"docker run --ulimit nproc={more}; ulimit -u {more}; LimitNPROC= in slurmd's unit"
    most = allowed if group <= user else user_allowed
    seen = "no limit" if left == math.inf else f"{max(left, 0):.0f} more may start ({most:.0f} allowed)"
    return Outcome(
        status=status,
        observed=f"{seen}, {ranks:g} ranks start up to {need:g}",
        expected=f"{2 * need:g} or more left; fewer than {need:g} do not hold the ranks' threads and data workers",
        remedy="" if status == "pass" else mend if group <= user else mend_user,
    )


def measure_throttling(context: Context, root: Path = ROOT) -> dict[str, int]:
    """Periods of the CPU quota since the container started, and those in which it was used up."""
    periods, throttled = cgroup.throttling(root)
    return {"periods": periods, "throttled": throttled}


def judge_throttling(found: object) -> Outcome:
    """Only over a time long enough: this program itself runs into a small quota, which host.cpus speaks of."""
    value = found if isinstance(found, Mapping) else {}
    periods, throttled = number(value.get("periods")), number(value.get("throttled"))
    if periods is None or throttled is None or throttled > periods:
        return unreadable("how often the CPU quota ran out", found)
    expected = f"the quota runs out in {THROTTLED_SHARE:.0%} of the periods or fewer"
    if periods < ENOUGH_PERIODS:
        return Outcome(status="pass", observed=f"{periods:.0f} periods with a quota so far", expected=expected)
    share = throttled / periods
    ok = share <= THROTTLED_SHARE
    return Outcome(
        status="pass" if ok else "warn",
        observed=f"the quota ran out in {share:.0%} of {periods:.0f} periods",
        expected=expected,
        remedy="" if ok else "raise docker run --cpus (compose `cpus`, Kubernetes resources.limits.cpu), or start "
        "fewer threads: host.cpus says how many",
    )  # fmt: skip


def measure_swap(context: Context, root: Path = ROOT) -> dict[str, Any]:
    """Bytes of memory and of swap in use, as the machine counts them."""
    pairs = (line.split() for line in text_of(root / "proc/meminfo").splitlines())
    kilobytes = {pair[0].rstrip(":"): int(pair[1]) for pair in pairs if len(pair) > 1 and pair[1].isdigit()}
    total, free = kilobytes.get("SwapTotal"), kilobytes.get("SwapFree")
    memory = kilobytes.get("MemTotal")
    if total is None or free is None or memory is None:
        return {"memory": None, "used": None, "swappiness": ""}
    return {
        "memory": memory * 1024,
        "used": (total - free) * 1024,
        "swappiness": text_of(root / "proc/sys/vm/swappiness").strip(),
    }


def judge_swap(found: object) -> Outcome:
    """A little old swap is normal on a laptop; much of it means that memory has been short."""
    value = found if isinstance(found, Mapping) else {}
    memory, used = number(value.get("memory")), number(value.get("used"))
    if not memory or used is None:
        return unreadable("the swap in use", found)
    most = SWAP_SHARE * memory
    ok = used <= most
    return Outcome(
        status="pass" if ok else "warn",
        observed=f"{amount(used)} of swap in use, {amount(memory)} of memory",
        expected=f"{amount(most)} or less ({SWAP_SHARE:.0%} of memory)",
        evidence=f"vm.swappiness {value.get('swappiness') or 'unknown'}",
        remedy="" if ok else "end what fills the memory, then swapoff -a && swapon -a; on a cluster's nodes swapoff -a "
        "for good; docker run --memory-swap equal to --memory",
    )  # fmt: skip


def measure_threads(context: Context, root: Path = ROOT, environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """The largest number of threads that a variable asks for, and the CPUs and ranks that share them."""
    asked = {name: int(text) for name in THREADS if (text := environment.get(name, "").split(",")[0]).isdigit()}
    limits = cgroup.limits(root)
    cpus = min(len(os.sched_getaffinity(0)), limits.cpu_quota, limits.cpuset or math.inf)
    name = max(asked, key=lambda each: asked[each], default="")
    return {"variable": name, "threads": asked.get(name, 0), "cpus": cpus, "ranks": context.ranks}


def judge_threads(found: object) -> Outcome:
    """Without a variable torchrun gives each rank one thread. One thread a rank is never too many."""
    value = found if isinstance(found, Mapping) else {}
    threads, cpus, ranks = (number(value.get(name)) for name in ("threads", "cpus", "ranks"))
    variable = value.get("variable")
    if threads is None or not cpus or not ranks or not isinstance(variable, str):
        return unreadable("the number of threads", found)
    expected = f"threads x ranks at most {max(cpus, ranks):g}"
    if threads <= 1:
        observed = f"{variable}={threads:g}" if variable else "no variable asks for threads"
        return Outcome(status="pass", observed=observed, expected=expected)
    share = threads * ranks / max(cpus, ranks)
    right = max(1, int(cpus / ranks))
    status: Status = "fail" if share > THREADS_FAIL else "warn" if share > THREADS_WARN else "pass"
    return Outcome(
        status=status,
        observed=f"{variable}={threads:g} x {ranks:g} ranks on {cpus:g} CPUs",
        expected=expected,
        remedy="" if status == "pass" else f"export {variable}={right} (docker run -e {variable}={right})",
    )


def _threads_of(user: int) -> Iterator[int]:
    """Threads of each of a user's processes; one that ends meanwhile counts no more."""
    for process in psutil.process_iter():
        try:
            if process.uids().real == user:
                yield process.num_threads()
        except psutil.Error:
            continue


CHECKS = (
    Check(
        id="limits.processes",
        title="processes and threads that may start",
        measure=measure_processes,
        judge=judge_processes,
        deadline=10,
        child="host",
        why="`OSError: [Errno 11] Resource temporarily unavailable`, `can't start new thread` or `libgomp: Thread "
        "creation failed`, in whichever rank comes last.",
        rule=f"With {PROCESSES_A_RANK} processes and threads a rank: fails when fewer may still start, warns below "
        "twice as many. Counts the control group's pids.max and the user's RLIMIT_NPROC.",
    ),
    Check(
        id="limits.throttling",
        title="the CPU quota is enough",
        measure=measure_throttling,
        judge=judge_throttling,
        deadline=10,
        child="host",
        why="No message: a container that uses up its quota stands still for the rest of each 100 ms, and with it "
        "every rank that waits for it in a collective.",
        rule=f"Warns when the quota ran out in more than {THROTTLED_SHARE:.0%} of at least {ENOUGH_PERIODS} periods.",
    ),
    Check(
        id="limits.swap",
        title="memory is not in swap",
        measure=measure_swap,
        judge=judge_swap,
        deadline=10,
        child="host",
        proof="mixed",
        why="No message: steps take many times as long while optimizer state is read back from a disk, on one node of "
        "many, and the others wait.",
        rule=f"Warns when swap in use is more than {SWAP_SHARE:.0%} of memory.",
    ),
    Check(
        id="limits.threads",
        title="threads that variables ask for",
        measure=measure_threads,
        judge=judge_threads,
        deadline=10,
        child="host",
        why="No message: OMP_NUM_THREADS from a shell's start file times eight ranks is eight times the threads there "
        "are CPUs for, and they spin while they wait.",
        rule=f"Warns when threads times ranks are more than the CPUs this process may use, fails above "
        f"{THREADS_FAIL:g} times as many. One thread a rank always passes.",
    ),
)

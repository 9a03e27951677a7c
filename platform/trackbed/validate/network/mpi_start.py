"""mpi.root, mpi.slots, mpi.locked-memory: what becomes of `mpirun -n RANKS`, by starting it."""

from __future__ import annotations

import math
import os
import resource
import shutil
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from trackbed.release.probe import program_path
from trackbed.validate import GIB, Check, Context, Outcome, amount, number, skip, unreadable
from trackbed.validate.network.mpi import ALLOWED, NO_MPIRUN, output

SLOTS = "not enough slots"


def measure_root(context: Context, variables: Mapping[str, str] = os.environ, uid: int | None = None) -> dict[str, Any]:
    """The user, and which of the two variables allow mpirun to be root's."""
    return {
        "uid": os.geteuid() if uid is None else uid,
        "set": [name for name in ALLOWED if variables.get(name) == "1"],
        "mpirun": shutil.which("mpirun", path=program_path()) or "",
    }


def judge_root(found: object) -> Outcome:
    """Our own MPI check sets both variables for itself, so it does not notice."""
    value = found if isinstance(found, Mapping) else {}
    uid, given, mpirun = number(value.get("uid")), value.get("set"), value.get("mpirun")
    if uid is None or not isinstance(given, Sequence) or isinstance(given, str) or not isinstance(mpirun, str):
        return unreadable("who would start mpirun", found)
    missing = [name for name in ALLOWED if name not in given]
    expected = "another user than root, or both variables that allow root"
    if uid or not missing:
        who = f"uid {uid:g}" if uid else "root, and allowed"
        return Outcome(status="pass", observed=f"mpirun would be started by {who}", expected=expected)
    if not mpirun:
        return skip("there is no mpirun that could refuse root", NO_MPIRUN)
    return Outcome(
        status="warn",
        observed=f"mpirun refuses root: {' and '.join(missing)} not set",
        expected=expected,
        remedy=f"docker run --user 1000:0; or {' '.join(f'-e {name}=1' for name in missing)} "
        "(mpirun --allow-run-as-root)",
    )


def measure_slots(context: Context) -> dict[str, Any]:
    """What comes of `mpirun -n RANKS`, as a person types it, but for root's permission."""
    code, stdout, stderr = _start(context.ranks)
    return {"ranks": context.ranks, "code": code, "stderr": stderr[-2000:], "started": len(_limits(stdout))}


def judge_slots(found: object) -> Outcome:
    """mpirun counts cores, and starts no more ranks than those unless it is told to."""
    value = found if isinstance(found, Mapping) else {}
    ranks, started, code, stderr = (value.get(name) for name in ("ranks", "started", "code", "stderr"))
    if number(ranks) is None or number(started) is None or not isinstance(code, int | None) or code is True:
        return unreadable("what mpirun says", found)
    if not isinstance(stderr, str):
        return unreadable("what mpirun says", found)
    expected = f"{ranks} ranks start"
    if code == 0 and started == ranks:
        return Outcome(status="pass", observed=f"mpirun starts {ranks} ranks", expected=expected)
    if SLOTS not in stderr:
        return skip("mpirun starts nothing here, for another reason than slots", "comm.mpi-all-reduce says why")
    return Outcome(
        status="warn",
        observed=f"mpirun has not {ranks} slots: there are fewer cores for it than ranks",
        expected=expected,
        evidence=stderr,
        remedy="give it the cores (docker run --cpuset-cpus, --cpus does not count), or mpirun --map-by :OVERSUBSCRIBE "
        "(Open MPI 4: --oversubscribe), or `slots=` in a hostfile",
    )


def measure_locked(context: Context) -> dict[str, Any]:
    """The limit of locked memory in bytes, here and in each rank that mpirun starts."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    here = math.inf if soft == resource.RLIM_INFINITY else float(soft)
    return {"here": here, "ranks": _limits(_start(context.ranks)[1])}


def judge_locked(found: object) -> Outcome:
    """A daemon that a login shell did not start has its own limits, and its ranks inherit them."""
    value = found if isinstance(found, Mapping) else {}
    here, ranks = number(value.get("here")), value.get("ranks")
    if here is None or not isinstance(ranks, Sequence) or any(number(one) is None for one in ranks):
        return unreadable("the ranks' limit of locked memory", found)
    if not ranks:
        return skip("mpirun started no rank to ask", "mpi.slots and comm.mpi-all-reduce say why")
    least = min(map(float, ranks))
    expected = f"{amount(here)} or more, as here"
    if least >= min(here, 16 * GIB):
        return Outcome(status="pass", observed=f"ranks may lock {amount(least)}, as here", expected=expected)
    return Outcome(
        status="warn",
        observed=f"a rank may lock {amount(least)}, and this process {amount(here)}",
        expected=expected,
        remedy="raise it where the daemon starts: LimitMEMLOCK=infinity in the unit of slurmd or sshd, then restart "
        "it; limits.conf counts for logins alone",
    )


@cache
def _start(ranks: int) -> tuple[int | None, str, str]:
    """Each rank prints its limit of locked memory; once for the checks that ask, since starting takes a second."""
    program = shutil.which("mpirun", path=program_path())
    if program is None:
        return None, "", "there is no mpirun"
    return output([program, "-n", str(ranks), "sh", "-c", "ulimit -l"])


def _limits(stdout: str) -> list[float]:
    """The shell says kilobytes, or `unlimited`."""
    words = stdout.split()
    return [math.inf if word == "unlimited" else float(word) * 1024 for word in words if word.isdigit() or
            word == "unlimited"]  # fmt: skip


CHECKS = (
    Check(
        id="mpi.root",
        title="mpirun may be started by this user",
        measure=measure_root,
        judge=judge_root,
        deadline=30,
        child="mpi",
        why="`mpirun has detected an attempt to run as root.` (version 5 says prterun), and nothing starts.",
        rule="Warns for root without OMPI_ALLOW_RUN_AS_ROOT=1 and OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1.",
    ),
    Check(
        id="mpi.slots",
        title="mpirun starts as many ranks as a job has here",
        measure=measure_slots,
        judge=judge_slots,
        deadline=30,
        child="mpi",
        why="`There are not enough slots available in the system`: mpirun counts the cores that affinity and cpuset "
        "leave, and a container may have fewer than its host.",
        rule="Warns when mpirun refuses the ranks for want of slots; skips when it fails for another reason.",
    ),
    Check(
        id="mpi.locked-memory",
        title="ranks of mpirun may lock memory as we may",
        measure=measure_locked,
        judge=judge_locked,
        deadline=30,
        child="mpi",
        why="`Call to ibv_reg_mr failed with error Cannot allocate memory` in a job, while `ulimit -l` at the prompt "
        "says unlimited: ranks have the limit of the daemon that starts them.",
        rule="Warns when a rank started by mpirun may lock less than this process, and less than 16 GiB.",
    ),
)

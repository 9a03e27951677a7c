"""comm.*: ranks that really talk, once by torch's gloo and once by MPI, and sums that are looked at.

`python -m trackbed.validate.network.comm` is one MPI rank; mpirun starts two.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trackbed.release.probe import command_version, environment, program_path
from trackbed.validate import MIB, Check, Context, Outcome, skip, unreadable
from trackbed.validate.network.addresses import gloo_fault

RANKS = 2
ELEMENTS = 2 * MIB  # of 4 bytes: 8 MiB, large enough for the path that copies between processes
DTYPES = ("float32", "bfloat16")
# Docker's seccomp profile refuses process_vm_readv: Open MPI falls back, prints one such line a message, and is slow.
REFUSED = "Read -1, expected"
# What a launcher around us left: with these, mpirun would join that job or use its hosts instead of this machine.
FOREIGN = ("SLURM_", "PMI_", "PMIX_", "OMPI_COMM_WORLD_", "PRTE_")


@dataclass(frozen=True, kw_only=True)
class Sums:
    """One record a rank and data type, {"rank", "dtype", "wrong"}: wrong counts the elements with another sum."""

    ranks: int
    records: list[dict[str, Any]]
    error: str = ""
    stderr: str = ""
    skip: str = ""
    """Why it was not tried: another check reports that."""


def measure_gloo(context: Context) -> Sums:
    """Two ranks, forked after torch is imported so that it is imported once, that sum in fp32 and bf16."""
    if fault := gloo_fault():
        return Sums(ranks=RANKS, records=[], skip=fault)
    from torch.multiprocessing.spawn import ProcessException, start_processes

    with tempfile.TemporaryDirectory(prefix="trackbed-") as folder:
        try:
            start_processes(gloo_rank, (folder,), RANKS, start_method="fork")  # type: ignore[no-untyped-call]
        # ProcessRaisedException and ProcessExitedException: both say which rank and why.
        except ProcessException as failed:
            return Sums(ranks=RANKS, records=[], error=_last_line(str(failed)), stderr=str(failed)[-2000:])
        records = [json.loads(path.read_text("utf-8")) for path in sorted(Path(folder).glob("*.json"))]
    return Sums(ranks=RANKS, records=records)


def judge_gloo(sums: Sums) -> Outcome:
    """Both ranks, both types, every element."""
    if sums.skip:
        return skip(sums.skip, "do what network.host-name says")
    remedy = "this host's name must resolve (/etc/hosts), or set GLOO_SOCKET_IFNAME to an interface that is up"
    outcome = _judge(sums, DTYPES, remedy)
    if outcome.status != "pass":
        return outcome
    unsupported = sorted({str(record["dtype"]) for record in sums.records if "unsupported" in record})
    if not unsupported:
        return outcome
    return Outcome(
        status="warn",
        observed=f"sums are right, but this torch's gloo has none for {', '.join(unsupported)}",
        expected=outcome.expected,
        remedy="train in fp32 on CPUs, or use release 26.11",
    )


def gloo_rank(rank: int, folder: str) -> None:
    """One gloo rank: writes a record a data type."""
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS, timeout=timedelta(seconds=20)
    )
    for dtype in DTYPES:
        # Small whole numbers: bf16 holds them and their sums exactly.
        pattern = torch.arange(ELEMENTS // 8) % 8
        values = (pattern * (rank + 1)).to(getattr(torch, dtype))
        record = {"rank": rank, "dtype": dtype, "wrong": 0}
        try:
            dist.all_reduce(values)
            record["wrong"] = int((values != (pattern * sum(range(1, RANKS + 1))).to(values.dtype)).sum())
        except RuntimeError as error:
            # gloo says so before it sends anything, on every rank alike.
            if "Invalid scalar type" not in str(error):
                raise
            record["unsupported"] = True
        Path(folder, f"{rank}-{dtype}.json").write_text(json.dumps(record), "utf-8")
    dist.destroy_process_group()


def measure_mpi(context: Context, seconds: float = 30.0) -> Sums:
    """Two ranks started by mpirun, which sum 8 MiB through mpi4py."""
    program = shutil.which("mpirun", path=program_path())
    if program is None:
        return Sums(ranks=RANKS, records=[], error="there is no mpirun")
    command = [program, "-n", str(RANKS), sys.executable, "-m", "trackbed.validate.network.comm"]
    code, stdout, stderr = _until(command, seconds)
    if code is None:
        return Sums(ranks=RANKS, records=[], error=f"mpirun did not end within {seconds:g} s", stderr=stderr)
    error = f"mpirun ended with {code}: {_cause(stderr)}" if code else ""
    return Sums(ranks=RANKS, records=_records(stdout), error=error, stderr=stderr)


def judge_mpi(sums: Sums) -> Outcome:
    """A refused copy between processes leaves the sums right and the job slow: a warning."""
    outcome = _judge(
        sums, ("float32",), "make setup installs openmpi and mpi4py; what mpirun said is in the evidence (--json)"
    )
    if outcome.status != "pass" or REFUSED not in sums.stderr:
        return outcome
    return Outcome(
        status="warn",
        observed="sums are right, but the kernel refuses to copy between processes",
        expected="no `Read -1, expected` on standard error",
        evidence=sums.stderr[-2000:],
        remedy="docker run --cap-add SYS_PTRACE; or OMPI_MCA_smsc=^cma (Open MPI 5), "
        "OMPI_MCA_btl_vader_single_copy_mechanism=none (4)",
    )


def mpi_environment() -> dict[str, str]:
    """What mpirun needs on one machine; what the image or the user has set stays.

    More ranks than cores are fine for a check, and then a waiting rank must give its core away.
    """
    wanted = {
        "OMPI_MCA_pml": "ob1",
        "OMPI_MCA_btl": f"self,{_shared_memory()},tcp",
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        # Sockets and session folders go there, and a path of a Unix socket must be short.
        "TMPDIR": tempfile.gettempdir(),
    }
    if os.getuid() == 0:
        wanted |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    ours = {name: value for name, value in environment().items() if not name.startswith(FOREIGN)}
    return wanted | ours


def _shared_memory() -> str:
    """The name of Open MPI's transport through memory: version 5 renamed it, and 4 refuses the new name."""
    return "vader" if command_version("mpirun --version").version.startswith("4.") else "sm"


def mpi_rank() -> None:
    """One MPI rank: prints its record as one line."""
    import numpy as np
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    pattern = np.arange(ELEMENTS, dtype=np.float32) % 1024
    total = np.empty_like(pattern)
    world.Allreduce(pattern * (world.rank + 1), total)
    wrong = int((total != pattern * sum(range(1, RANKS + 1))).sum())
    record = {"rank": world.rank, "dtype": "float32", "wrong": wrong}
    # One write a line: mpirun may weave two ranks' output together otherwise.
    os.write(1, (json.dumps(record) + "\n").encode())


def _judge(sums: Sums, dtypes: Sequence[str], remedy: str) -> Outcome:
    """Every rank must have reported every type, with no wrong element; a record that is missing is a failure."""
    expected = f"{sums.ranks} ranks, right sums in {', '.join(dtypes)}"
    if sums.error:
        return Outcome(status="fail", observed=sums.error, expected=expected, evidence=sums.stderr, remedy=remedy)
    if any(not isinstance(record, Mapping) or not isinstance(record.get("wrong"), int) for record in sums.records):
        return unreadable("a rank's report", sums.records)
    said = {(record.get("rank"), record.get("dtype")): record["wrong"] for record in sums.records}
    silent = [(rank, dtype) for rank in range(sums.ranks) for dtype in dtypes if (rank, dtype) not in said]
    wrong = {key: count for key, count in said.items() if count}
    if not silent and not wrong:
        return Outcome(status="pass", observed=expected, expected=expected)
    parts = [f"rank {rank} reported no {dtype} sum" for rank, dtype in silent]
    parts += [f"rank {rank} got {count} wrong {dtype} elements" for (rank, dtype), count in wrong.items()]
    return Outcome(
        status="fail", observed="; ".join(parts), expected=expected, evidence=sums.stderr[-2000:], remedy=remedy
    )


def _until(command: Sequence[str], seconds: float) -> tuple[int | None, str, str]:
    """Exit code (None when it ran late), standard output, standard error of mpirun."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "errors": "replace"}
    with subprocess.Popen(command, env=mpi_environment(), text=True, **streams) as child:  # type: ignore[call-overload]
        try:
            stdout, stderr = child.communicate(timeout=seconds)
            return child.returncode, stdout, stderr
        except subprocess.TimeoutExpired:
            # Asked to end, mpirun ends its ranks first; killed, it would leave them.
            child.terminate()
        try:
            return None, *child.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            child.kill()
            return None, "", "mpirun did not end when asked to"


def _records(stdout: str) -> list[dict[str, Any]]:
    """The ranks' lines; other lines are what Open MPI or a library had to say."""
    return [json.loads(line) for line in stdout.splitlines() if line.startswith('{"rank"') and line.endswith("}")]


def _cause(stderr: str) -> str:
    """The line that says why: Python's error if there is one, else mpirun's first words."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip(" -\t")]
    errors = [line for line in lines if "Error: " in line]
    return (errors or lines or ["it said nothing"])[0][:200]


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it said nothing"])[-1][:200]


CHECKS = (
    Check(
        id="comm.gloo-all-reduce",
        title="two gloo ranks",
        measure=measure_gloo,
        judge=judge_gloo,
        deadline=90,
        child="torch",
        why="Ranks that cannot find each other hang, or say `Gloo connectFullMesh failed`.",
        rule="Fails when two ranks do not get the right sums; warns when this torch's gloo has no bfloat16. Skipped "
        "when GLOO_SOCKET_IFNAME is no interface that is up, which network.host-name fails.",
    ),
    Check(
        id="comm.mpi-all-reduce",
        title="two MPI ranks",
        measure=measure_mpi,
        judge=judge_mpi,
        deadline=60,
        why="`mpirun` that works for one rank may refuse two, or flood the log with `Read -1, expected N, "
        "errno = 1` and run slowly.",
        rule="Fails when two ranks do not get the right sums; warns when the kernel refuses to copy between processes.",
    ),
)


if __name__ == "__main__":
    mpi_rank()

"""mpi.library, mpi.accelerators, mpi.interface: whether the MPI that is here can do what ranks will ask of it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from trackbed.release.probe import command_version, environment, program_path
from trackbed.validate import Check, Context, Outcome, number, skip, unreadable
from trackbed.validate.network.comm import FOREIGN

VERSION = re.compile(r"\d+\.\d+\.\d+")
ALLOWED = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
# Where DeepSpeed's launcher looks for the nodes when it is not told: with it, somebody means to use that launcher.
HOSTFILE = Path("/job/hostfile")
NO_MPIRUN = "comm.mpi-all-reduce says how to get it"


def measure_library(context: Context) -> dict[str, str]:
    """The versions of mpirun, of ompi_info, and of the library that mpi4py loads, without starting MPI."""
    try:
        import mpi4py

        mpi4py.rc.initialize = mpi4py.rc.finalize = False
        from mpi4py import MPI
    except ImportError as failed:
        return {"mpirun": "", "ompi_info": "", "library": "", "error": f"{type(failed).__name__}: {failed}"}
    library = MPI.Get_library_version().strip("\0\n ")
    return {
        "mpirun": command_version("mpirun --version").version,
        "ompi_info": command_version("ompi_info --version").version if "Open MPI" in library else "",
        "library": library,
    }


def judge_library(found: object) -> Outcome:
    """Two MPIs on one machine: ranks that are each rank 0 of 1, or that never find each other."""
    value = found if isinstance(found, Mapping) else {}
    names = ("mpirun", "ompi_info", "library")
    if value.get("error"):
        return skip(f"mpi4py does not import ({value['error']})", "comm.mpi-all-reduce says what to do")
    if not all(isinstance(value.get(name), str) for name in names) or not value["library"]:
        return unreadable("the MPI that is loaded", found)
    if not value["mpirun"]:
        return skip("there is no mpirun to compare with", NO_MPIRUN)
    loaded = VERSION.search(value["library"])
    versions = {
        "mpirun": value["mpirun"],
        "ompi_info": value["ompi_info"],
        "mpi4py's library": loaded[0] if loaded else value["library"][:40],
    }
    said = {name: version for name, version in versions.items() if version}
    expected = "mpirun, ompi_info and the library of mpi4py of one installation"
    if len(set(said.values())) == 1:
        return Outcome(status="pass", observed=f"{value['mpirun']} everywhere", expected=expected)
    return Outcome(
        status="fail",
        observed=", ".join(f"{name} {version}" for name, version in said.items()),
        expected=expected,
        evidence=value["library"],
        remedy="put the folder of the right mpirun first in PATH (command -v -a mpirun), take other MPIs out of "
        "LD_LIBRARY_PATH, or build mpi4py for that one: uv pip install --no-binary mpi4py mpi4py",
    )


def measure_accelerators(context: Context, devices: Path = Path("/dev")) -> dict[str, Any]:
    """Whether Open MPI is built for CUDA, and whether there are NVIDIA GPUs that would need it."""
    program = shutil.which("ompi_info", path=program_path())
    said = output([program, "--parsable", "--all"])[1] if program else ""
    match = re.search(r"built_with_cuda_support:value:(true|false)", said)
    gpus = len([path for path in devices.glob("nvidia[0-9]*") if path.name[6:].isdigit()])
    return {"cuda": match[1] if match else "", "gpus": gpus}


def judge_accelerators(found: object) -> Outcome:
    """NCCL moves gradients; MPI's own calls on GPU buffers need an MPI that knows CUDA."""
    value = found if isinstance(found, Mapping) else {}
    cuda, gpus = value.get("cuda"), number(value.get("gpus"))
    if cuda not in ("true", "false", "") or gpus is None:
        return unreadable("what Open MPI is built for", found)
    if not gpus:
        return skip("no NVIDIA GPU here whose memory MPI could send from", "nothing to do on a machine without GPUs")
    if cuda == "true":
        return Outcome(status="pass", observed="built for CUDA")
    return Outcome(
        status="warn",
        observed=f"{gpus:g} GPUs, and an Open MPI that is not built for CUDA" if cuda else "ompi_info does not say",
        expected="built for CUDA, where MPI is to send from GPU memory",
        remedy="train with NCCL (trackbed does), copy to the host before MPI's calls, or use an Open MPI configured "
        "--with-cuda, such as that of NVIDIA's images",
    )


def measure_interface(context: Context, hostfile: Path = HOSTFILE) -> dict[str, Any]:
    """Whether there is an eth0, and whether a hostfile shows that DeepSpeed's launcher is meant to be used."""
    named = os.environ.get("DLTS_HOSTFILE")
    files = [Path(named)] if named else [hostfile]
    return {
        "interfaces": sorted(name for name, one in psutil.net_if_stats().items() if one.isup),
        "hostfile": next((str(path) for path in files if path.is_file()), ""),
    }


def judge_interface(found: object) -> Outcome:
    """`deepspeed --launcher openmpi` tells mpirun to use eth0 and TCP, whatever there is."""
    value = found if isinstance(found, Mapping) else {}
    names, hostfile = value.get("interfaces"), value.get("hostfile")
    if not isinstance(names, Sequence) or isinstance(names, str) or not isinstance(hostfile, str):
        return unreadable("the interfaces", found)
    expected = "an eth0, where jobs are started by `deepspeed --launcher openmpi`"
    if "eth0" in names:
        return Outcome(status="pass", observed="there is an eth0", expected=expected)
    if not hostfile:
        return skip("no eth0, but no hostfile for the deepspeed launcher either", "start ranks with torchrun or srun")
    return Outcome(
        status="fail",
        observed=f"{hostfile} is there for the deepspeed launcher, but no eth0 (up: {', '.join(map(str, names))})",
        expected=expected,
        remedy="start ranks with torchrun (trackbed submit does), or deepspeed --launcher_args "
        f"'--mca btl_tcp_if_include {next((str(name) for name in names if name != 'lo'), 'IFNAME')}'",
    )


def output(command: Sequence[str]) -> tuple[int | None, str, str]:
    """Exit code (None when it did not end), standard output and error, without what a launcher around us has set."""
    kept = {name: value for name, value in environment().items() if not name.startswith(FOREIGN)}
    kept |= dict.fromkeys(ALLOWED, "1")
    try:
        done = subprocess.run(command, env=kept, capture_output=True, text=True, errors="replace", timeout=20)
    except (OSError, subprocess.TimeoutExpired) as failed:
        return None, "", str(failed)
    return done.returncode, done.stdout, done.stderr


CHECKS = (
    Check(
        id="mpi.library",
        title="one MPI",
        measure=measure_library,
        judge=judge_library,
        deadline=30,
        child="mpi",
        why="Ranks that each say they are rank 0 of 1, or `MPI_Init ... PMIx server unreachable`: mpi4py loads the "
        "library of another installation than the mpirun that starts it.",
        rule="Fails when the versions of mpirun, ompi_info and the library that mpi4py loads differ.",
    ),
    Check(
        id="mpi.accelerators",
        title="MPI knows the GPUs",
        measure=measure_accelerators,
        judge=judge_accelerators,
        deadline=30,
        child="mpi",
        proof="mixed",
        why="A segmentation fault in MPI_Allreduce on a GPU buffer: an Open MPI that is not built for CUDA reads the "
        "address as one of the host.",
        rule="Warns when there are NVIDIA GPUs and ompi_info does not say that CUDA is built in; skips without a GPU.",
    ),
    Check(
        id="mpi.interface",
        title="an eth0 for the deepspeed launcher",
        measure=measure_interface,
        judge=judge_interface,
        deadline=10,
        child="mpi",
        why="DeepSpeed's openmpi launcher passes `btl_tcp_if_include eth0` to mpirun: on a host whose interface has "
        "another name no rank reaches another one.",
        rule="Passes with an eth0; without one it fails when a hostfile (DLTS_HOSTFILE, /job/hostfile) shows that the "
        "launcher is used, and skips otherwise.",
    ),
)

"""container.memory-binding, container.process-copy: calls that an engine's seccomp profile refuses, really made."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trackbed.release.probe import command_version
from trackbed.validate import Check, Context, Outcome, skip, unreadable

SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
NODES = Path("/sys/devices/system/node")
SIZE = 64
# How a job asks Open MPI for copies between processes, versions 5 and 4.
ASKED = {"OMPI_MCA_smsc": "cma", "OMPI_MCA_btl_vader_single_copy_mechanism": "cma"}


class _Piece(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def measure_memory_binding(context: Context, nodes: Path = NODES) -> dict[str, Any]:
    """What the kernel says to set_mempolicy(MPOL_DEFAULT), which changes nothing, and the NUMA nodes there are."""
    call = SET_MEMPOLICY.get(platform.machine())
    count = len(list(nodes.glob("node[0-9]*")))
    if call is None:
        return {"machine": platform.machine(), "error": None, "nodes": count}
    libc = ctypes.CDLL(None, use_errno=True)
    failed = libc.syscall(ctypes.c_long(call), 0, None, ctypes.c_ulong(0)) != 0
    return {"machine": platform.machine(), "error": _name() if failed else "", "nodes": count}


def judge_memory_binding(found: object) -> Outcome:
    """Refusing it costs something only where memory can be at the wrong place: with two nodes or more."""
    value = found if isinstance(found, Mapping) else {}
    error, nodes, machine = value.get("error"), value.get("nodes"), value.get("machine")
    if not isinstance(nodes, int) or isinstance(nodes, bool) or not isinstance(machine, str):
        return unreadable("whether memory can be bound", found)
    if error is None:
        return skip(f"the number of set_mempolicy on {machine} is not known here", "use x86_64 or aarch64")
    if not isinstance(error, str):
        return unreadable("whether memory can be bound", found)
    expected = "set_mempolicy is allowed, or there is one NUMA node"
    if not error:
        return Outcome(status="pass", observed=f"memory can be bound, {nodes} NUMA nodes", expected=expected)
    if nodes < 2:
        return Outcome(status="pass", observed=f"refused ({error}), but one NUMA node needs none", expected=expected)
    return Outcome(
        status="warn",
        observed=f"set_mempolicy is refused ({error}) with {nodes} NUMA nodes",
        expected=expected,
        remedy="docker run --cap-add SYS_NICE; compose `cap_add: [SYS_NICE]`; Kubernetes capabilities.add; or bind "
        "CPUs only (numactl --cpunodebind without --membind, no --bind_cores_to_rank)",
    )


def measure_process_copy(context: Context, environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """What the kernel says to process_vm_readv from a child, and the Open MPI that would use it."""
    asked = [name for name, word in ASKED.items() if word in environment.get(name, "").split(",")]
    version = command_version("mpirun --version").version
    return {"error": _copy_from_child(), "mpirun": version, "asked": ", ".join(asked)}


def judge_process_copy(found: object) -> Outcome:
    """Open MPI 5 does without it and says nothing; 4 prints a line a message, which comm.mpi-all-reduce reads."""
    value = found if isinstance(found, Mapping) else {}
    error, version, asked = (value.get(name) for name in ("error", "mpirun", "asked"))
    if not all(isinstance(text, str) for text in (error, version, asked)):
        return unreadable("whether processes may copy from each other", found)
    expected = "process_vm_readv is allowed, or no job asks Open MPI for it"
    if not error:
        return Outcome(status="pass", observed="a process may copy from another one of its user", expected=expected)
    if asked:
        observed = f"{asked} asks for copies between processes, which the kernel refuses ({error})"
        remedy = (
            f"docker run --cap-add SYS_PTRACE, or Docker 23 and newer; or unset {asked}: messages then go through "
            "/dev/shm, copied twice"
        )
        return Outcome(status="warn", observed=observed, expected=expected, remedy=remedy)
    uses = (
        "comm.mpi-all-reduce says whether Open MPI 4 minds" if str(version).startswith("4.") else "nothing asks for it"
    )
    return Outcome(status="pass", observed=f"refused ({error}); {uses}", expected=expected)


def _copy_from_child() -> str:
    """Empty when bytes of a child could be read, else the errno's name. The child waits in a pipe, and is ended."""
    theirs, ours = ctypes.create_string_buffer(b"x" * SIZE, SIZE), ctypes.create_string_buffer(SIZE)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    try:
        here = _Piece(ctypes.addressof(ours), SIZE)
        there = _Piece(ctypes.addressof(theirs), SIZE)
        libc = ctypes.CDLL(None, use_errno=True)
        count = libc.process_vm_readv(child, ctypes.byref(here), 1, ctypes.byref(there), 1, ctypes.c_ulong(0))
        return "" if count == SIZE and ours.raw == theirs.raw else _name()
    finally:
        # The child reads the end of the pipe, and ends.
        os.close(writer)
        os.close(reader)
        os.waitpid(child, 0)


def _name() -> str:
    number = ctypes.get_errno()
    return errno.errorcode.get(number, f"error {number}")


CHECKS = (
    Check(
        id="container.memory-binding",
        title="memory can be bound to a NUMA node",
        measure=measure_memory_binding,
        judge=judge_memory_binding,
        deadline=10,
        child="host",
        proof="mixed",
        why="`set_mempolicy: Operation not permitted` or `setting membind: Operation not permitted`: a rank that is "
        "started under numactl --membind, as DeepSpeed's --bind_cores_to_rank does, ends with no traceback.",
        rule="Warns when the call is refused and there are two NUMA nodes or more. With one node it passes.",
    ),
    Check(
        id="container.process-copy",
        title="a process may copy from another one",
        measure=measure_process_copy,
        judge=judge_process_copy,
        deadline=30,
        child="host",
        why="`Read -1, expected 4194304, errno = 1` once a message: Docker before 23 refuses process_vm_readv, through "
        "which Open MPI copies a message once instead of twice.",
        rule="Warns when the call is refused and an OMPI_MCA_ variable asks for it. Without one Open MPI 5 does "
        "without it; that Open MPI 4 minds is what comm.mpi-all-reduce finds.",
    ),
)

"""expect.*: this node against the site's expectation file (expectations.py); without one there is nothing to check.

Each `read_*` says what is here. `trackbed validate --learn` writes what they say of a good node, and the checks hold it
against what they say of the others, so that the two can never speak of different things.
"""

from __future__ import annotations

import functools
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from trackbed.validate import GIB, Check, Context, Outcome, number, skip, unreadable
from trackbed.validate.hardware import nvml, shared
from trackbed.validate.machine.mounts import mounts as table
from trackbed.validate.machine.mounts import must_answer
from trackbed.validate.site.expectations import SECTIONS

NO_FILE = "no expectation file"
NOTHING = "the expectation file does not say"
WRITE_ONE = "on a good node: trackbed validate --learn site.toml; then here: trackbed validate --expect site.toml"
SHARED_MEMORY = Path("/dev/shm")
CHANGED = "; if the site has changed, learn the file again"


def read_cpus() -> dict[str, Any]:
    """CPUs of the machine, not those a job may use: that differs from job to job."""
    return {"count": os.cpu_count()}


def read_memory() -> dict[str, Any]:
    return {"gib": psutil.virtual_memory().total / GIB}


def read_shared_memory(folder: Path = SHARED_MEMORY) -> dict[str, Any]:
    """None where there is no such folder."""
    return {"gib": _size(folder)}


def read_gpus(root: Path = Path("/")) -> dict[str, Any]:
    """How many GPUs of each model the driver answers for; why there are none, where there are none."""
    seen = nvml.snapshot(root)
    why = seen.get("absent") or seen.get("error") or ("NVML does not answer" if "late" in seen else "")
    models = Counter(str(gpu.get("name")) for gpu in seen.get("gpus", ()))
    return {"count": models.total(), "models": dict(models), "why": str(why)}


def read_driver(root: Path = Path("/")) -> dict[str, Any]:
    return {"version": shared.driver(root)["version"]}


def read_rdma(root: Path = Path("/")) -> dict[str, Any]:
    """Gbit/s of each active port; the ports that are not active, with the state they are in."""
    rates: dict[str, float] = {}
    down: dict[str, str] = {}
    devices = root / "sys/class/infiniband"
    for port in (port for name in shared.names(devices) for port in _ports(devices / name)):
        state, rate = (shared.text(port / name) for name in ("state", "rate"))
        name = f"{port.parents[1].name}/{port.name}"
        match = re.match(r"[\d.]+", rate)
        if state.endswith("ACTIVE") and match:
            rates[name] = float(match[0])
        else:
            down[name] = state or "unknown"
    return {"rates": rates, "down": down}


def _ports(device: Path) -> list[Path]:
    return [device / "ports" / name for name in shared.names(device / "ports")]


def read_mounts(paths: Sequence[str], root: Path = Path("/")) -> dict[str, Any]:
    """For each path: its file system when something is mounted there, GiB free; None for what is not mounted.

    Raises Unreachable for one that hangs.
    """
    mounted = mounts(root)
    return {path: _mount(path, mounted.get(os.path.normpath(path))) for path in paths}


def _mount(path: str, kind: str | None) -> dict[str, Any] | None:
    if kind is None:
        return None
    must_answer(Path(path))
    return {"file_system": kind, "free_gib": _free(Path(path))}


def mounts(root: Path = Path("/")) -> dict[str, str]:
    """Mount point -> file system; the last one mounted there is the one that is seen."""
    return {str(mount.point): mount.kind for mount in table(root)}


def _size(folder: Path) -> float | None:
    try:
        stat = os.statvfs(folder)
    except OSError:
        return None
    return stat.f_frsize * stat.f_blocks / GIB


def _free(folder: Path) -> float | None:
    try:
        stat = os.statvfs(folder)
    except OSError:
        return None
    return stat.f_frsize * stat.f_bavail / GIB


def measure(context: Context, section: str) -> dict[str, Any]:
    """What is wanted and what is here; nothing is read where nothing is wanted."""
    wanted = context.expect.get(section)
    if wanted is None:
        return {"file": not SECTIONS.keys().isdisjoint(context.expect), "wanted": None, "found": None}
    paths = [str(mount["path"]) for mount in wanted] if section == "mounts" else []
    return {"file": True, "wanted": wanted, "found": read_mounts(paths) if paths else READERS[section]()}


READERS = {
    "cpu": read_cpus,
    "memory": read_memory,
    "shared_memory": read_shared_memory,
    "gpu": read_gpus,
    "driver": read_driver,
    "rdma": read_rdma,
}


def _judge(what: str, remedy: str, compare: Any, measured: object) -> Outcome:
    """The frame of every rule: skip without an expectation, error for garbage, fail with every mismatch named."""
    if not isinstance(measured, Mapping) or not {"file", "wanted", "found"} <= measured.keys():
        return unreadable(what, measured)
    if measured["wanted"] is None:
        return skip(NOTHING if measured["file"] else NO_FILE, remedy=WRITE_ONE)
    try:
        expected, observed, mismatches = compare(measured["wanted"], measured["found"])
    except (KeyError, TypeError, ValueError, AttributeError):
        return unreadable(what, measured)
    if mismatches:
        return Outcome(status="fail", observed="; ".join(mismatches), expected=expected, remedy=remedy + CHANGED)
    return Outcome(status="pass", observed=observed, expected=expected)


Compared = tuple[str, str, list[str]]  # what is wanted, what is here, every mismatch with both values


def compare_count(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> Compared:
    want, seen = shared.count(wanted["count"]), shared.count(found["count"])
    observed = f"{seen:g} CPUs"
    return f"{want:g} CPUs", observed, [] if seen == want else [f"{observed}, {want:g} expected"]


def compare_amount(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> Compared:
    want, seen = shared.count(wanted["minimum_gib"]), shared.count(found["gib"] or 0)
    narrow = seen < 100  # mutation: equivalent, because at 100 both write three digits
    observed = f"{seen:.3g} GiB" if narrow else f"{seen:.0f} GiB"
    return f"{want:g} GiB or more", observed, [] if seen >= want else [f"{observed}, {want:g} GiB expected"]


def compare_gpus(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> Compared:
    want, seen, model = shared.count(wanted["count"]), shared.count(found["count"]), wanted.get("model")
    models: Mapping[str, int] = found["models"]
    why = f" ({found['why']})" if found["why"] else ""
    mismatches = [] if seen == want else [f"{seen:g} GPUs{why}, {want:g} expected"]
    others = {name: count for name, count in models.items() if model and name != model}
    mismatches += [f"{count} are {name}, {model} expected" for name, count in sorted(others.items())]
    observed = ", ".join(f"{count} {name}" for name, count in sorted(models.items())) or "no GPU"
    return f"{want:g} {model or 'GPUs'}", observed, mismatches


def compare_driver(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> Compared:
    want, seen = str(wanted["version"]), str(found["version"] or "none")
    return f"driver {want}", f"driver {seen}", [] if seen == want else [f"driver {seen}, {want} expected"]


def compare_rdma(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> Compared:
    """Rates as a multiset: device names differ from node to node, what they can do must not."""
    want = sorted(map(shared.count, wanted["rates_gbit_s"]), reverse=True)
    seen = sorted(map(shared.count, found["rates"].values()), reverse=True)
    down = "".join(f"; {port} is {state}" for port, state in sorted(found["down"].items()))
    observed = f"active ports: {_rates(seen)}"
    mismatches = [] if seen == want else [f"{observed}, {_rates(want)} expected{down}"]
    return f"active ports: {_rates(want)}", observed, mismatches


def _rates(rates: Sequence[float]) -> str:
    """8 of 400 Gb/s and 1 of 25 Gb/s."""
    counted = [f"{count} of {rate:g} Gb/s" for rate, count in Counter(rates).items()]
    return " and ".join(counted) or "none"


def compare_mounts(wanted: Sequence[Mapping[str, Any]], found: Mapping[str, Any]) -> Compared:
    mismatches, expected, observed = [], [], []
    for mount in wanted:
        path = mount["path"]
        expected.append(_mount_words(path, mount.get("file_system"), mount.get("minimum_free_gib")))
        mismatches += _mount_mismatches(mount, found[path])
        if found[path]:
            observed.append(_mount_words(path, found[path]["file_system"], found[path]["free_gib"]))
    return "; ".join(expected), "; ".join(observed), mismatches


def _mount_words(path: str, kind: str | None, free: float | None) -> str:
    size = "" if free is None else f", {free:.3g} GiB free"
    return f"{path} ({kind}{size})" if kind else f"{path}{size}"


def _mount_mismatches(wanted: Mapping[str, Any], found: Mapping[str, Any] | None) -> list[str]:
    path, kind, least = wanted["path"], wanted.get("file_system"), number(wanted.get("minimum_free_gib"))
    if found is None:
        return [f"nothing is mounted at {path}, {kind or 'a file system'} expected"]
    mismatches = (
        [f"{path} is {found['file_system']}, {kind} expected"] if kind not in (None, found["file_system"]) else []
    )
    free = found["free_gib"]
    if least is not None and (free is None or shared.count(free) < least):
        seen = "does not answer" if free is None else f"has {free:.3g} GiB free"
        mismatches.append(f"{path} {seen}, {least:g} GiB expected")
    return mismatches


def _row(name: str, section: str, what: str, compare: Any, why: str, rule: str, remedy: str) -> Check:
    """A row of the table; what a site expects of hardware is proved by fixtures, the rest by this machine."""
    proof = "fixture" if section in ("gpu", "driver", "rdma") else "real"
    return Check(
        id=f"expect.{name}",
        title=f"{what} against the site's expectation file",
        measure=functools.partial(measure, section=section),
        judge=functools.partial(_judge, what, remedy, compare),
        deadline=25,
        child="hardware" if section == "gpu" else "host",
        proof=proof,  # type: ignore[arg-type]
        why=why,
        rule=f"Skips without an expectation file, or when it says nothing about this. Fails when {rule}.",
    )


CHECKS = (
    _row(
        "cpus", "cpu", "CPUs", compare_count,
        "A node whose CPUs were halved by a firmware update (SMT off) or a dead socket trains, only slower, and every "
        "rank waits for it. Nothing prints a message.",
        "the machine has another number of CPUs than `cpu.count`",
        "compare `lscpu` with a good node: SMT and sockets in the firmware's setup",
    ),
    _row(
        "memory", "memory", "memory", compare_amount,
        "A DIMM that failed its training at boot is left out without a word; jobs sized for the site then die with "
        "exit code -9 on this one node.",
        "the machine has less memory than `memory.minimum_gib`",
        "compare `free -g` and `dmidecode --type memory` with a good node: a module is missing or was left out at boot",
    ),
    _row(
        "shared-memory", "shared_memory", "/dev/shm", compare_amount,
        "A node with a smaller `/dev/shm` breaks data workers: `DataLoader worker (pid N) is killed by signal: Bus "
        "error`.",
        "`/dev/shm` is smaller than `shared_memory.minimum_gib`",
        "mount -o remount,size=NG /dev/shm; docker run --shm-size=Ng; Kubernetes: an emptyDir, medium Memory, on "
        "/dev/shm",
    ),
    _row(
        "gpus", "gpu", "GPUs", compare_gpus,
        "A GPU that fell off the bus leaves a node that looks healthy and answers with seven of eight; the job then "
        "dies at start with `CUDA error: invalid device ordinal`.",
        "the driver answers for another number of GPUs than `gpu.count`, or one is not a `gpu.model`",
        f"nvidia-smi -L; dmesg | grep -i xid (79: off the bus); in a container: {shared.GPU_FLAG}",
    ),
    _row(
        "driver", "driver", "the NVIDIA driver", compare_driver,
        "One node with another driver makes failures that only appear with it in the job, such as `CUDA driver "
        "version is insufficient for CUDA runtime version`.",
        "the loaded kernel module has another version than `driver.version`",
        "install the site's driver on this node and reboot",
    ),
    _row(
        "rdma", "rdma", "RDMA ports", compare_rdma,
        "A port that is down or came up at half its rate slows every all-reduce of every job that touches this node; "
        "NCCL only says so with NCCL_DEBUG=INFO, as another `NET/IB : Using` line.",
        "the active ports' rates are not `rdma.rates_gbit_s`, in any order",
        "ibstat; reseat or replace the cable; in a container: docker run --device=/dev/infiniband",
    ),
    _row(
        "mounts", "mounts", "mounts", compare_mounts,
        "Without the shared file system its path is an empty folder of the local disk: checkpoints go there, and the "
        "next node finds none. `No space left on device` comes hours later.",
        "nothing is mounted at a `mounts.path`, it is another `file_system`, or less than `minimum_free_gib` is free",
        "mount it (`findmnt PATH`, `systemctl status remote-fs.target`), or free space there; docker run -v PATH:PATH",
    ),
)  # fmt: skip

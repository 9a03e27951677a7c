"""rdma.*: InfiniBand and RoCE devices as the kernel shows them in sysfs, and the path between them and the GPUs."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trackbed.validate import Context, Outcome, Status, skip, unreadable
from trackbed.validate.hardware import nvml
from trackbed.validate.hardware.rdma_links import CHECKS as LINKS
from trackbed.validate.hardware.rdma_links import DEVICES, ports
from trackbed.validate.hardware.shared import (
    LIBRARY_FOLDERS,
    NO_RDMA,
    absent,
    cheap,
    driver,
    expected,
    missing,
    modules,
    names,
    not_here,
    text,
)

DEVICE_FLAG = (
    "docker run --device=/dev/infiniband --cap-add=IPC_LOCK --ulimit memlock=-1; Kubernetes: the RDMA device "
    "plugin's resource; Slurm with pyxis: --container-mounts=/dev/infiniband"
)
PEERS = ("nv_mem", "nv_mem_nc", "nvidia-peermem")


def measure_devices(context: Context, root: Path = Path("/")) -> dict[str, Any]:
    """RDMA devices of the kernel, device files, and the user-space libraries that drive them."""
    hcas = names(root / DEVICES)
    folders = [root / folder / "libibverbs" for folder in LIBRARY_FOLDERS]
    return {
        "hcas": hcas,
        "uverbs": names(root / "dev/infiniband", "uverbs*"),
        "providers": sorted({name for folder in folders for name in names(folder, "*.so")}),
        "expect": dict(context.expect),
    }


def judge_devices(value: Any) -> Outcome:
    """The kernel's devices are seen in every container; the files that open them are not."""
    if outcome := not_here("RDMA devices", value):
        return outcome
    lists = [value.get(name) for name in ("hcas", "uverbs", "providers")]
    strict: Status = "fail" if expected(value, "rdma") else "warn"
    if not all(isinstance(each, list) for each in lists):
        return unreadable("RDMA devices", dict(value))
    hcas, uverbs, providers = (each for each in lists if isinstance(each, list))
    wanted = "a uverbs file for each device, and rdma-core's providers"
    if not hcas:
        return skip(NO_RDMA)
    if len(uverbs) < len(hcas):
        observed = f"{len(hcas)} RDMA devices in the kernel, {len(uverbs)} in /dev/infiniband"
        return Outcome(status=strict, observed=observed, expected=wanted, remedy=DEVICE_FLAG)
    if not providers:
        observed, remedy = (
            "no libibverbs provider: NCCL finds no IB device",
            "apt-get install rdma-core ibverbs-providers",
        )
        return Outcome(status=strict, observed=observed, expected=wanted, remedy=remedy)
    return Outcome(status="pass", observed=f"{len(hcas)} RDMA devices", expected=wanted, evidence=", ".join(hcas))


def measure_ports(context: Context, root: Path = Path("/")) -> dict[str, Any]:
    """State and rate of each port."""
    found = {name: {kind: text(path / kind) for kind in ("state", "phys_state", "rate")} for name, path in ports(root)}
    return {"ports": found}


def judge_ports(value: Any) -> Outcome:
    """One rate for all ports in use: expect.rdma says whether it is the site's."""
    if outcome := not_here("RDMA ports", value):
        return outcome
    try:
        found = {str(name): (_state(port["state"]), _rate(port["rate"])) for name, port in value["ports"].items()}
        polling = [str(name) for name, port in value["ports"].items() if _state(port["phys_state"]) == "Polling"]
    except (KeyError, TypeError, ValueError, AttributeError):
        return unreadable("RDMA ports", dict(value))
    if not found:
        return skip(NO_RDMA)
    active = {name: speed for name, (state, speed) in found.items() if state == "ACTIVE"}
    wanted = "every port with a cable ACTIVE, all at one rate"
    remedy = "look at cable and switch (ibstat, mlxlink -d DEVICE), and for InfiniBand at the subnet manager (sminfo)"
    starting = [f"{name} is {state}" for name, (state, _) in found.items() if state in ("INIT", "ARMED")]
    if starting:
        observed = f"{', '.join(starting)}: no subnet manager has brought it up"
        return Outcome(status="fail", observed=observed, expected=wanted, remedy=remedy)
    if not active:
        why = f"; {len(polling)} look for a partner" if polling else ""
        return skip(f"no RDMA port is in use{why}")
    if len(set(active.values())) > 1:
        observed = f"ports run at different rates: {', '.join(f'{name} {speed:g}' for name, speed in active.items())}"
        return Outcome(status="warn", observed=observed, expected=wanted, remedy=remedy)
    observed = f"{len(active)} of {len(found)} ports active at {max(active.values()):g} Gb/s"
    return Outcome(status="pass", observed=observed, expected=wanted)


def _state(said: object) -> str:
    """`4: ACTIVE` in one word."""
    match = re.fullmatch(r"\d+: ([\w ]+)", str(said))
    if match is None:
        raise ValueError(said)
    return match[1]


def _rate(said: object) -> float:
    """`400 Gb/sec (4X NDR)` in Gb/s."""
    match = re.match(r"([\d.]+) Gb/sec", str(said))
    if match is None:
        raise ValueError(said)
    return float(match[1])


def measure_gpudirect(context: Context, root: Path = Path("/")) -> dict[str, Any]:
    """The two ways for an RDMA device into a GPU's memory: dma-buf as CUDA reports it, peermem as registered."""
    why = missing(root) or ("" if names(root / DEVICES) else NO_RDMA)
    if why:
        return absent(why)
    peers = [name for name in PEERS if (root / "sys/kernel/mm/memory_peers" / name / "version").exists()]
    return {
        "flavour": driver(root)["flavour"],
        "dma_buf": nvml.libcuda(root).get("dma_buf", False),
        "loaded": bool(modules(root) & {"nvidia_peermem", "nv_peer_mem"}),
        "registered": bool(peers),
        "expect": dict(context.expect),
    }


def judge_gpudirect(value: Any) -> Outcome:
    """A loaded module proves nothing: it has to be registered with the RDMA core, and dma-buf needs none."""
    if outcome := not_here("GPUDirect RDMA", value):
        return outcome
    dma_buf, loaded, registered = (value.get(name) for name in ("dma_buf", "loaded", "registered"))
    if not all(isinstance(flag, bool) for flag in (dma_buf, loaded, registered)):
        return unreadable("GPUDirect RDMA", dict(value))
    wanted = "dma-buf, by the open kernel module and a kernel of 5.12 or newer"
    remedy = "install the open kernel module (package nvidia-open) and a kernel of 5.12 or newer, then reboot"
    if dma_buf:
        return Outcome(status="pass", observed="dma-buf", expected=wanted)
    if registered:
        observed = "only nvidia_peermem, which is on its way out"
        return Outcome(status="warn", observed=observed, expected=wanted, remedy=remedy)
    how = "nvidia_peermem is loaded, but not registered with the RDMA core" if loaded else "no nvidia_peermem"
    observed = f"neither dma-buf ({value.get('flavour') or 'unknown'} kernel module) nor peermem: {how}"
    status: Status = "fail" if expected(value, "rdma") else "warn"
    return Outcome(status=status, observed=observed, expected=wanted, remedy=remedy)


def _row(name: str, title: str, how: Callable[..., Any], judge: Callable[[Any], Outcome], why: str, rule: str) -> Any:
    return cheap(id=f"rdma.{name}", title=title, measure=how, judge=judge, why=why, rule=rule)


CHECKS = (
    _row(
        "devices", "RDMA devices in this container", measure_devices, judge_devices,
        "Without /dev/infiniband NCCL says `NET/IB : No device found` and goes on by TCP at a tenth of the speed.",
        "Fails (warns without an expectation) when devices, their files or rdma-core's providers are missing.",
    ),
    _row(
        "ports", "state and rate of RDMA ports", measure_ports, judge_ports,
        "A port that is down or at a lower rate makes the whole job wait for that node.",
        "Fails when a port waits for a subnet manager (INIT, ARMED); warns when active ports have different rates. How "
        "many there should be is for expect.rdma.",
    ),
    _row(
        "gpudirect", "RDMA straight into GPU memory", measure_gpudirect, judge_gpudirect,
        "`NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'` even with nvidia_peermem loaded: every byte goes "
        "through the host's memory.",
        "Passes on dma-buf as CUDA reports it; warns on a registered nvidia_peermem only; with neither fails (warns "
        "without an expectation).",
    ),
    *LINKS,
)  # fmt: skip

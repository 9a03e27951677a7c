"""fabric.*, the PCIe tree in sysfs: IOMMU and access control between GPUs, and which NIC is near which GPU."""

from __future__ import annotations

import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

from trackbed.validate import Context, Outcome, skip, unreadable
from trackbed.validate.hardware.shared import absent, cheap, missing, names, not_here, text

NVIDIA, DISPLAY, BRIDGE = "0x10de", ("0x0300", "0x0302"), "0x0604"
EXTENDED, ACS = 0x100, 0x000D  # where extended capabilities begin, and Access Control Services among them
REDIRECT = 0x04 | 0x08  # its control bits for requests and completions


def measure_acs(context: Context, root: Path = Path("/")) -> dict[str, Any]:
    """GPUs, the IOMMU's mode, and bridges that send peer-to-peer traffic up to the root."""
    why = missing(root)
    if why:
        return absent(why)
    devices = root / "sys/bus/pci/devices"
    groups = names(root / "sys/kernel/iommu_groups")
    kinds = {text(root / "sys/kernel/iommu_groups" / group / "type") for group in groups}
    return {
        "gpus": len(gpus(root)),
        "virtual": "hypervisor" in text(root / "proc/cpuinfo"),
        "iommu": len(names(root / "sys/class/iommu")),
        "translating": bool(kinds - {"identity", ""}) if groups else False,
        "bridges": [name for name in _of_class(devices, (BRIDGE,)) if redirects(_config(devices / name))],
    }


def gpus(root: Path) -> list[str]:
    """PCI addresses of NVIDIA's GPUs."""
    devices = root / "sys/bus/pci/devices"
    return [name for name in _of_class(devices, DISPLAY) if text(devices / name / "vendor") == NVIDIA]


def _of_class(devices: Path, kinds: tuple[str, ...]) -> list[str]:
    return [name for name in names(devices) if text(devices / name / "class").startswith(kinds)]


def _config(device: Path) -> bytes:
    """A device's configuration space; only root sees more than its first 64 bytes."""
    with suppress(OSError):
        return (device / "config").read_bytes()
    return b""


def redirects(config: bytes) -> bool:
    """Whether Access Control Services redirect requests or completions of a bridge's devices."""
    offset, seen = EXTENDED, set[int]()
    while offset >= EXTENDED and offset + 8 <= len(config) and offset not in seen:
        seen.add(offset)
        header, _, control = struct.unpack_from("<IHH", config, offset)
        if header & 0xFFFF == ACS:
            return bool(control & REDIRECT)
        offset = header >> 20
    return False


def judge_acs(value: Any) -> Outcome:
    """On bare metal, either sends what one GPU writes to another up through the root complex, or loses it."""
    if outcome := not_here("the way between GPUs", value):
        return outcome
    found, bridges = value.get("gpus"), value.get("bridges")
    flags = [value.get(name) for name in ("virtual", "translating")]
    kinds = isinstance(found, int) and isinstance(bridges, list) and all(isinstance(flag, bool) for flag in flags)
    if not kinds or isinstance(found, bool) or not isinstance(found, int) or found < 0:
        return unreadable("the way between GPUs", dict(value))
    if found < 2:
        return skip("fewer than two GPUs: nothing goes between them")
    if value["virtual"]:
        return skip("a virtual machine: its host decides on IOMMU and ACS")
    wanted = "IOMMU off or in passthrough, no bridge that redirects"
    problems = ["the IOMMU translates"] if value["translating"] else []
    problems += [f"ACS redirects on {len(bridges)} bridges"] if bridges else []
    if not problems:
        return Outcome(status="pass", observed=f"{found} GPUs, direct", expected=wanted)
    remedy = (
        "kernel command line iommu=pt (or intel_iommu=off, amd_iommu=off), ACS off in the BIOS or "
        "setpci -s BRIDGE ECAP_ACS+6.w=0000; until then NCCL_P2P_DISABLE=1, which is slow"
    )
    observed = f"{' and '.join(problems)}: peer-to-peer copies are slow, or hang without a message"
    return Outcome(
        status="warn", observed=observed, expected=wanted, evidence=", ".join(map(str, bridges)), remedy=remedy
    )


def measure_topology(context: Context, root: Path = Path("/")) -> dict[str, Any]:
    """NUMA node of each GPU and of each RDMA device; -1 where the machine does not say."""
    why = missing(root)
    if why:
        return absent(why)
    devices, nics = root / "sys/bus/pci/devices", root / "sys/class/infiniband"
    return {
        "gpus": {name: text(devices / name / "numa_node") for name in gpus(root)},
        "nics": {name: text(nics / name / "device/numa_node") for name in names(nics)},
    }


def judge_topology(value: Any) -> Outcome:
    """A GPU whose every NIC is behind the other processor sends all its traffic across the link between them."""
    if outcome := not_here("GPUs and NICs", value):
        return outcome
    try:
        cards, nics = ({str(name): int(node) for name, node in value[kind].items()} for kind in ("gpus", "nics"))
    except (KeyError, TypeError, ValueError, AttributeError):
        return unreadable("GPUs and NICs", dict(value))
    if not cards or not nics:
        return skip("no RDMA device" if cards else "no GPU in the PCI tree here")
    if -1 in {*cards.values(), *nics.values()}:
        return skip("this machine does not say which processor a GPU or NIC belongs to")
    far = {name: node for name, node in cards.items() if node not in nics.values()}
    wanted = "an RDMA device at every GPU's processor"
    if not far:
        return Outcome(status="pass", observed=f"{len(cards)} GPUs, {len(nics)} RDMA devices", expected=wanted)
    observed = ", ".join(f"GPU {name} is at NUMA node {node}, where no RDMA device is" for name, node in far.items())
    remedy = "move a NIC to that processor's slots, or keep NCCL_NET_GDR_LEVEL and NCCL_IB_HCA as the vendor says"
    evidence = ", ".join(f"{name} at {node}" for name, node in nics.items())
    return Outcome(status="warn", observed=observed, expected=wanted, evidence=evidence, remedy=remedy)


CHECKS = (
    cheap(
        id="fabric.acs",
        title="IOMMU and ACS between GPUs",
        measure=measure_acs,
        judge=judge_acs,
        why="With Access Control Services or a translating IOMMU on bare metal, an all-reduce between two GPUs hangs "
        "for ever and no message says why.",
        rule="On bare metal with two GPUs or more: warns when the IOMMU translates or a bridge redirects. Bridges are "
        "read as root only.",
    ),
    cheap(
        id="fabric.topology",
        title="an RDMA device near every GPU",
        measure=measure_topology,
        judge=judge_topology,
        why="NCCL then goes through the other processor and stops using GPUDirect: half the bandwidth between nodes.",
        rule="Warns when a GPU's NUMA node has no RDMA device and another has.",
    ),
)

"""The rules' table of fabric.* and rdma.*: check, what was measured, status, what it says."""

from __future__ import annotations

import re
from typing import Any

from hardware_fixtures import everywhere, fixture, snapshot
from trackbed.validate import baseline
from trackbed.validate.hardware.fabric import copies
from trackbed.validate.hardware.shared import Ran

DONE = {"state": 3, "status": 0, "domain": False}
EXPECT = {"rdma": {"rates_gbit_s": [400.0]}}


def manager(**changes: Any) -> dict[str, Any]:
    base = {"switches": 4, "running": True, "visible": True, "version": "580.95.05", "driver": "580.95.05"}
    return {**base, "states": [DONE, DONE], **changes}


def state(number: int, status: int = 0) -> list[dict[str, Any]]:
    return [DONE, {"state": number, "status": status, "domain": False}]


def links(errors: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    base = {"up": 18, "all": 18, "errors": errors or {"replay": 0, "recovery": 0, "crc": 0}}
    return snapshot(links={**base, **changes})


def pcie(name: str = "NVIDIA L4", **changes: Any) -> dict[str, Any]:
    return snapshot(name=name, pcie={"gen": 4, "gen_max": 4, "width": 16, "width_max": 16, **changes})


def acs(**changes: Any) -> dict[str, Any]:
    return {"gpus": 2, "virtual": False, "iommu": 1, "translating": False, "bridges": [], **changes}


def copied(name: str, site: dict[str, Any] | None = None) -> dict[str, Any]:
    return {**copies(Ran(code=0, output=fixture(f"fabric/{name}"))), "baseline": site or {}}


def base(value: float) -> dict[str, Any]:
    row = {"value": value, "unit": "GB/s", "better": "higher", "noise": 0.0}
    return baseline.part({"figures": {"deep.gpu-copy/host_to_device_memcpy_ce": row}, "host": "node1"}, "deep.gpu-copy")


def devices(**changes: Any) -> dict[str, Any]:
    return {"hcas": ["mlx5_0"], "uverbs": ["uverbs0"], "providers": ["libmlx5-rdmav34.so"], "expect": {}, **changes}


def port(state: str = "4: ACTIVE", rate: str = "400 Gb/sec (4X NDR)", phys: str = "5: LinkUp") -> dict[str, str]:
    return {"state": state, "phys_state": phys, "rate": rate}


def ports(*each: Any) -> dict[str, Any]:
    return {"ports": {f"mlx5_{index}/1": one for index, one in enumerate(each)}}


def partition(**changes: Any) -> dict[str, Any]:
    return {"layer": "InfiniBand", "pkeys": ["0xffff"], "gids": ["IB/RoCE v1"], "mtu": "4092", **changes}


def roce(**changes: Any) -> dict[str, Any]:
    return partition(**{"layer": "Ethernet", "pkeys": [], "gids": ["IB/RoCE v1", "RoCE v2"], "mtu": "9000", **changes})


def gpudirect(**changes: Any) -> dict[str, Any]:
    base = {"flavour": "open", "dma_buf": False, "loaded": False, "registered": False, "expect": {}}
    return {**base, **changes}


def grown(**more: Any) -> dict[str, Any]:
    return {"seconds": 60.0, "growth": {"mlx5_0/1": {"symbol_error": 0, "port_rcv_errors": 0, **more}}}


RULES: list[tuple[str, Any, str, str]] = [
    ("fabric.manager", manager(), "pass", "4 NVSwitches, 2 GPUs in the fabric"),
    ("fabric.manager", manager(version="", running=False, visible=False), "pass", "2 GPUs in the fabric"),
    ("fabric.manager", manager(states=[None, None]), "pass", "4 NVSwitches, 0 GPUs"),
    ("fabric.manager", manager(switches=0), "pass", "0 NVSwitches, 2 GPUs"),
    ("fabric.manager", manager(version="530.30.02", driver="530.41.03"), "fail", "530.30.02 don't match with driver"),
    ("fabric.manager", manager(running=False), "fail", "does not run: Error 802: system not yet initialized"),
    ("fabric.manager", manager(states=state(2)), "fail", "fabric in progress on 1 GPUs: Error 802"),
    ("fabric.manager", manager(states=state(1)), "fail", "fabric not started on 1 GPUs"),
    ("fabric.manager", manager(states=state(3, 15)), "fail", "error 15 on 1 GPUs"),
    ("fabric.manager", manager(states=["completed"]), "error", "makes no sense"),
    ("fabric.manager", manager(states=[{"state": "3", "status": 0}]), "error", "makes no sense"),
    ("fabric.manager", manager(switches="four"), "error", "makes no sense"),
    ("fabric.manager", manager(version=None), "error", "makes no sense"),
    ("fabric.manager", None, "error", "could not be read"),
    ("fabric.nvlink", snapshot(), "pass", "2 GPUs: NVLinks good"),
    ("fabric.nvlink", links(up=17), "fail", "GPU 1: 17 of 18 NVLinks are up"),
    ("fabric.nvlink", links(up=0), "fail", "GPU 1: 0 of 18"),
    ("fabric.nvlink", everywhere("links", {"up": 4, "all": 12, "errors": {"crc": 0}}), "pass", "2 GPUs"),
    ("fabric.nvlink", links({"replay": 3, "crc": 0}), "warn", "GPU 1: NVLink 3 replay errors"),
    ("fabric.nvlink", links({"crc": 1}), "warn", "1 crc errors"),
    ("fabric.nvlink", everywhere("links", {"up": 1, "all": 12, "errors": {}}), "pass", "2 GPUs"),
    ("fabric.nvlink", links(up=19), "error", "makes no sense"),
    ("fabric.nvlink", links({"replay": "many"}), "error", "makes no sense"),
    ("fabric.nvlink", snapshot(links={}), "error", "makes no sense"),
    ("fabric.nvlink", None, "error", "could not be read"),
    ("fabric.pcie", snapshot(), "pass", "2 GPUs: PCIe links good"),
    ("fabric.pcie", pcie(width=8), "fail", "GPU 1: PCIe x8 of x16"),
    ("fabric.pcie", pcie(gen=3), "warn", "PCIe generation 3 of 4"),
    ("fabric.pcie", pcie(name="NVIDIA GeForce RTX 4090", gen=1), "pass", "2 GPUs"),
    ("fabric.pcie", pcie(name="NVIDIA GeForce RTX 4090", width=8), "warn", "x8 of x16"),
    ("fabric.pcie", pcie(width="wide"), "error", "makes no sense"),
    ("fabric.pcie", snapshot(pcie="x16"), "error", "makes no sense"),
    ("fabric.pcie", {"gpus": [{"index": 0, "name": "a"}]}, "error", "makes no sense"),
    ("fabric.pcie", None, "error", "could not be read"),
    ("fabric.imex", {"domain": True, "channels": 1, "state": "READY"}, "pass", "1 IMEX channels, daemon READY"),
    ("fabric.imex", {"domain": True, "channels": 2, "state": ""}, "pass", "not visible from here"),
    ("fabric.imex", {"domain": True, "channels": 1, "state": "WAITING_FOR_PEERS"}, "fail", "WAITING_FOR_PEERS"),
    ("fabric.imex", {"domain": True, "channels": 0, "state": "READY"}, "fail", "no IMEX channel"),
    ("fabric.imex", {"domain": True, "channels": -1, "state": ""}, "error", "makes no sense"),
    ("fabric.imex", {"domain": "yes", "channels": 1, "state": ""}, "error", "makes no sense"),
    ("fabric.imex", None, "error", "could not be read"),
    ("fabric.acs", acs(), "pass", "2 GPUs, direct"),
    ("fabric.acs", acs(translating=True), "warn", "the IOMMU translates: peer-to-peer copies"),
    ("fabric.acs", acs(bridges=["0000:1a:00.0"]), "warn", "ACS redirects on 1 bridges"),
    ("fabric.acs", acs(translating=True, bridges=["0000:1a:00.0"]), "warn", "translates and ACS redirects"),
    ("fabric.acs", acs(gpus=-1), "error", "makes no sense"),
    ("fabric.acs", acs(gpus=True), "error", "makes no sense"),
    ("fabric.acs", acs(virtual="no"), "error", "makes no sense"),
    ("fabric.acs", acs(bridges=None), "error", "makes no sense"),
    ("fabric.acs", None, "error", "could not be read"),
    ("fabric.topology", {"gpus": {"a": "0", "b": "1"}, "nics": {"m0": "0", "m1": "1"}}, "pass", "2 GPUs, 2 RDMA"),
    ("fabric.topology", {"gpus": {"a": "0", "b": "1"}, "nics": {"m0": "0"}}, "warn", "GPU b is at NUMA node 1"),
    ("fabric.topology", {"gpus": {"a": "near"}, "nics": {"m0": "0"}}, "error", "makes no sense"),
    ("fabric.topology", {"gpus": {"a": "0"}}, "error", "makes no sense"),
    ("fabric.topology", None, "error", "could not be read"),
    ("deep.gpu-copy", copied("nvbandwidth.json"), "pass", "host_to_device_memcpy_ce 55.6 GB/s"),
    ("deep.gpu-copy", copied("nvbandwidth.json", base(57.0)), "pass", "device_to_device_memcpy_read_ce 387 GB/s"),
    ("deep.gpu-copy", copied("nvbandwidth.json", base(59.5)), "warn", "55.6 GB/s, 6 % less than 59.5 GB/s"),
    ("deep.gpu-copy", copied("nvbandwidth.json", base(65.0)), "fail", "14 % less than 65 GB/s"),
    ("deep.gpu-copy", copied("nvbandwidth-error.json"), "fail", "nvbandwidth: CUDA_ERROR_UNKNOWN"),
    ("deep.gpu-copy", copies(Ran(code=1, output="nvbandwidth: not found")), "fail", "printed no result"),
    ("deep.gpu-copy", copies(Ran(code=0, output='{"nvbandwidth": {}}')), "fail", "printed no result"),
    ("deep.gpu-copy", copies(Ran(code=None, error="late")), "fail", "late"),
    ("deep.gpu-copy", {"measured": {"a": 0}, "baseline": {}}, "error", "makes no sense"),
    ("deep.gpu-copy", {"measured": {}, "baseline": {}}, "error", "makes no sense"),
    ("deep.gpu-copy", {"measured": {"a": float("inf")}, "baseline": {}}, "error", "makes no sense"),
    ("deep.gpu-copy", None, "error", "could not be read"),
    ("rdma.devices", devices(), "pass", "1 RDMA devices"),
    ("rdma.devices", devices(uverbs=[]), "warn", "1 RDMA devices in the kernel, 0 in /dev/infiniband"),
    ("rdma.devices", devices(uverbs=[], expect=EXPECT), "fail", "0 in /dev/infiniband"),
    ("rdma.devices", devices(providers=[]), "warn", "no libibverbs provider"),
    ("rdma.devices", devices(providers=[], expect=EXPECT), "fail", "no libibverbs provider"),
    ("rdma.devices", devices(hcas="mlx5_0"), "error", "makes no sense"),
    ("rdma.devices", {}, "error", "makes no sense"),
    ("rdma.devices", None, "error", "could not be read"),
    ("rdma.ports", ports(port(), port()), "pass", "2 of 2 ports active at 400 Gb/s"),
    ("rdma.ports", ports(port(), port("1: DOWN", "10 Gb/sec (4X SDR)", "3: Disabled")), "pass", "1 of 2 ports active"),
    ("rdma.ports", ports(port(), port(rate="200 Gb/sec (4X HDR)")), "warn", "mlx5_0/1 400, mlx5_1/1 200"),
    ("rdma.ports", ports(port("2: INIT")), "fail", "mlx5_0/1 is INIT: no subnet manager"),
    ("rdma.ports", ports(port("3: ARMED"), port()), "fail", "mlx5_0/1 is ARMED"),
    ("rdma.ports", ports(port("up")), "error", "makes no sense"),
    ("rdma.ports", ports(port(rate="fast")), "error", "makes no sense"),
    ("rdma.ports", ports(None), "error", "makes no sense"),
    ("rdma.ports", {"ports": "two"}, "error", "makes no sense"),
    ("rdma.ports", None, "error", "could not be read"),
    ("rdma.flaps", {"downed": {"mlx5_0/1": "4"}, "log": 4}, "pass", "1 ports, 4 times down"),
    ("rdma.flaps", {"downed": {"mlx5_0/1": "5"}, "log": None}, "warn", "mlx5_0/1 went down 5 times"),
    ("rdma.flaps", {"downed": {"mlx5_0/1": "0"}, "log": 5}, "fail", "links went down 5 times in 24 hours"),
    ("rdma.flaps", {"downed": {"mlx5_0/1": ""}, "log": 0}, "pass", "0 ports, 0 times"),
    ("rdma.flaps", {"downed": {"mlx5_0/1": "often"}, "log": 0}, "error", "makes no sense"),
    ("rdma.flaps", {"downed": {}, "log": "often"}, "error", "makes no sense"),
    ("rdma.flaps", {"log": 0}, "error", "makes no sense"),
    ("rdma.flaps", None, "error", "could not be read"),
    ("rdma.partitions", {"mlx5_0/1": partition(), "mlx5_1/1": partition()}, "pass", "2 ports agree"),
    ("rdma.partitions", {"mlx5_0/1": roce(), "mlx5_1/1": partition()}, "pass", "2 ports agree"),
    ("rdma.partitions", {"mlx5_0/1": partition(pkeys=[])}, "fail", "mlx5_0/1 has no partition key"),
    ("rdma.partitions", {"mlx5_0/1": roce(gids=["IB/RoCE v1"])}, "warn", "mlx5_0/1 has no RoCE v2 address"),
    (
        "rdma.partitions",
        {"mlx5_0/1": roce(), "mlx5_1/1": roce(mtu="1500")},
        "warn",
        "1500 on Ethernet, 9000 on Ethernet",
    ),
    ("rdma.partitions", {"mlx5_0/1": partition(mtu="")}, "pass", "1 ports agree"),
    ("rdma.partitions", {"mlx5_0/1": partition(layer="Token Ring")}, "error", "makes no sense"),
    ("rdma.partitions", {"mlx5_0/1": partition(mtu="big")}, "error", "makes no sense"),
    ("rdma.partitions", {"mlx5_0/1": None}, "error", "makes no sense"),
    ("rdma.partitions", {}, "error", "makes no sense"),
    ("rdma.partitions", None, "error", "could not be read"),
    ("rdma.gpudirect", gpudirect(dma_buf=True), "pass", "dma-buf"),
    ("rdma.gpudirect", gpudirect(loaded=True, registered=True), "warn", "only nvidia_peermem"),
    ("rdma.gpudirect", gpudirect(loaded=True), "warn", "loaded, but not registered"),
    (
        "rdma.gpudirect",
        gpudirect(loaded=True, expect=EXPECT),
        "fail",
        "neither dma-buf (open kernel module) nor peermem",
    ),
    ("rdma.gpudirect", gpudirect(flavour="", expect=EXPECT), "fail", "no nvidia_peermem"),
    ("rdma.gpudirect", gpudirect(dma_buf=None), "error", "makes no sense"),
    ("rdma.gpudirect", {}, "error", "makes no sense"),
    ("rdma.gpudirect", None, "error", "could not be read"),
    ("rdma.errors", grown(), "pass", "2 counters stand still"),
    ("rdma.errors", grown(symbol_error=1), "warn", "mlx5_0/1 symbol_error +1"),
    ("rdma.errors", grown(symbol_error=-1), "error", "makes no sense"),
    ("rdma.errors", {"seconds": "long", "growth": {}}, "error", "makes no sense"),
    ("rdma.errors", {"seconds": 60.0}, "error", "makes no sense"),
    ("rdma.errors", None, "error", "could not be read"),
]
SKIPS: list[tuple[str, Any, str]] = [
    ("fabric.manager", manager(switches=0, states=[None]), "no NVSwitch here"),
    ("fabric.manager", manager(switches=0, states=state(0)[1:]), "no NVSwitch here"),
    ("fabric.manager", manager(version="", running=False, visible=False, states=[]), "can be seen from here"),
    ("fabric.nvlink", everywhere("links", {"up": 0, "all": 12, "errors": {}}), "no NVLink is in use"),
    ("fabric.imex", {"domain": False, "channels": 0, "state": ""}, "no NVLink domain"),
    ("fabric.acs", acs(gpus=0), "fewer than two GPUs"),
    ("fabric.acs", acs(gpus=1), "fewer than two GPUs"),
    ("fabric.acs", acs(virtual=True, translating=True), "a virtual machine"),
    ("fabric.topology", {"gpus": {"a": "0"}, "nics": {}}, "no RDMA device"),
    ("fabric.topology", {"gpus": {}, "nics": {"m0": "0"}}, "no GPU in the PCI tree"),
    ("fabric.topology", {"gpus": {"a": "-1"}, "nics": {"m0": "0"}}, "does not say which processor"),
    ("rdma.devices", devices(hcas=[], uverbs=[]), "no RDMA device on this machine"),
    ("rdma.ports", ports(), "no RDMA device on this machine"),
    ("rdma.ports", ports(port("1: DOWN", "10 Gb/sec (4X SDR)", "2: Polling")), "in use; 1 look for a partner"),
    ("rdma.flaps", {"downed": {"mlx5_0/1": ""}, "log": None}, "neither counters nor the kernel log"),
    ("rdma.errors", {"seconds": 60.0, "growth": {"mlx5_0/1": {}}}, "counters cannot be read"),
]

# A skip needs no remedy, which test_rules asks of a row; as texts the mutation test sees them too.
TEXTS: list[tuple[str, Any, str, str]] = [
    *((name, measured, "status", "skip") for name, measured, _ in SKIPS),
    *((name, measured, "observed", re.escape(says)) for name, measured, says in SKIPS),
]

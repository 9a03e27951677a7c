"""The rules' table of gpu.*: check, what was measured, status, what it says."""

from __future__ import annotations

import re
from typing import Any

from hardware_fixtures import everywhere, fixture, snapshot, with_field
from trackbed.validate import MIB
from trackbed.validate.hardware.gpu_events import normalised
from trackbed.validate.hardware.shared import Ran

EXPECT = {"gpu": {"count": 2}}


def log(name: str) -> dict[str, Any]:
    return {"lines": fixture(f"gpu/{name}").splitlines()}


def xid(*texts: str) -> dict[str, Any]:
    return {"lines": [f"NVRM: Xid (PCI:0000:1b:00): {text}" for text in texts]}


def dcgm(name: str) -> dict[str, Any]:
    return normalised(Ran(code=0, output=fixture(f"gpu/{name}")))


def result(status: str, *severities: Any) -> dict[str, Any]:
    warnings = [{"text": "said", "severity": severity} for severity in severities]
    return {"results": [{"test": "memory", "gpu": "0", "status": status, "warnings": warnings}]}


def changed(action: str, before: str = "0x0 (None)") -> str:
    return f"154, GPU recovery action changed from {before} to {action}"


def strict(value: dict[str, Any]) -> dict[str, Any]:
    return {**value, "expect": EXPECT}


RULES: list[tuple[str, Any, str, str]] = [
    ("gpu.answers", snapshot(), "pass", "2 GPUs of driver 580.95.05 in 0.41 s"),
    ("gpu.answers", {"late": 10.0}, "fail", "did not answer within 10.0 s"),
    ("gpu.answers", snapshot(lost=True), "fail", "GPU 1 is lost"),
    ("gpu.answers", {**snapshot(), "seconds": "soon"}, "error", "makes no sense"),
    ("gpu.answers", {"driver": "580", "gpus": [{"index": 0}], "seconds": 1}, "error", "makes no sense"),
    ("gpu.answers", {"gpus": ["a", "b"], "seconds": 1}, "error", "makes no sense"),
    ("gpu.answers", {"gpus": "none"}, "error", "makes no sense"),
    ("gpu.answers", None, "error", "could not be read"),
    ("gpu.ecc", snapshot(), "pass", "2 GPUs"),
    ("gpu.ecc", with_field("ecc", uncorrected=1), "fail", "GPU 1: 1 uncorrected ECC errors"),
    ("gpu.ecc", with_field("ecc", corrected=50_000_000, corrected_sram=10_000), "pass", "2 GPUs"),
    ("gpu.ecc", with_field("ecc", corrected_sram=10_001), "warn", "10001 in SRAM"),
    ("gpu.ecc", with_field("ecc", corrected=50_000_001), "warn", "GPU 1: 5e+07 corrected"),
    ("gpu.ecc", with_field("ecc", uncorrected="few"), "error", "makes no sense"),
    ("gpu.ecc", with_field("ecc", uncorrected=-1), "error", "makes no sense"),
    ("gpu.ecc", snapshot(ecc={}), "error", "makes no sense"),
    ("gpu.ecc", {"gpus": [{"index": 0}]}, "error", "makes no sense"),
    ("gpu.ecc", None, "error", "could not be read"),
    ("gpu.remapped-rows", snapshot(), "pass", "2 GPUs"),
    ("gpu.remapped-rows", with_field("rows", pending=1), "fail", "waits for a reset"),
    ("gpu.remapped-rows", with_field("rows", failure=1), "fail", "could not be remapped"),
    ("gpu.remapped-rows", with_field("rows", uncorrected=512), "pass", "2 GPUs"),
    ("gpu.remapped-rows", with_field("rows", uncorrected=513), "fail", "513 rows"),
    ("gpu.remapped-rows", with_field("rows", failure=None), "error", "makes no sense"),
    ("gpu.remapped-rows", None, "error", "could not be read"),
    ("gpu.clocks", snapshot(), "pass", "2 GPUs"),
    ("gpu.clocks", snapshot(reasons=128), "fail", "power brake"),
    ("gpu.clocks", snapshot(reasons=64 + 8), "fail", "by heat"),
    ("gpu.clocks", snapshot(reasons=8), "warn", "slowed down"),
    ("gpu.clocks", snapshot(reasons=32), "warn", "slowed down"),
    ("gpu.clocks", snapshot(reasons=4, busy=10), "warn", "power cap while idle"),
    ("gpu.clocks", snapshot(reasons=4, busy=11), "pass", "2 GPUs"),
    ("gpu.clocks", {"gpus": [{"index": 0}]}, "error", "makes no sense"),
    ("gpu.clocks", snapshot(reasons="hot"), "error", "makes no sense"),
    ("gpu.clocks", None, "error", "could not be read"),
    ("gpu.temperature", snapshot(), "pass", "2 GPUs"),
    ("gpu.temperature", with_field("temperature", now=81), "pass", "2 GPUs"),
    ("gpu.temperature", with_field("temperature", now=82), "warn", "82 C, and it slows down at 87 C"),
    ("gpu.temperature", with_field("temperature", now="warm"), "error", "makes no sense"),
    ("gpu.temperature", None, "error", "could not be read"),
    ("gpu.memory-in-use", snapshot(), "pass", "2 GPUs"),
    ("gpu.memory-in-use", with_field("memory", used=15 * MIB), "pass", "2 GPUs"),
    ("gpu.memory-in-use", with_field("memory", used=15 * MIB + 1), "warn", "15 MiB in use"),
    ("gpu.memory-in-use", strict(with_field("memory", used=900 * MIB)), "fail", "GPU 1: 900 MiB in use before the job"),
    ("gpu.memory-in-use", with_field("memory", used=85520809984), "warn", "MiB in use"),
    ("gpu.memory-in-use", with_field("memory", used=85520809985), "error", "makes no sense"),
    ("gpu.memory-in-use", None, "error", "could not be read"),
    ("gpu.power-limit", snapshot(), "pass", "2 GPUs"),
    ("gpu.power-limit", with_field("power", limit=699.9), "warn", "limited to 699.9 W of 700 W"),
    ("gpu.power-limit", with_field("power", limit=750), "pass", "2 GPUs"),
    ("gpu.power-limit", with_field("power", limit=None), "error", "makes no sense"),
    ("gpu.power-limit", None, "error", "could not be read"),
    ("gpu.firmware", snapshot(), "pass", "2 GPUs alike"),
    (
        "gpu.firmware",
        snapshot(vbios="96.00.74.00.01"),
        "warn",
        "vbios of NVIDIA H100 80GB HBM3: 96.00.74.00.01, 96.00.99",
    ),
    ("gpu.firmware", snapshot(vbios="96.1", name="NVIDIA L4", inforom="G1", gsp="580.95.05"), "pass", "alike"),
    ("gpu.firmware", snapshot(gsp=7), "error", "makes no sense"),
    ("gpu.firmware", None, "error", "could not be read"),
    ("gpu.recovery-action", snapshot(), "pass", "2 GPUs"),
    ("gpu.recovery-action", snapshot(recovery=1), "fail", "GPU 1: reset the GPU"),
    ("gpu.recovery-action", snapshot(recovery=2), "fail", "reboot the node"),
    ("gpu.recovery-action", snapshot(recovery=99), "fail", "recovery action 99"),
    ("gpu.recovery-action", snapshot(recovery="none"), "error", "makes no sense"),
    ("gpu.recovery-action", None, "error", "could not be read"),
    ("gpu.modes", snapshot(), "pass", "2 GPUs"),
    ("gpu.modes", snapshot(mig=1), "pass", "1 of them split by MIG"),
    ("gpu.modes", snapshot(persistence=0), "warn", "GPU 1: persistence is off"),
    ("gpu.modes", {**snapshot(), "gpus": [{**snapshot()["gpus"][0], "persistence": 0}], "ranks": 1}, "pass", "1 GPUs"),
    ("gpu.modes", snapshot(compute_mode=3), "pass", "2 GPUs"),
    ("gpu.modes", {**snapshot(compute_mode=3), "ranks": 3}, "fail", "takes one process"),
    ("gpu.modes", {**snapshot(), "ranks": 3}, "pass", "2 GPUs"),
    ("gpu.modes", snapshot(compute_mode=2), "fail", "prohibits CUDA"),
    ("gpu.modes", snapshot(compute_mode=None, persistence=None), "pass", "2 GPUs"),
    ("gpu.modes", snapshot(compute_mode="off"), "error", "makes no sense"),
    ("gpu.modes", {**snapshot(), "ranks": None}, "error", "could not be read"),
    ("gpu.modes", None, "error", "could not be read"),
    ("gpu.xid", log("dmesg-good.txt"), "pass", "no Xid"),
    ("gpu.xid", log("dmesg-garbage.txt"), "pass", "no Xid"),
    ("gpu.xid", xid("43, pid=1"), "pass", "Xid 43 (ignore)"),
    ("gpu.xid", log("dmesg-app.txt"), "warn", "0000:1b:00: Xid 31 (app), Xid 43 (ignore); 0000:43:00: Xid 45 (ignore)"),
    ("gpu.xid", log("dmesg-xid79.txt"), "fail", "0000:1b:00: Xid 79 (ignore), Xid 154 (reboot)"),
    ("gpu.xid", xid("79, GPU has fallen off the bus."), "fail", "Xid 79 (reboot)"),
    ("gpu.xid", xid("48, pid=1, DBE"), "fail", "Xid 48 (reset)"),
    ("gpu.xid", xid("54"), "fail", "Xid 54 (isolate)"),
    ("gpu.xid", xid("999, new"), "warn", "Xid 999 (unknown)"),
    ("gpu.xid", xid("95, x", changed("0x1 (GPU Reset Required)")), "fail", "Xid 95 (ignore), Xid 154 (reset)"),
    ("gpu.xid", xid(changed("0x4 (Drain and Reset)")), "fail", "Xid 154 (reset)"),
    ("gpu.xid", xid(changed("0x2 (OS Reboot)")), "fail", "Xid 154 (reboot)"),
    ("gpu.xid", xid("79, lost", changed("0x0 (None)", "0x2 (Node Reboot Required)")), "pass", "0000:1b:00: Xid 154"),
    ("gpu.xid", xid(changed("0x0 (None)"), "95, x"), "fail", "Xid 95 (reset)"),
    ("gpu.xid", xid("154, in other words"), "warn", "Xid 154 (unknown)"),
    ("gpu.xid", xid(changed("0x9 (Something new)")), "warn", "Xid 154 (unknown)"),
    ("gpu.xid", {"lines": None}, "error", "could not be read"),
    ("gpu.xid", {"lines": [79]}, "error", "makes no sense"),
    ("gpu.xid", None, "error", "could not be read"),
    ("gpu.sxid", log("dmesg-good.txt"), "pass", "no SXid"),
    ("gpu.sxid", {"lines": fixture("gpu/dmesg-sxid.txt").splitlines()[:1]}, "pass", "1 SXid, none of them fatal"),
    ("gpu.sxid", log("dmesg-sxid.txt"), "fail", "NVSwitch 0: SXid 20034, Link 30 LTSSM Fault Up"),
    ("gpu.sxid", log("dmesg-garbage.txt"), "pass", "no SXid"),
    ("gpu.sxid", {"lines": "SXid"}, "error", "makes no sense"),
    ("gpu.sxid", None, "error", "could not be read"),
    ("gpu.dcgm-diag", dcgm("dcgm-pass.json"), "pass", "2 results passed"),
    ("gpu.dcgm-diag", dcgm("dcgm3-pass.json"), "pass", "1 results passed"),
    ("gpu.dcgm-diag", dcgm("dcgm-fail.json"), "fail", "software, GPU 1: GPU 1 had uncorrectable memory errors"),
    ("gpu.dcgm-diag", dcgm("dcgm-setting.json"), "warn", "Persistence mode for GPU 0"),
    ("gpu.dcgm-diag", result("fail", 5, 1), "warn", "memory, GPU 0: said, said"),
    ("gpu.dcgm-diag", result("fail", 5, 2), "fail", "memory, GPU 0"),
    ("gpu.dcgm-diag", result("fail"), "fail", "memory, GPU 0: fail"),
    ("gpu.dcgm-diag", result("warn"), "warn", "memory, GPU 0: warn"),
    (
        "gpu.dcgm-diag",
        normalised(Ran(code=0, output="Error: unable to connect")),
        "fail",
        "printed no diagnosis: Error",
    ),
    ("gpu.dcgm-diag", normalised(Ran(code=0, output='{"DCGM Diagnostic": {}}')), "fail", "printed no diagnosis"),
    ("gpu.dcgm-diag", normalised(Ran(code=None, error="late")), "fail", "dcgmi: late"),
    ("gpu.dcgm-diag", {"results": []}, "error", "makes no sense"),
    ("gpu.dcgm-diag", {"results": ["pass"]}, "error", "makes no sense"),
    ("gpu.dcgm-diag", None, "error", "could not be read"),
    ("gpu.dali-decode", {"largest": 8, "video_error": ""}, "pass", "largest difference 8"),
    ("gpu.dali-decode", {"largest": 0, "video_error": ""}, "pass", "largest difference 0"),
    ("gpu.dali-decode", {"largest": -0.5, "video_error": ""}, "error", "makes no sense"),
    ("gpu.dali-decode", {"largest": 0.5, "video_error": ""}, "pass", "largest difference 0.5"),
    ("gpu.dali-decode", {"largest": 9, "video_error": ""}, "fail", "largest difference 9"),
    ("gpu.dali-decode", {"largest": float("inf"), "video_error": ""}, "fail", "inf"),
    ("gpu.dali-decode", {"largest": 2, "video_error": "libnvcuvid.so.1: cannot open"}, "fail", "libnvcuvid"),
    ("gpu.dali-decode", {"largest": float("nan"), "video_error": ""}, "error", "makes no sense"),
    ("gpu.dali-decode", {"largest": "none"}, "error", "makes no sense"),
    ("gpu.dali-decode", None, "error", "could not be read"),
]
NVML_FIELDS = {
    "gpu.ecc": "ecc",
    "gpu.remapped-rows": "rows",
    "gpu.clocks": "reasons",
    "gpu.temperature": "temperature",
    "gpu.memory-in-use": "memory",
    "gpu.power-limit": "power",
    "gpu.recovery-action": "recovery",
    "fabric.nvlink": "links",
    "fabric.pcie": "pcie",
}
SKIPS: list[tuple[str, Any, str]] = [
    *((name, everywhere(field, None), "no GPU here reports") for name, field in NVML_FIELDS.items()),
    *((name, {"error": "Unknown Error"}, "cuda.nvml says why") for name in NVML_FIELDS),
    *((name, {"late": 10.0}, "gpu.answers or") for name in (*NVML_FIELDS, "gpu.firmware", "gpu.modes")),
    *((name, {"gpus": []}, "NVML sees no GPU") for name in (*NVML_FIELDS, "gpu.answers")),
    ("gpu.firmware", {"gpus": [{"name": "a", "vbios": None, "inforom": None, "gsp": None}]}, "firmware versions"),
    ("gpu.dcgm-diag", result("skip"), "DCGM waived all 1 tests"),
]

# A skip needs no remedy, which test_rules asks of a row; as texts the mutation test sees them too.
TEXTS: list[tuple[str, Any, str, str]] = [
    *((name, measured, "status", "skip") for name, measured, _ in SKIPS),
    *((name, measured, "observed", re.escape(says)) for name, measured, says in SKIPS),
]

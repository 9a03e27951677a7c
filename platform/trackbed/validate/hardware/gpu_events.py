"""gpu.*, what others report of a GPU: the driver in the kernel log (Xid, SXid), and DCGM's own diagnosis."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from trackbed.release.probe import program_path
from trackbed.validate import Context, Outcome, Status, skip, unreadable
from trackbed.validate.hardware import kernel_log
from trackbed.validate.hardware.shared import Ran, absent, cheap, deep, missing, not_here, run

NEW_SECONDS = 2 * 3600.0
NO_LOG = "the kernel log may not be read here (CAP_SYSLOG, or mount it and name it in $TRACKBED_KERNEL_LOG)"
XID = re.compile(r"NVRM: Xid \((?:PCI:)?([\w:.]+)[^)]*\): (\d+)(?:, *(.*))?$")
SXID = re.compile(r"nvidia-nvswitch(\d+): SXid \([^)]*\): (\d+), (Fatal|Non-fatal)\b(.*)$")
# The immediate action for data-centre GPUs from Ampere on, by NVIDIA's Xid catalogue (driver branch R590).
BY_ACTION = {
    "ignore": (37, 38, 43, 44, 45, 63, 66, 67, 92, 93, 106, 107, 108, 121, 137, 141, 152, 153, 157, 160, 161),
    "app": (8, 13, 31, 32, 39, 40, 41, 60, *range(68, 74), *range(75, 78), 80, *range(82, 87), 88, 89, 94,
            *range(96, 106), *range(126, 136), 139),
    "reset": (46, 48, 62, 64, 74, 95, 109, 110, 119, 120, 136, 140, 143, *range(144, 151), 155, 156, 158, 171, 172),
    "reboot": (79, 151),
    "isolate": (54,),
}  # fmt: skip
ACTION = {code: action for action, codes in BY_ACTION.items() for code in codes}
SUMMARY = 154  # its text says what the driver wants done after the others
SUMMARY_TEXT = re.compile(r"changed from .* to 0x[0-9a-f]+ \(([^)]*)\)", re.IGNORECASE)
RANKED = ("ignore", "app", "unknown", "reset", "reboot", "isolate")
WORDS = {
    "app": "restart the job; when it comes back on other nodes too, look for the error in the program",
    "unknown": "look the code up in NVIDIA's Xid catalogue",
    "reset": "drain the node, then nvidia-smi --gpu-reset -i N",
    "reboot": "drain the node and reboot it; when it comes back, have the GPU reseated or replaced",
    "isolate": "take the node out of service and look at power and cables of the GPU",
}
# DCGM's own severities; a finding of the setting or for watching is no fault of the GPU.
MILD = (1, 5)


def measure_xid(context: Context, root: Path = Path("/")) -> dict[str, Any]:
    """Xid and SXid lines of the newest two hours."""
    why = missing(root)
    if why:
        return absent(why)
    lines = kernel_log.read(root)
    if lines is None:
        return absent(NO_LOG)
    return {"lines": [text for text in kernel_log.newest(lines, NEW_SECONDS) if "Xid" in text]}


def events(lines: Iterable[str]) -> dict[str, dict[str, str]]:
    """Per GPU: codes with what each asks for, newest last, each once. Xid 154 outweighs what came before it."""
    found: dict[str, dict[str, str]] = {}
    for line in lines:
        match = XID.search(line)
        if match is None:
            continue
        codes = found.setdefault(match[1], {})
        if int(match[2]) == SUMMARY:
            summary = SUMMARY_TEXT.search(match[3] or "")
            asked = by_words(summary[1]) if summary else "unknown"
            codes = found[match[1]] = {} if asked == "ignore" else {code: "ignore" for code in codes}
            codes[match[2]] = asked
        else:
            codes[match[2]] = ACTION.get(int(match[2]), "unknown")
    return found


def by_words(text: str) -> str:
    """The action that Xid 154 names: None, Drain P2P, Drain and Reset, GPU Reset Required, Node Reboot Required."""
    said = text.lower()
    if said == "none":
        return "ignore"
    if "reboot" in said:
        return "reboot"
    return "reset" if any(word in said for word in ("reset", "drain", "flr")) else "unknown"


def judge_xid(value: Any) -> Outcome:
    """An action, not a number: what the operator has to do now."""
    if outcome := not_here("Xid events", value):
        return outcome
    lines = value.get("lines")
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        return unreadable("Xid events", lines)
    found = {gpu: codes for gpu, codes in events(lines).items() if codes}
    wanted = "no Xid in two hours that asks for an action"
    worst = max((action for codes in found.values() for action in codes.values()), key=RANKED.index, default="ignore")
    named = "; ".join(f"{gpu}: {', '.join(f'Xid {code} ({action})' for code, action in codes.items())}"
                      for gpu, codes in found.items())  # fmt: skip
    if worst == "ignore":
        return Outcome(status="pass", observed=named or "no Xid", expected=wanted)
    status: Status = "warn" if worst in ("app", "unknown") else "fail"
    evidence = "\n".join(line for line in lines if XID.search(line))
    return Outcome(status=status, observed=named, expected=wanted, evidence=evidence, remedy=WORDS[worst])


def judge_sxid(value: Any) -> Outcome:
    """Faults of NVSwitch: a fatal one takes every GPU of the fabric down."""
    if outcome := not_here("SXid events", value):
        return outcome
    lines = value.get("lines")
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        return unreadable("SXid events", lines)
    found = [match for line in lines if (match := SXID.search(line))]
    fatal = sorted({f"NVSwitch {match[1]}: SXid {match[2]}{match[4]}" for match in found if match[3] == "Fatal"})
    wanted = "no fatal SXid in two hours"
    if not fatal:
        observed = f"{len(found)} SXid, none of them fatal" if found else "no SXid"
        return Outcome(status="pass", observed=observed, expected=wanted)
    remedy = (
        "drain the node, stop all GPU programs, systemctl restart nvidia-fabricmanager and reset all GPUs, or reboot"
    )
    return Outcome(status="fail", observed="; ".join(fatal), expected=wanted, remedy=remedy)


def measure_dcgm(context: Context, root: Path = Path("/"), seconds: float = 300.0) -> dict[str, Any]:
    """`dcgmi diag -r 1 -j`, when it is installed."""
    why = missing(root)
    program = shutil.which("dcgmi", path=program_path())
    if why or program is None:
        return absent(why or "dcgmi is not installed (package datacenter-gpu-manager)")
    return normalised(run([program, "diag", "-r", "1", "-j"], seconds))


def normalised(done: Ran) -> dict[str, Any]:
    """DCGM's JSON, whose top key and results differ between versions 3 and 4, as one list of results."""
    if done.code is None:
        return {"error": f"dcgmi: {done.error}"}
    try:
        document = json.loads(done.output[done.output.index("{") :])
        top = document.get("DCGM Diagnostic") or document["DCGM GPU Diagnostic"]
        tests = [test for category in top["test_categories"] for test in category["tests"]]
        results = [{"test": str(test["name"]), **_result(raw)} for test in tests for raw in test["results"]]
    except (ValueError, KeyError, TypeError, AttributeError):
        return {"error": f"dcgmi printed no diagnosis: {done.output.strip()[:200]}"}
    return {"results": results}


def _result(raw: Mapping[str, Any]) -> dict[str, Any]:
    warnings = raw.get("warnings") or []
    if isinstance(warnings, str | Mapping):
        warnings = [warnings]
    plain = [each if isinstance(each, Mapping) else {"warning": each} for each in warnings]
    return {
        "gpu": str(raw.get("entity_id", raw.get("gpu_ids", ""))),
        "status": str(raw["status"]).lower(),
        "warnings": [{"text": str(each.get("warning")), "severity": each.get("error_severity")} for each in plain],
    }


def judge_dcgm(value: Any) -> Outcome:
    """DCGM's verdict; what it calls a setting or something to watch is a warning here."""
    if outcome := not_here("DCGM's diagnosis", value):
        return outcome
    wanted = "every test of dcgmi diag -r 1 passes"
    if isinstance(value.get("error"), str):
        remedy = "start nv-hostengine; then look at the output of dcgmi diag -r 1"
        return Outcome(status="fail", observed=value["error"], expected=wanted, remedy=remedy)
    results = value.get("results")
    if not isinstance(results, list) or not results or not all(isinstance(each, Mapping) for each in results):
        return unreadable("DCGM's diagnosis", results)
    failed = [each for each in results if each.get("status") == "fail"]
    passed = [each for each in results if each.get("status") in ("pass", "warn")]
    if not failed and not passed:
        return skip(f"DCGM waived all {len(results)} tests")
    warned = [each for each in passed if each.get("status") == "warn"]
    if not failed and not warned:
        return Outcome(status="pass", observed=f"{len(passed)} results passed", expected=wanted)
    severe = [each for each in failed if not _mild(each)]
    status: Status = "fail" if severe else "warn"
    observed = "; ".join(_said(each) for each in [*(severe or failed), *warned])
    remedy = "do what the text says; then run dcgmi diag -r 2 on the idle node"
    return Outcome(status=status, observed=observed, expected=wanted, remedy=remedy)


def _mild(result: Mapping[str, Any]) -> bool:
    warnings = result.get("warnings") or []
    return bool(warnings) and all(each.get("severity") in MILD for each in warnings)


def _said(result: Mapping[str, Any]) -> str:
    texts = ", ".join(str(each.get("text")) for each in result.get("warnings") or [])
    return f"{result.get('test')}, GPU {result.get('gpu')}: {texts or result.get('status')}"


def measure_dali(context: Context, root: Path = Path("/")) -> dict[str, Any]:
    """Decode the same pictures on the CPU and by the GPU's decoder; the largest difference of a pixel."""
    why = missing(root)
    if why:
        return absent(why)
    from trackbed.validate.hardware.gpu_decode import difference

    return difference(video=bool({"video", "all"} & set(os.environ.get("NVIDIA_DRIVER_CAPABILITIES", "").split(","))))


def judge_dali(value: Any) -> Outcome:
    """Both decoders round differently, by a few steps of 255; more is another picture."""
    if outcome := not_here("the GPU's decoder", value):
        return outcome
    largest, video = value.get("largest"), value.get("video_error")
    if isinstance(largest, bool) or not isinstance(largest, int | float) or not largest >= 0:
        return unreadable("the GPU's decoder", dict(value))
    wanted = "at most 8 of 255 between CPU and GPU; libnvcuvid where video is read"
    if video:
        remedy = "-e NVIDIA_DRIVER_CAPABILITIES=compute,utility,video"
        return Outcome(status="fail", observed=str(video), expected=wanted, remedy=remedy)
    status: Status = "fail" if largest > 8 else "pass"
    observed = f"largest difference {largest:g} of 255"
    remedy = "" if status == "pass" else "decode on the CPU (device='cpu'), and report it with the driver's version"
    return Outcome(status=status, observed=observed, expected=wanted, remedy=remedy)


CHECKS = (
    cheap(
        id="gpu.xid",
        title="faults in the kernel log (Xid)",
        measure=measure_xid,
        judge=judge_xid,
        why="The driver writes `NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus` into the kernel log; the "
        "job only sees `CUDA error: unspecified launch failure`.",
        rule="Of the newest two hours: fails on a code that asks for a reset, a reboot or isolation, warns on one of "
        "the application or an unknown one. Xid 154 outweighs the codes before it.",
    ),
    cheap(
        id="gpu.sxid",
        title="faults of NVSwitch (SXid)",
        measure=measure_xid,
        judge=judge_sxid,
        why="A fatal SXid ends every NCCL communicator of the node: `unhandled system error`.",
        rule="Fails on a fatal SXid of the newest two hours.",
    ),
    deep(
        id="gpu.dcgm-diag",
        title="DCGM's diagnosis, level 1",
        measure=measure_dcgm,
        judge=judge_dcgm,
        why="What DCGM finds (memory, PCIe, InfoROM, settings) shows in a job as any error at all.",
        rule="Fails on a failed test; warns when DCGM calls it a setting or something to watch.",
    ),
    deep(
        id="gpu.dali-decode",
        title="pictures decoded by the GPU",
        measure=measure_dali,
        judge=judge_dali,
        why="A decoder that gives other pixels trains another model without a word; without the driver capability "
        "video: `Failed to load libnvcuvid.so, needed by the VideoReader operator`.",
        rule="Fails when CPU and GPU differ by more than 8 of 255, or the capability video was asked for and "
        "libnvcuvid does not load.",
    ),
)

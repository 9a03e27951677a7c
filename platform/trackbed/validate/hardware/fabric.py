"""fabric.*: what connects the GPUs of a node: NVSwitch, NVLink, PCIe."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trackbed.release.probe import program_path
from trackbed.validate import Context, Outcome, baseline, skip, unreadable
from trackbed.validate.hardware import nvml
from trackbed.validate.hardware.fabric_pci import CHECKS as PCI
from trackbed.validate.hardware.gpu_rules import DRAIN, Finding, each, measure, no_snapshot
from trackbed.validate.hardware.shared import (
    Ran,
    absent,
    against_baseline,
    cheap,
    count,
    deep,
    driver,
    missing,
    names,
    not_here,
    run,
    text,
)

# NVML's fabric states.
UNSUPPORTED, NOT_STARTED, IN_PROGRESS, COMPLETED = range(4)
STATES = {NOT_STARTED: "not started", IN_PROGRESS: "in progress"}
COPIES = ("host_to_device_memcpy_ce", "device_to_host_memcpy_ce", "device_to_device_memcpy_read_ce")


def measure_manager(context: Context, root: Path = Path("/")) -> dict[str, Any]:
    """NVSwitches, the fabric manager where its process can be seen, and the fabric state of each GPU."""
    why = missing(root)
    if why:
        return absent(why)
    processes = {text(path) for path in (root / "proc").glob("[0-9]*/comm")}
    gpus = nvml.snapshot(root).get("gpus") or []
    return {
        "switches": len(names(root / "dev", "nvidia-nvswitch[0-9]*")),
        # The kernel keeps 15 characters of a name.
        "running": "nv-fabricmanage" in processes,
        "visible": text(root / "proc/1/comm") in ("systemd", "init"),
        "version": manager_version(),
        "driver": driver(root)["version"],
        "states": [gpu.get("fabric") for gpu in gpus],
    }


def manager_version() -> str:
    """The installed fabric manager's version; empty without one, as in a container."""
    program = shutil.which("nv-fabricmanager", path=program_path())
    if program is None:
        return ""
    match = re.search(r"\d+\.\d+(?:\.\d+)?", run([program, "--version"], 5.0).output)
    return match[0] if match else ""


def judge_manager(value: Any) -> Outcome:
    """Until the fabric manager has set the switches up, CUDA does not start on any GPU."""
    if outcome := not_here("the fabric manager", value):
        return outcome
    switches, version, kernel, states = (value.get(name) for name in ("switches", "version", "driver", "states"))
    texts = isinstance(version, str) and isinstance(kernel, str)
    if isinstance(switches, bool) or not isinstance(switches, int) or not texts or not isinstance(states, list):
        return unreadable("the fabric manager", dict(value))
    try:
        seen = [(int(count(state["state"])), int(count(state["status"]))) for state in states if state is not None]
    except (KeyError, TypeError, ValueError):
        return unreadable("the fabric state", states)
    seen = [pair for pair in seen if pair[0] != UNSUPPORTED]
    if not switches and not seen:
        return skip("no NVSwitch here, so no fabric manager is needed")
    remedy = (
        f"on the host: apt-get install nvidia-fabricmanager={kernel}-1 (the driver's own version), "
        "systemctl enable --now nvidia-fabricmanager; apt-mark hold both"
    )
    wanted = f"fabric manager {kernel} active, every GPU's fabric completed"
    problem = _fabric_problem(value, seen, version=str(version), kernel=str(kernel))
    if problem:
        return Outcome(status="fail", observed=problem, expected=wanted, remedy=remedy)
    if not seen and not value.get("running"):
        return skip("NVSwitch is here, but neither the fabric manager nor NVML's fabric state can be seen from here")
    observed = f"{switches} NVSwitches, {len(seen)} GPUs in the fabric"
    return Outcome(status="pass", observed=observed, expected=wanted)


def _fabric_problem(value: Mapping[str, Any], seen: list[tuple[int, int]], *, version: str, kernel: str) -> str:
    if version and kernel and version != kernel:
        return f"fabric manager {version} don't match with driver version {kernel}"
    if value.get("visible") and not value.get("running"):
        return "nvidia-fabricmanager does not run: Error 802: system not yet initialized"
    waiting = [STATES[state] for state, _ in seen if state in STATES]
    if waiting:
        return f"fabric {waiting[0]} on {len(waiting)} GPUs: Error 802: system not yet initialized"
    broken = [status for state, status in seen if state == COMPLETED and status]
    return f"fabric completed with error {broken[0]} on {len(broken)} GPUs" if broken else ""


def judge_nvlink(value: Any) -> Outcome:
    """Links that are down where a sister GPU has more, and errors that cost bandwidth before they cost the job."""
    if outcome := no_snapshot("NVLinks", value):
        return outcome
    known = [gpu["links"] for gpu in value["gpus"] if isinstance(gpu.get("links"), Mapping)]
    ups = [links.get("up") for links in known]
    most = max((up for up in ups if isinstance(up, int)), default=0)
    if known and all(up == 0 for up in ups):
        return skip("no NVLink is in use here")

    def find(links: Any) -> Finding:
        up, whole = count(links["up"]), count(links["all"])
        errors = {str(kind): count(number) for kind, number in links["errors"].items()}
        if up > whole:
            raise ValueError(links)
        if up < most:
            return "fail", f"{up:g} of {most} NVLinks are up"
        bad = [f"{number:g} {kind} errors" for kind, number in errors.items() if number > 0]
        return ("warn", f"NVLink {', '.join(bad)}") if bad else None

    remedy = (
        f"{DRAIN}reset all GPUs (nvidia-smi --gpu-reset) or reboot; if it stays, reseat or replace that GPU or bridge"
    )
    wanted = "as many NVLinks up on every GPU, no replay, recovery or CRC errors"
    return each(value, "NVLinks", "links", find, expected=wanted, remedy=remedy)


def judge_pcie(value: Any) -> Outcome:
    """Fewer lanes than card and slot allow. A lower generation is how an idle link saves power, except on servers."""
    if outcome := no_snapshot("PCIe links", value):
        return outcome
    pairs = [{**gpu, "both": _link(gpu)} for gpu in value["gpus"]]

    def find(both: Any) -> Finding:
        width, widest = count(both["width"]), count(both["width_max"])
        speed, fastest = count(both["gen"]), count(both["gen_max"])
        if width < widest:
            return ("warn" if both["consumer"] else "fail"), f"PCIe x{width:g} of x{widest:g}"
        slow = speed < fastest and not both["consumer"]
        return ("warn", f"PCIe generation {speed:g} of {fastest:g}") if slow else None

    remedy = (
        "reseat the card or its riser, look at the slot's BIOS setting (bifurcation, generation); dmesg | grep PCIe"
    )
    wanted = "all lanes, and on servers the full generation"
    return each({"gpus": pairs}, "PCIe links", "both", find, expected=wanted, remedy=remedy)


def _link(gpu: Mapping[str, Any]) -> dict[str, Any] | None:
    if "pcie" in gpu and gpu["pcie"] is None:
        return None
    link = gpu.get("pcie")
    known = dict(link) if isinstance(link, Mapping) else {"width": link}
    return {**known, "consumer": "GeForce" in str(gpu.get("name"))}


def measure_imex(context: Context, root: Path = Path("/")) -> dict[str, Any]:
    """Whether the GPUs belong to an NVLink domain of several nodes, and its channel and daemon."""
    why = missing(root)
    if why:
        return absent(why)
    fabrics = [gpu.get("fabric") or {} for gpu in nvml.snapshot(root).get("gpus") or []]
    program = shutil.which("nvidia-imex-ctl", path=program_path())
    return {
        "domain": any(fabric.get("domain") for fabric in fabrics),
        "channels": len(names(root / "dev/nvidia-caps-imex-channels", "channel*")),
        "state": run([program, "-q"], 5.0).output.strip() if program else "",
    }


def judge_imex(value: Any) -> Outcome:
    """Memory of another node's GPU is reached through IMEX only."""
    if outcome := not_here("IMEX", value):
        return outcome
    domain, channels, state = value.get("domain"), value.get("channels"), value.get("state")
    if not isinstance(domain, bool) or not isinstance(channels, int) or channels < 0 or not isinstance(state, str):
        return unreadable("IMEX", dict(value))
    if not domain:
        return skip("these GPUs are in no NVLink domain of several nodes")
    wanted = "an IMEX channel in /dev/nvidia-caps-imex-channels, and the daemon READY"
    if state not in ("", "READY"):
        remedy = "on the nodes of the domain: systemctl restart nvidia-imex; compare /etc/nvidia-imex/nodes_config.cfg"
        return Outcome(status="fail", observed=f"nvidia-imex is {state}", expected=wanted, remedy=remedy)
    if channels == 0:
        remedy = (
            "NVreg_CreateImexChannel0=1 for the nvidia module; Kubernetes: a ComputeDomain; Slurm: switch/nvidia_imex"
        )
        return Outcome(status="fail", observed="no IMEX channel here", expected=wanted, remedy=remedy)
    observed = f"{channels} IMEX channels, daemon {state or 'not visible from here'}"
    return Outcome(status="pass", observed=observed, expected=wanted)


def measure_bandwidth(context: Context, root: Path = Path("/"), seconds: float = 300.0) -> dict[str, Any]:
    """nvbandwidth's copies, when it is installed, and this site's baseline."""
    why = missing(root)
    program = shutil.which("nvbandwidth", path=program_path())
    if why or program is None:
        return absent(why or "nvbandwidth is not installed")
    done = run([program, "-j", *(word for copy in COPIES for word in ("-t", copy))], seconds)
    return {**copies(done), "baseline": baseline.part(context.baseline, "deep.gpu-copy")}


def copies(done: Ran) -> dict[str, Any]:
    """GB/s of each copy, the mean of its pairs; a test that was waived is left out."""
    try:
        tool = json.loads(done.output[done.output.index("{") :])["nvbandwidth"]
        tests = tool["testcases"]
        failed = [str(test["name"]) for test in tests if str(test["status"]).startswith("Error")]
        passed = [test for test in tests if test["status"] == "Passed"]
        measured = {str(test["name"]): _mean(test["bandwidth_matrix"]) for test in passed}
    except (ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError):
        return {"error": done.error or f"nvbandwidth printed no result: {done.output.strip()[:200]}"}
    problem = str(tool.get("error") or "") or (f"failed: {', '.join(failed)}" if failed else "")
    return {"error": f"nvbandwidth: {problem}"} if problem else {"measured": measured}


def _mean(matrix: Any) -> float:
    rates = [float(cell) for row in matrix for cell in row if cell != "N/A"]
    return sum(rates) / len(rates)


def judge_bandwidth(value: Any) -> Outcome:
    """Against this site's own good day; a figure from a data sheet would be wrong for most machines."""
    if outcome := not_here("copy bandwidth", value):
        return outcome
    remedy = "look at fabric.pcie, fabric.nvlink and gpu.clocks; then nvbandwidth -v on the idle node"
    if isinstance(value.get("error"), str):
        wanted = "nvbandwidth runs to its end"
        return Outcome(status="fail", observed=value["error"], expected=wanted, remedy=remedy)
    return against_baseline("copy bandwidth", "GB/s", value, {"tool": "nvbandwidth"})


def _row(name: str, title: str, how: Callable[..., Any], judge: Callable[[Any], Outcome], why: str, rule: str) -> Any:
    return cheap(id=f"fabric.{name}", title=title, measure=how, judge=judge, why=why, rule=rule)


CHECKS = (
    _row(
        "manager", "NVSwitch and its fabric manager", measure_manager, judge_manager,
        "On a machine with NVSwitch every CUDA program ends with `Error 802: system not yet initialized` until "
        "nvidia-fabricmanager of exactly the driver's version runs.",
        "Fails when it does not run where it can be seen, has another version than the driver, or NVML calls a GPU's "
        "fabric unfinished or failed.",
    ),
    _row(
        "nvlink", "NVLinks that are up", measure, judge_nvlink,
        "A link that is down makes NCCL use fewer channels or PCIe: the job runs, at half the speed.",
        "Fails when a GPU has fewer links up than its sisters; warns on replay, recovery or CRC errors.",
    ),
    _row(
        "pcie", "PCIe lanes and generation", measure, judge_pcie,
        "A badly seated card runs on x8 or x4; the kernel log says `available PCIe bandwidth, limited by`.",
        "Fails on fewer lanes than possible (warns on GeForce); warns on a lower generation, except on GeForce.",
    ),
    _row(
        "imex", "IMEX of an NVLink domain", measure_imex, judge_imex,
        "Without a channel NCCL cannot reach the other nodes' GPUs over NVLink and falls back to the network, or "
        "fails with `Cuda failure 800 'operation not permitted'`.",
        "Fails when the GPUs are in a domain of several nodes and there is no channel, or the daemon is not READY.",
    ),
    deep(
        id="deep.gpu-copy",
        title="copies between host and GPUs",
        measure=measure_bandwidth,
        judge=judge_bandwidth,
        why="Slow copies are no error anywhere: offloading, checkpoints and data loading just take longer.",
        rule="nvbandwidth against the site's own baseline, when it has one: warns and fails by its margins.",
    ),
    *PCI,
)  # fmt: skip

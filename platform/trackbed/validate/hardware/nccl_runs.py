"""nccl.*: which NCCL runs, which network it chose, and how fast its all-reduce is."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from trackbed.release.probe import program_path
from trackbed.validate import Context, Outcome, Status, baseline, skip, unreadable
from trackbed.validate.hardware import nvml
from trackbed.validate.hardware.cuda_libraries import torch_cuda
from trackbed.validate.hardware.shared import (
    absent,
    against_baseline,
    cheap,
    count,
    deep,
    expected,
    missing,
    names,
    not_here,
    numbers,
    run,
)
from trackbed.validate.stack.versions import release_of

# Versions in which a communicator that is made anew inside a process can hang (the README of nvidia-resiliency-ext).
DENIED = ((2, 28, 3), (2, 28, 8))
LOG_VARIABLES = ("TRACKBED_NCCL_LOG", "NCCL_DEBUG_FILE")
TESTS_VARIABLE = "TRACKBED_NCCL_TESTS"


def measure_version(context: Context) -> dict[str, Any]:
    """The NCCL that torch loads, and the release's."""
    built = torch_cuda()
    if not built:
        return absent("torch is not installed" if built is None else "torch is a CPU build")
    import torch

    part = release_of(context).components.get("nccl")
    version = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    return {"runtime": ".".join(map(str, version)), "pin": part.version if part else ""}


def judge_version(value: Any) -> Outcome:
    """Older than the release's lacks functions that torch calls."""
    if outcome := not_here("NCCL's version", value):
        return outcome
    try:
        runtime, pin = numbers(value.get("runtime"))[:3], numbers(value.get("pin"))[:3]
    except ValueError:
        return unreadable("NCCL's version", dict(value))
    wanted, remedy = f"NCCL {value['pin']}", "as cuda.loaded-libraries says; or reinstall the locked wheel: make setup"
    observed = f"NCCL {value['runtime']} is loaded"
    if runtime < pin or runtime[0] != pin[0]:
        return Outcome(status="fail", observed=observed, expected=wanted, remedy=remedy)
    if DENIED[0] <= runtime <= DENIED[1]:
        observed = f"{observed}: a restart inside the process can hang with it"
        return Outcome(status="warn", observed=observed, expected="NCCL outside 2.28.3 to 2.28.8", remedy=remedy)
    status: Status = "pass" if runtime == pin else "warn"
    return Outcome(status=status, observed=observed, expected=wanted, remedy="" if status == "pass" else remedy)


def measure_log(context: Context, root: Path = Path("/")) -> dict[str, Any]:
    """The newest log that NCCL_DEBUG=INFO left in the file that a variable names."""
    named = next((os.environ[name] for name in LOG_VARIABLES if os.environ.get(name)), "")
    if not named:
        return absent(f"no NCCL log: run a job with NCCL_DEBUG=INFO and name its output in ${LOG_VARIABLES[0]}")
    # NCCL puts host and process for %h and %p.
    pattern = Path(re.sub(r"%[hp]", "*", named))
    files = sorted(pattern.parent.glob(pattern.name), key=lambda path: path.stat().st_mtime)
    if not files:
        return absent(f"there is no NCCL log {named} yet")
    text = files[-1].read_text("utf-8", "replace")
    hcas = names(root / "sys/class/infiniband")
    return {"path": str(files[-1]), **parse_log(text), "hcas": hcas, "expect": dict(context.expect)}


def parse_log(text: str) -> dict[str, Any]:
    """What NCCL says of its network: what it chose, what goes through it, where GPUDirect is off, its warnings."""
    said = [line.split("NCCL ", 1)[1] for line in text.splitlines() if "NCCL INFO " in line or "NCCL WARN " in line]
    networks = [match[1] for line in said if (match := re.search(r"\bUsing network (\w+)", line))]
    networks += [match[1] for line in said if (match := re.search(r"\bNET/(\w+) ?: Using\b", line))]
    routes = [match[1] for line in said if (match := re.search(r"\bvia (NET/\S+)", line))]
    return {
        "lines": len(said),
        "networks": sorted(set(networks)),
        "routes": {route: routes.count(route) for route in sorted(set(routes))},
        "disabled": sorted({m[1] for line in said if (m := re.search(r"GPU Direct RDMA Disabled for (.+)", line))}),
        "warnings": [line.removeprefix("WARN ").strip() for line in said if line.startswith("WARN ")],
    }


def judge_log(value: Any) -> Outcome:
    """Sockets where there is InfiniBand, and InfiniBand that does not reach the GPU."""
    if outcome := not_here("NCCL's log", value):
        return outcome
    networks, disabled, warnings, lines = (value.get(name) for name in ("networks", "disabled", "warnings", "lines"))
    lists = all(isinstance(each, list) for each in (networks, disabled, warnings))
    if not lists or not isinstance(lines, int) or lines <= 0:
        return unreadable("NCCL's log", {name: value.get(name) for name in ("path", "lines")})
    networks, disabled, warnings = (
        [str(each) for each in value[name]] for name in ("networks", "disabled", "warnings")
    )
    infiniband = bool(value.get("hcas") or expected(value, "rdma"))
    wanted = "NET/IB with GPUDirect" if infiniband else "no warning of NCCL's"
    evidence = f"{value.get('path')}: {value.get('routes')}"
    if infiniband and "Socket" in networks:
        observed = "NCCL uses NET/Socket although there is InfiniBand"
        remedy = "see rdma.devices and rdma.ports; unset NCCL_IB_DISABLE and NCCL_NET; then read NET/IB in the log"
        return Outcome(status="fail", observed=observed, expected=wanted, evidence=evidence, remedy=remedy)
    if infiniband and disabled:
        observed, remedy = (
            f"GPU Direct RDMA Disabled for {', '.join(disabled)}",
            "see rdma.gpudirect and fabric.topology",
        )
        return Outcome(status="warn", observed=observed, expected=wanted, evidence=evidence, remedy=remedy)
    if warnings:
        observed, remedy = f"{len(warnings)} warnings, the first: {warnings[0]}", "mend what the first warning names"
        return Outcome(status="warn", observed=observed, expected=wanted, evidence=evidence, remedy=remedy)
    observed = f"{', '.join(networks) or 'no network: one node'}, {lines} lines without a warning"
    return Outcome(status="pass", observed=observed, expected=wanted, evidence=evidence)


def measure_bandwidth(context: Context, root: Path = Path("/"), seconds: float = 300.0) -> dict[str, Any]:
    """The JSON of nccl-tests that a variable names, else all_reduce_perf on the GPUs here when it is installed."""
    named = os.environ.get(TESTS_VARIABLE, "")
    more = {"baseline": baseline.part(context.baseline, "deep.nccl")}
    if named:
        path = Path(named)
        return (
            {**tests(path.read_text("utf-8", "replace")), **more} if path.is_file() else absent(f"there is no {named}")
        )
    why = missing(root)
    program = shutil.which("all_reduce_perf", path=program_path())
    if why or program is None:
        return absent(why or f"all_reduce_perf (nccl-tests) is not installed, and ${TESTS_VARIABLE} names no result")
    return {**_run_tests(program, len(nvml.snapshot(root).get("gpus") or [0]), seconds), **more}


def _run_tests(program: str, gpus: int, seconds: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="trackbed-") as folder:
        report = Path(folder, "report.json")
        sizes = ["-b", "8M", "-e", "1G", "-f", "2", "-g", str(gpus), "-c", "1"]
        done = run([program, *sizes, "-J", str(report)], seconds)
        if done.code != 0 or not report.is_file():
            return {"error": f"all_reduce_perf: {done.error or done.output.strip()[-200:]}"}
        return tests(report.read_text("utf-8", "replace"))


def tests(text: str) -> dict[str, Any]:
    """nccl-tests' report: elements that were wrong, None where none was looked at, and the best bus bandwidth."""
    try:
        document = json.loads(text)
        name = Path(str(document["args"][0])).name
        halves = [row[kind] for row in document["results"] for kind in ("out_of_place", "in_place") if row.get(kind)]
        wrong = [half["nwrong"] for half in halves]
        best = max(float(half["bus_bw"]) for half in halves)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return {"error": f"no report of nccl-tests: {text.strip()[:80]!r}"}
    unchecked = any(count is None for count in wrong)
    return {"wrong": None if unchecked else sum(map(float, wrong)), "measured": {name: best}}


def judge_bandwidth(value: Any) -> Outcome:
    """Right first, then fast: a wrong element is a fault of a GPU or link that no training run would name."""
    if outcome := not_here("NCCL's bandwidth", value):
        return outcome
    if isinstance(value.get("error"), str):
        wanted = "a report of nccl-tests (-J FILE)"
        return Outcome(status="fail", observed=value["error"], expected=wanted, remedy="run it with NCCL_DEBUG=WARN")
    if "wrong" in value and value["wrong"] is None:
        return skip("nccl-tests did not check its results", "run it without -c 0")
    try:
        wrong = count(value.get("wrong"))
    except ValueError:
        return unreadable("NCCL's bandwidth", dict(value))
    if wrong > 0:
        observed, remedy = f"{wrong:g} wrong elements", "take the node out of service: dcgmi diag -r 3 finds the GPU"
        return Outcome(status="fail", observed=observed, expected="no wrong element", remedy=remedy)
    return against_baseline("NCCL's bandwidth", "GB/s", value, {"tool": "nccl-tests"})


CHECKS = (
    cheap(
        id="nccl.version",
        title="the NCCL that is loaded",
        measure=measure_version,
        judge=judge_version,
        child="torch",
        deadline=60,
        why="`libtorch_cuda.so: undefined symbol: ncclCommRegister`, or a hang when ranks have different versions.",
        rule="Fails when it is older than the release's or of another major version; warns when it is newer, or one "
        "of 2.28.3 to 2.28.8.",
    ),
    cheap(
        id="nccl.log",
        title="the network that NCCL chose",
        measure=measure_log,
        judge=judge_log,
        why="NCCL falls back to `NET/Socket` without an error, and the job runs at a tenth of its speed.",
        rule="Of a log that NCCL_DEBUG=INFO wrote: fails on NET/Socket where there is InfiniBand; warns on `GPU Direct "
        "RDMA Disabled` and on warnings.",
    ),
    deep(
        id="deep.nccl",
        title="NCCL's all-reduce, right and fast",
        measure=measure_bandwidth,
        judge=judge_bandwidth,
        why="A bad link or GPU gives wrong sums or half the bandwidth, and training only looks worse.",
        rule="Fails on a wrong element; warns and fails by the margins of the site's own baseline, when it has one.",
    ),
)

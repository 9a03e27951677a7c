"""One rule for every GPU of an NVML snapshot: what gpu.* and fabric.* share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trackbed.validate import Context, Outcome, Status, skip, unreadable
from trackbed.validate.hardware import nvml
from trackbed.validate.hardware.shared import not_here

# What a rule says of one GPU: nothing, or how bad it is and in which words.
Finding = tuple[Status, str] | None
DRAIN = "drain the node (scontrol update nodename=N state=drain reason=...; kubectl drain N), then "


def measure(context: Context, root: Path = Path("/")) -> dict[str, Any]:
    """NVML's snapshot with what this site expects and how many ranks would start."""
    return {**nvml.snapshot(root), "expect": dict(context.expect), "ranks": context.ranks}


def each(value: Any, what: str, field: str, find: Callable[[Any], Finding], *, expected: str, remedy: str) -> Outcome:
    """Judge one field of every GPU; the worst decides, and each that is not good is named. None is not reported."""
    if outcome := no_snapshot(what, value):
        return outcome
    gpus = value["gpus"]
    try:
        known = {gpu["index"]: gpu[field] for gpu in gpus if gpu[field] is not None}
        findings = {index: found for index, seen in known.items() if (found := find(seen))}
    except (KeyError, TypeError, ValueError, AttributeError):
        return unreadable(what, [gpu.get(field) if isinstance(gpu, Mapping) else gpu for gpu in gpus])
    if not known:
        return skip(f"no GPU here reports {what}")
    if not findings:
        return Outcome(status="pass", observed=f"{len(known)} GPUs: {what} good", expected=expected)
    worst: Status = "fail" if any(status == "fail" for status, _ in findings.values()) else "warn"
    observed = "; ".join(f"GPU {index}: {words}" for index, (_, words) in findings.items())
    evidence = "; ".join(f"GPU {gpu['index']} {gpu.get('name')} {gpu.get('pci')}" for gpu in gpus)
    return Outcome(status=worst, observed=observed, expected=expected, evidence=evidence, remedy=remedy)


def no_snapshot(what: str, value: Any) -> Outcome | None:
    """Skip or error where there is no snapshot with GPUs; what went wrong is judged by one check, not by all."""
    if outcome := not_here(what, value):
        return outcome
    if "late" in value or "error" in value:
        return skip("NVML did not answer; gpu.answers or cuda.nvml says why")
    gpus = value.get("gpus")
    if not isinstance(gpus, list) or not all(isinstance(gpu, Mapping) for gpu in gpus):
        return unreadable(what, gpus)
    return None if gpus else skip("NVML sees no GPU; expect.gpus says whether there should be one")

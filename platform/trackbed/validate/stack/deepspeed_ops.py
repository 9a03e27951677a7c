"""deepspeed.operators, deepspeed.cpu-adam: DeepSpeed's operations really loaded or compiled, and one used."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from trackbed.release.probe import environment, program_path
from trackbed.validate import Check, Context, Outcome, number, skip, unreadable
from trackbed.validate.stack.deepspeed import first_error

# float32 sums in another order: a few units in the last place of numbers around 1.
CLOSE = 2e-6
LINE = re.compile(r"^(\w+) \.* ?\[(YES|NO)\] \.* \[(OKAY|NO)\]", re.MULTILINE)
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def measure_operators(context: Context) -> dict[str, Any]:
    """What ds_report says of each operation, as {"installed", "compatible"}; it never says it by its exit code."""
    command = [sys.executable, "-m", "deepspeed.env_report"]
    done = subprocess.run(
        command, capture_output=True, text=True, errors="replace", env=environment(), check=False, timeout=90
    )
    error = first_error(done.stderr) if done.returncode else ""
    return {"operators": operators(done.stdout), "error": error}


def operators(report: str) -> dict[str, dict[str, bool]]:
    """ds_report's table, without its colours."""
    rows = LINE.findall(re.sub(r" +", " ", COLOURS.sub("", report)))
    return {name: {"installed": built == "YES", "compatible": good == "OKAY"} for name, built, good in rows}


def judge_operators(measured: object) -> Outcome:
    """Built before and not fit for this machine: it crashes when it is used. Not built is normal here."""
    found = measured if isinstance(measured, Mapping) else {}
    table = found.get("operators")
    if found.get("error"):
        remedy = "make setup; then look at it alone: python -m deepspeed.env_report"
        return Outcome(status="fail", observed=str(found["error"]), expected="a report of DeepSpeed", remedy=remedy)
    if not isinstance(table, Mapping) or not table or any(not isinstance(row, Mapping) for row in table.values()):
        return unreadable("the table of DeepSpeed's operations", measured)
    built = [name for name, row in table.items() if row.get("installed")]
    bad = [name for name in built if not row_fits(table[name])]
    others = len(table) - len(built)
    expected = "every operation that was built before fits this machine"
    if bad:
        remedy = "build it again here (DS_BUILD_OPS=1 pip install --no-build-isolation deepspeed), or take the wheel"
        return Outcome(
            status="fail", observed=f"built, but not fit: {', '.join(bad)}", expected=expected, remedy=remedy
        )
    observed = f"{len(built)} built before ({', '.join(built) or 'none'}), {others} compiled when first used"
    return Outcome(status="pass", observed=observed, expected=expected)


def row_fits(row: Mapping[str, Any]) -> bool:
    return bool(row.get("compatible"))


def measure_cpu_adam(context: Context) -> dict[str, Any]:
    """One step of DeepSpeed's CPU Adam against torch's, after loading it, or compiling it into a folder of its own."""
    compiler = os.environ.get("CXX") or "c++"
    if not shutil.which(compiler, path=program_path()) and not _prebuilt():
        wanted = bool(context.expect.get("compiler") or os.environ.get("TRACKBED_COMPILER") or os.environ.get("CXX"))
        return {"missing": f"there is no compiler {compiler}, and cpu_adam was not built before", "wanted": wanted}
    with _own_extensions():
        try:
            return {"difference": _difference(), "prebuilt": _prebuilt()}
        except (RuntimeError, OSError, ImportError) as error:
            return {"error": first_error(str(error)), "evidence": str(error)[-2000:]}


def judge_cpu_adam(measured: object) -> Outcome:
    """Compiled for another processor it gives illegal instructions; with another torch, wrong numbers."""
    found = measured if isinstance(measured, Mapping) else {}
    expected = f"one step within {CLOSE:g} of torch.optim.AdamW"
    remedy = "install g++, ninja and python3-dev (deepspeed.compiler says what is missing), or use torch's AdamW"
    if text := found.get("missing"):
        if found.get("wanted"):
            return Outcome(status="fail", observed=str(text), expected=expected, remedy=remedy)
        return skip(f"{text}; no job here needs it", remedy)
    if text := found.get("error"):
        evidence = str(found.get("evidence", ""))
        return Outcome(status="fail", observed=str(text), expected=expected, evidence=evidence, remedy=remedy)
    difference = number(found.get("difference"))
    if difference is None:
        return unreadable("the difference from torch's Adam", measured)
    how = "built before" if found.get("prebuilt") else "compiled here"
    observed = f"cpu_adam, {how}, is off by {difference:.2g}"
    if difference <= CLOSE:
        return Outcome(status="pass", observed=observed, expected=expected)
    remedy = "do not offload to the CPU with this build: make setup, or build DeepSpeed again on this machine"
    return Outcome(status="fail", observed=observed, expected=expected, remedy=remedy)


def _prebuilt() -> bool:
    from deepspeed.git_version_info import installed_ops

    return bool(installed_ops.get("cpu_adam"))


def _difference() -> float:
    """The largest difference of any of 100 007 parameters after one step; odd, so that vector code has a rest."""
    import torch
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    maker = torch.Generator().manual_seed(0)
    start, gradient = (torch.randn(100_007, generator=maker) for _ in range(2))
    ours, theirs = (torch.nn.Parameter(start.clone()) for _ in range(2))
    ours.grad, theirs.grad = gradient.clone(), gradient.clone()
    DeepSpeedCPUAdam([ours], lr=1e-2, weight_decay=0.1).step()
    torch.optim.AdamW([theirs], lr=1e-2, weight_decay=0.1).step()
    return float((ours - theirs).abs().max())


@contextmanager
def _own_extensions() -> Iterator[None]:
    """An extensions folder that no other build uses and no killed one has locked."""
    before = os.environ.get("TORCH_EXTENSIONS_DIR")
    with tempfile.TemporaryDirectory(prefix="trackbed-") as folder:
        os.environ["TORCH_EXTENSIONS_DIR"] = folder
        try:
            yield
        finally:
            os.environ.pop("TORCH_EXTENSIONS_DIR")
            if before is not None:
                os.environ["TORCH_EXTENSIONS_DIR"] = before


CHECKS = (
    Check(
        id="deepspeed.operators",
        title="DeepSpeed's operations, built or not",
        measure=measure_operators,
        judge=judge_operators,
        deadline=120,
        levels=("deep",),
        why="ds_report prints a table and never fails: `fused_adam [OKAY]` on a machine without a GPU.",
        rule="Fails when ds_report itself fails, and when an operation that was built before does not fit this "
        "machine. Operations that are compiled when first used are counted.",
    ),
    Check(
        id="deepspeed.cpu-adam",
        title="DeepSpeed's CPU Adam against torch's",
        measure=measure_cpu_adam,
        judge=judge_cpu_adam,
        deadline=900,
        levels=("deep",),
        why="`RuntimeError: Error building extension 'cpu_adam'`, `GLIBCXX_3.4.30' not found` or an illegal "
        "instruction, at the first step of a job with CPU offload.",
        rule="Fails when it cannot be compiled or loaded, and when one step differs from torch.optim.AdamW by over "
        "2e-6. Skipped where there is neither a compiler nor a built one, and none is asked for.",
    ),
)

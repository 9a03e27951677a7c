"""tensorrt.*: TensorRT's library and Python package, Torch-TensorRT beside torch, and plan files.

Everything of TensorRT is loaded in a child of its own: it may end the process that loads it.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from trackbed.release.probe import Found, child_target, load, program_path
from trackbed.validate import Context, Outcome, unreadable
from trackbed.validate.hardware.shared import LIBRARY_FOLDERS, absent, cheap, names, not_here, numbers, run
from trackbed.validate.stack.versions import release_of

NOT_INSTALLED = "TensorRT is not installed"
PLANS_VARIABLE = "TRACKBED_TENSORRT_PLANS"
# Before they shared a number, each Torch-TensorRT was for one torch.
PAIRS = {(1, 3): (1, 13), (1, 4): (2, 0), (1, 5): (2, 1)}
PLAN_VERSION = re.compile(r"Plan was created with TensorRT version ([\d.]+)")


def measure_library(context: Context, root: Path = Path("/")) -> dict[str, Any]:
    """The version that libnvinfer tells, the Python package's, and the release's pin."""
    part = release_of(context).components.get("tensorrt")
    if part is None:
        return absent("this release has no TensorRT")
    target, python = child_target(part.probe), _installed("tensorrt")
    if part.env not in os.environ and not python and not _on_disk(target.split(":")[1], root):
        return absent(NOT_INSTALLED)
    found = load([target], 60.0)[target]
    return {"library": found.version, "error": found.error, "python": python, "pin": part.version, "reads": part.reads}


def _installed(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def _on_disk(file: str, root: Path) -> bool:
    """Whether the loader could find it: a library of this size is not loaded to see whether it is there."""
    search = [Path(folder) for folder in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if folder]
    folders = [*search, *(root / folder for folder in LIBRARY_FOLDERS)]
    cache = root / "etc/ld.so.cache"
    listed = cache.is_file() and file.encode() in cache.read_bytes()
    return listed or any(names(folder, file) for folder in folders)


def judge_library(value: Any) -> Outcome:
    """Library, Python package and release: a plan is bound to the exact version of the library."""
    if outcome := not_here("TensorRT's version", value):
        return outcome
    remedy = "install the release's TensorRT (VENDOR=nvidia), and tensorrt for Python of the same version"
    if value.get("error"):
        return Outcome(status="fail", observed=str(value["error"]), expected="libnvinfer loads", remedy=remedy)
    python = value.get("python")
    try:
        reads = int(value["reads"])
        library, pin = numbers(value.get("library"))[: reads or None], numbers(value.get("pin"))[: reads or None]
        own = numbers(python)[: len(library)] if python else library
    except (KeyError, TypeError, ValueError):
        return unreadable("TensorRT's version", dict(value))
    wanted = f"libnvinfer and tensorrt {value['pin']}"
    observed = f"libnvinfer {value['library']}{f', tensorrt {python} in Python' if python else ''}"
    if library != pin or own != library:
        return Outcome(status="fail", observed=observed, expected=wanted, remedy=remedy)
    return Outcome(status="pass", observed=observed, expected=wanted)


def measure_torch(context: Context) -> dict[str, Any]:
    """Import torch_tensorrt, in a child, and the versions of the pair."""
    version = _installed("torch-tensorrt")
    if not version:
        return absent("Torch-TensorRT is not installed")
    found: Found = load(["torch_tensorrt"], 100.0)["torch_tensorrt"]
    return {"torch_tensorrt": version, "torch": _installed("torch"), "error": found.error}


def judge_torch(value: Any) -> Outcome:
    """It is linked against the C++ of one torch."""
    if outcome := not_here("Torch-TensorRT", value):
        return outcome
    try:
        own, torch = numbers(value.get("torch_tensorrt"))[:2], numbers(value.get("torch"))[:2]
    except ValueError:
        return unreadable("Torch-TensorRT", dict(value))
    fits = PAIRS.get(own, own)  # type: ignore[arg-type]
    wanted = f"torch {'.'.join(map(str, fits))} for Torch-TensorRT {value['torch_tensorrt']}; it imports"
    remedy = f"install torch-tensorrt for torch {value['torch']}: the pair of one release"
    observed = f"Torch-TensorRT {value['torch_tensorrt']} with torch {value['torch']}"
    if value.get("error"):
        return Outcome(status="fail", observed=f"{observed}: {value['error']}", expected=wanted, remedy=remedy)
    if fits != torch:
        return Outcome(
            status="warn", observed=f"{observed} imports, but is not its pair", expected=wanted, remedy=remedy
        )
    return Outcome(status="pass", observed=observed, expected=wanted)


def measure_plans(context: Context) -> dict[str, Any]:
    """The version in each plan file that a variable names, by trtexec, beside the release's."""
    plans = [plan for plan in os.environ.get(PLANS_VARIABLE, "").split(os.pathsep) if plan]
    program = shutil.which("trtexec", path=program_path())
    if not plans or program is None:
        return absent("no trtexec here" if plans else f"no plan file is named in ${PLANS_VARIABLE}")
    part = release_of(context).components.get("tensorrt")
    return {"plans": versions(program, plans), "pin": part.version if part else ""}


def versions(program: str, plans: Sequence[str]) -> dict[str, str]:
    """What trtexec says of each plan, without loading it; empty for a file that is none."""
    outputs = {plan: run([program, f"--loadEngine={plan}", "--getPlanVersionOnly"], 30.0).output for plan in plans}
    return {plan: match[1] if (match := PLAN_VERSION.search(text)) else "" for plan, text in outputs.items()}


def judge_plans(value: Any) -> Outcome:
    """Before a server loads it and says so in its own words."""
    if outcome := not_here("plan files", value):
        return outcome
    plans = value.get("plans")
    try:
        pin = numbers(value.get("pin"))
        found = {str(plan): numbers(version) if version else () for plan, version in plans.items()}
    except (ValueError, AttributeError):
        return unreadable("plan files", dict(value))
    if not found:
        return unreadable("plan files", dict(value))
    wanted = f"plans of TensorRT {value['pin']}"
    bad = [f"{plan} is {f'of {plans[plan]}' if version else 'no plan that trtexec can read'}"
           for plan, version in found.items() if version[: len(pin)] != pin]  # fmt: skip
    if not bad:
        return Outcome(status="pass", observed=f"{len(found)} plans of {value['pin']}", expected=wanted)
    remedy = "build the plan again with the release's TensorRT (trtexec --onnx=MODEL --saveEngine=PLAN)"
    observed = f"{'; '.join(bad)}: expecting library version {value['pin']}"
    return Outcome(status="fail", observed=observed, expected=wanted, remedy=remedy)


CHECKS = (
    cheap(
        id="tensorrt.library",
        title="TensorRT's library and Python package",
        measure=measure_library,
        judge=judge_library,
        deadline=70,
        levels=("image", "node", "job", "deep"),
        why="`undefined symbol` when Python's tensorrt and libnvinfer differ, and plans that nothing loads.",
        rule="Fails when libnvinfer does not load, is not the release's, or Python's tensorrt has another version.",
    ),
    cheap(
        id="tensorrt.torch",
        title="Torch-TensorRT beside torch",
        measure=measure_torch,
        judge=judge_torch,
        deadline=110,
        levels=("image", "job", "deep"),
        why="`libtorchtrt.so: undefined symbol` when torch was changed after it: it is linked against one torch.",
        rule="Fails when it does not import; warns when it imports beside another torch than its own.",
    ),
    cheap(
        id="tensorrt.plans",
        title="plan files against the library",
        measure=measure_plans,
        judge=judge_plans,
        deadline=120,
        levels=("job", "deep"),
        why="`The engine plan file is not compatible with this version of TensorRT, expecting library version 8.6.1.2 "
        "got 8.6.1.6`, when the server starts.",
        rule="Fails when a plan that $TRACKBED_TENSORRT_PLANS names was built by another version than the release's.",
    ),
)

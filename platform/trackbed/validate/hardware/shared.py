"""What the checks of GPUs, links and their libraries share: is anything here, texts below a root, tools, baselines."""

from __future__ import annotations

import functools
import math
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trackbed.release.probe import environment
from trackbed.validate import Check, Outcome, baseline, number, skip, unreadable
from trackbed.validate.figures import Figure, to_evidence

NO_DRIVER = "no NVIDIA driver on this machine"
NO_DEVICE = "an NVIDIA driver is loaded, but there is no /dev/nvidia* here"
NO_RDMA = "no RDMA device on this machine"
GPU_FLAG = "docker run --gpus all; compose.gpu.yaml; Kubernetes: resources.limits nvidia.com/gpu; Slurm: --gres=gpu:N"
# Where a distribution, an image or a wheel-less install puts NVIDIA's libraries.
LIBRARY_FOLDERS = ("usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/local/lib", "usr/lib")

# One child for all of them: without a GPU each answers from a file that is not there.
cheap = functools.partial(Check, deadline=20, child="hardware", proof="fixture")
deep = functools.partial(Check, deadline=600, child="hardware-deep", proof="fixture", levels=("deep",))


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What came of a program: its exit code, None when it was late; what it printed; why it did not start."""

    code: int | None
    output: str = ""
    error: str = ""


def absent(why: str) -> dict[str, Any]:
    """The measurement where there is nothing to measure."""
    return {"absent": why}


def not_here(what: str, value: object) -> Outcome | None:
    """Skip where there is nothing, error for what could not be read; None for a measurement to judge."""
    if not isinstance(value, Mapping):
        return unreadable(what, value)
    why = value.get("absent")
    return skip(str(why)) if why else None


def missing(root: Path = Path("/")) -> str:
    """Why no GPU can be used here; empty where one can. WSL has /dev/dxg in place of NVIDIA's own devices."""
    if names(root / "dev", "nvidia[0-9]*") or (root / "dev/dxg").exists():
        return ""
    return NO_DEVICE if driver(root)["version"] else NO_DRIVER


def driver(root: Path = Path("/")) -> dict[str, str]:
    """The kernel module's version and flavour (open, proprietary); empty without one."""
    line = text(root / "proc/driver/nvidia/version")
    match = re.search(r"^NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", line, re.MULTILINE)
    flavour = "open" if "Open Kernel Module" in line else "proprietary"
    return {"version": match[1], "flavour": flavour} if match else {"version": "", "flavour": ""}


def text(path: Path) -> str:
    """A small file; empty when it is not there or may not be read."""
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def names(folder: Path, pattern: str = "*") -> list[str]:
    """Names in a folder that match, sorted; none where there is no folder."""
    with suppress(OSError):
        return sorted(path.name for path in folder.glob(pattern))
    return []


def modules(root: Path = Path("/")) -> set[str]:
    """Names of the loaded kernel modules."""
    return {line.split()[0] for line in text(root / "proc/modules").splitlines() if line.strip()}


def numbers(version: object) -> tuple[int, ...]:
    """The numbers a version begins with, to compare; ValueError for what is no version."""
    match = re.match(r"\d+(?:\.\d+)*", version) if isinstance(version, str) else None
    if match is None:
        raise ValueError(f"{version!r} is no version")
    return tuple(int(part) for part in match[0].split("."))


def count(value: object) -> float:
    """A number of zero or more; ValueError for anything else."""
    found = number(value)
    if found is None:
        raise ValueError(f"{value!r} is no number")
    return found


def run(command: Sequence[str], seconds: float) -> Ran:
    """Run a program for at most `seconds`, with all it prints. One that cannot be killed is left behind."""
    with tempfile.TemporaryFile("w+b") as printed:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=printed, stderr=subprocess.STDOUT, env=environment()
            )
        except OSError as error:
            return Ran(code=None, error=f"{command[0]}: {error.strerror}")
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        late = process.returncode is None
        if late:
            process.kill()
            with suppress(subprocess.TimeoutExpired):
                process.wait(1)
        printed.seek(0)
        output = printed.read().decode("utf-8", "replace")
    return Ran(code=None if late else process.returncode, output=output, error="late" if late else "")


def expected(value: Mapping[str, Any], section: str) -> Mapping[str, Any] | None:
    """What the site's expectation file says in a section; None without one."""
    wants = value.get("expect")
    found = wants.get(section) if isinstance(wants, Mapping) else None
    return found if isinstance(found, Mapping) else None


def against_baseline(what: str, unit: str, value: Mapping[str, Any], evidence: Mapping[str, Any]) -> Outcome:
    """Measured rates by name, held against this site's own baseline by its rule."""
    rates, then = value.get("measured"), value.get("baseline")
    if not isinstance(rates, Mapping) or not rates or not isinstance(then, Mapping):
        return unreadable(what, rates)
    seen = {str(name): number(rate) for name, rate in rates.items()}
    made = {name: Figure(value=rate, unit=unit) for name, rate in seen.items() if rate and math.isfinite(rate)}
    if len(made) < len(seen):
        return unreadable(what, dict(rates))
    return baseline.compare(made, then, to_evidence(made, **evidence))

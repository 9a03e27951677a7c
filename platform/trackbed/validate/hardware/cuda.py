"""cuda.*: whether this host's driver, the libraries beside it and this container fit together."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trackbed.validate import Context, Outcome, skip, unreadable
from trackbed.validate.hardware import nvml
from trackbed.validate.hardware.cuda_container import CHECKS as CONTAINER
from trackbed.validate.hardware.cuda_libraries import CHECKS as LIBRARIES
from trackbed.validate.hardware.shared import (
    GPU_FLAG,
    LIBRARY_FOLDERS,
    absent,
    cheap,
    driver,
    missing,
    names,
    not_here,
    numbers,
)
from trackbed.validate.stack.versions import release_of

# CUDA's minor-version compatibility: the oldest driver that runs any program of this major version.
MINOR_COMPATIBLE = {11: "450.80.02", 12: "525.60.13", 13: "580"}
NEWER_DRIVER = (
    "install driver {needed} or newer on the host (no image can bring it), or use a release for driver {found}"
)
INIT_ERRORS = {
    100: ("no CUDA-capable device is detected", f"give the container its GPUs: {GPU_FLAG}"),
    802: ("system not yet initialized", "start nvidia-fabricmanager of the driver's own version: see fabric.manager"),
    803: (
        "system has unsupported display driver / cuda driver combination",
        "take the compat folder out of LD_LIBRARY_PATH and out of /etc/ld.so.conf.d, then ldconfig; "
        "or install a driver as new as the compat library",
    ),
    804: (
        "forward compatibility was attempted on non supported HW",
        "take the compat folder out of LD_LIBRARY_PATH: only data-centre GPUs can use it; else a newer driver",
    ),
    999: (
        "unknown error",
        "load nvidia_uvm (nvidia-modprobe -u), recreate the container; if it stays, reboot the host",
    ),
}


def measure_driver(context: Context, root: Path = Path("/")) -> dict[str, Any]:
    """The kernel driver, the release's oldest, its CUDA, and what an image of NVIDIA requires in a variable."""
    found = driver(root)["version"]
    if not found:
        return absent(missing(root) or "the driver does not tell its version here")
    parts = release_of(context).components
    library = nvml.libcuda(root)
    return {
        "driver": found,
        "minimum": parts["driver"].version if "driver" in parts else "",
        "cuda": parts["cuda"].version if "cuda" in parts else "",
        "driver_cuda": library.get("cuda", ""),
        "compat": "compat" in str(library.get("path", "")) and library.get("code") == 0,
        "require": "" if os.environ.get("NVIDIA_DISABLE_REQUIRE") else os.environ.get("NVIDIA_REQUIRE_CUDA", ""),
    }


def judge_driver(value: Any) -> Outcome:
    """As new as the release's CUDA needs; older ones only by compatibility within a major version, or not at all."""
    if outcome := not_here("the driver's version", value):
        return outcome
    try:
        found, needed, cuda = numbers(value.get("driver")), numbers(value.get("minimum")), numbers(value.get("cuda"))
        unmet = unsatisfied(str(value.get("require") or ""), str(value["driver"]), str(value.get("driver_cuda") or ""))
    except ValueError:
        return unreadable("the driver's version", dict(value))
    remedy = NEWER_DRIVER.format(needed=value["minimum"], found=value["driver"])
    expected_text = f"driver {value['minimum']} or newer for CUDA {value['cuda']}"
    oldest = MINOR_COMPATIBLE.get(cuda[0])
    tolerated = value.get("compat") is True or (oldest is not None and found >= numbers(oldest))
    if unmet and not value.get("compat"):
        observed, remedy = f"driver {value['driver']} does not satisfy NVIDIA_REQUIRE_CUDA: {unmet}", remedy
        return Outcome(status="fail", observed=observed, expected=expected_text, remedy=remedy)
    if found >= needed:
        return Outcome(status="pass", observed=f"driver {value['driver']}", expected=expected_text)
    if tolerated:
        how = "the compat library" if value.get("compat") else "compatibility within the major version"
        observed = f"driver {value['driver']} is older and runs only by {how}: no PTX of newer CUDA"
        return Outcome(status="warn", observed=observed, expected=expected_text, remedy=remedy)
    observed = f"driver {value['driver']} is too old"
    return Outcome(status="fail", observed=observed, expected=expected_text, remedy=remedy)


def unsatisfied(require: str, found: str, cuda: str) -> str:
    """The first group of conditions that is not satisfied; a space means or, a comma means and. Empty when it holds."""
    groups = require.split()
    known = {"driver": found, "cuda": cuda}
    if not groups or any(all(_holds(condition, known) for condition in group.split(",")) for group in groups):
        return ""
    return groups[0]


def _holds(condition: str, known: Mapping[str, str]) -> bool:
    """`cuda>=13.0` or `driver<581`; a brand or an architecture, which is not looked at, never holds by itself."""
    match = re.fullmatch(r"(\w+)(>=|<=|=|<|>)([\d.]+)", condition)
    if match is None or not known.get(match[1]):
        return False
    seen, bound = numbers(known[match[1]]), numbers(match[3])
    signs = {">=": seen >= bound, "<=": seen <= bound, ">": seen > bound, "<": seen < bound, "=": seen == bound}
    return signs[match[2]]


def measure_libcuda(context: Context, root: Path = Path("/")) -> dict[str, Any]:
    """Which libcuda.so.1 the loader finds, what cuInit says to it, and the kernel's driver."""
    return {**nvml.libcuda(root), "driver": driver(root)["version"]}


def judge_libcuda(value: Any) -> Outcome:
    """cuInit is what every program calls first: its error is the one that people see."""
    if outcome := not_here("the start of CUDA", value):
        return outcome
    wanted = "cuInit says 0"
    if "late" in value:
        remedy = "reboot the host: its driver hangs (look for Xid in dmesg)"
        observed = f"cuInit did not answer within {value['late']} s"
        return Outcome(status="fail", observed=observed, expected=wanted, remedy=remedy)
    if value.get("error"):
        remedy = f"the container runtime brings it: {GPU_FLAG}, with NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        return Outcome(status="fail", observed=str(value["error"]), expected="libcuda.so.1 loads", remedy=remedy)
    code, path = value.get("code"), value.get("path")
    if isinstance(code, bool) or not isinstance(code, int) or not isinstance(path, str) or not path:
        return unreadable("the start of CUDA", dict(value))
    evidence = f"{path}, kernel driver {value.get('driver') or 'unknown'}"
    if code == 802:
        return skip("Error 802: system not yet initialized; fabric.manager says why", INIT_ERRORS[802][1])
    if code:
        said, remedy = INIT_ERRORS.get(
            code, ("", "look up that CUresult; recreate the container, then reboot the host")
        )
        observed = f"Error {code}{': ' if said else ''}{said}"
        return Outcome(status="fail", observed=observed, expected=wanted, evidence=evidence, remedy=remedy)
    return Outcome(status="pass", observed=f"{path} starts", expected=wanted, evidence=evidence)


def measure_driver_library(context: Context, root: Path = Path("/")) -> dict[str, Any]:
    """The versions in the file names of libnvidia-ml, and the kernel module's."""
    why = missing(root)
    if why:
        return absent(why)
    files = [name for folder in LIBRARY_FOLDERS for name in names(root / folder, "libnvidia-ml.so.*.*")]
    return {"kernel": driver(root)["version"], "libraries": sorted({name.partition(".so.")[2] for name in files})}


def judge_driver_library(value: Any) -> Outcome:
    """One version on both sides of the kernel's border, or nothing of NVIDIA's answers."""
    if outcome := not_here("the driver's libraries", value):
        return outcome
    kernel, libraries = value.get("kernel"), value.get("libraries")
    if not isinstance(kernel, str) or not isinstance(libraries, list):
        return unreadable("the driver's libraries", dict(value))
    if not kernel or not libraries:
        return skip(f"{'the kernel module' if not kernel else 'libnvidia-ml'} tells no version here")
    wanted = f"libnvidia-ml {kernel}, as the kernel module"
    if libraries == [kernel]:
        return Outcome(status="pass", observed=f"both are {kernel}", expected=wanted)
    return Outcome(
        status="fail",
        observed=f"libnvidia-ml {', '.join(map(str, libraries))} against kernel module {kernel}: "
        "Driver/library version mismatch",
        expected=wanted,
        remedy="reboot the host, or stop its GPU programs and reload the modules (rmmod nvidia_uvm nvidia_modeset "
        "nvidia, modprobe nvidia); restart the containers; hold the driver's packages (apt-mark hold)",
    )


CHECKS = (
    cheap(
        id="cuda.driver",
        title="the host's driver against the release's CUDA",
        measure=measure_driver,
        judge=judge_driver,
        why="The container stops with `unsatisfied condition: cuda>=12.8, please update your driver`, or the first "
        "kernel fails with `CUDA driver version is insufficient for CUDA runtime version`.",
        rule="Fails when the driver is older than any that runs this CUDA, or NVIDIA_REQUIRE_CUDA is not satisfied; "
        "warns when it runs only by compatibility within the major version or by the compat library.",
    ),
    cheap(
        id="cuda.libcuda",
        title="which libcuda is found, and whether it starts",
        measure=measure_libcuda,
        judge=judge_libcuda,
        why="A forward-compatibility library ahead of the driver's gives `Error 803: system has unsupported display "
        "driver / cuda driver combination`, on consumer GPUs `Error 804: forward compatibility was attempted on non "
        "supported HW`.",
        rule="Fails when libcuda.so.1 does not load, hangs, or cuInit gives an error; 802 is left to fabric.manager.",
    ),
    cheap(
        id="cuda.driver-library",
        title="the driver's libraries against its kernel module",
        measure=measure_driver_library,
        judge=judge_driver_library,
        why="An unattended upgrade replaces the library under a running kernel module: `Failed to initialize NVML: "
        "Driver/library version mismatch`.",
        rule="Fails when a libnvidia-ml in the system's folders has another version than the kernel module.",
    ),
    *CONTAINER,
    *LIBRARIES,
)

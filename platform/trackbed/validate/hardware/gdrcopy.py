"""gdrcopy.*: the library, its driver or dma-buf beneath it, and its own self-test."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import stat
from pathlib import Path
from typing import Any

from trackbed.release.probe import child_target, load, program_path
from trackbed.validate import Context, Outcome, skip, unreadable
from trackbed.validate.hardware import nvml
from trackbed.validate.hardware.shared import Ran, absent, cheap, deep, missing, modules, not_here, numbers, run, text
from trackbed.validate.stack.versions import release_of

# Since these, dma-buf can stand in for the kernel module gdrdrv.
DMA_BUF_CUDA, DMA_BUF_LIBRARY = (13, 3), (2, 6)
WAIVED = 2  # EXIT_WAIVED of NVIDIA's samples and tests
DEVICE_FLAG = "docker run --device=/dev/gdrdrv; on the host: GDRCopy's insmod.sh makes it (modprobe does not)"


def library(context: Context) -> dict[str, Any]:
    """The loaded library's version, by the release's own probe, beside the pin; absent where it is not installed."""
    part = release_of(context).components.get("gdrcopy")
    if part is None:
        return absent("this release has no GDRCopy")
    target = child_target(part.probe)
    file = target.split(":")[1]
    try:
        ctypes.CDLL(file)
    except OSError as error:
        # What the image declares has to be there; elsewhere it is left out on purpose.
        return {"error": str(error)} if part.env in os.environ else absent(f"{file} is not installed")
    found = load([target], 20.0)[target]
    return {"version": found.version, "error": found.error, "pin": part.version, "reads": part.reads}


def judge_library(value: Any) -> Outcome:
    """The version that the library itself tells, as far as it tells it."""
    if outcome := not_here("GDRCopy's library", value):
        return outcome
    remedy = "rebuild the image with --build-arg VENDOR=nvidia, or install the release's libgdrapi"
    error = value.get("error")
    if error:
        return Outcome(status="fail", observed=str(error), expected="libgdrapi loads", remedy=remedy)
    try:
        found, pin = numbers(value.get("version")), numbers(value.get("pin"))
        pin = pin[: int(value["reads"]) or len(pin)]
    except (KeyError, TypeError, ValueError):
        return unreadable("GDRCopy's library", dict(value))
    wanted, observed = f"libgdrapi {value['pin']}", f"libgdrapi {value['version']}"
    if found != pin:
        return Outcome(status="fail", observed=observed, expected=wanted, remedy=remedy)
    return Outcome(status="pass", observed=observed, expected=wanted)


def measure_driver(context: Context, root: Path = Path("/")) -> dict[str, Any]:
    """gdrdrv in the kernel, its device file, and what dma-buf would need."""
    why = missing(root)
    if why:
        return absent(why)
    found = library(context)
    if found.get("absent"):
        return found
    majors = re.findall(r"^\s*(\d+) gdrdrv$", text(root / "proc/devices"), re.MULTILINE)
    return {
        "loaded": "gdrdrv" in modules(root),
        "major": int(majors[0]) if majors else None,
        "node": _major(root / "dev/gdrdrv"),
        "cuda": nvml.libcuda(root).get("cuda", ""),
        "library": found.get("version", ""),
    }


def _major(path: Path) -> int | None:
    """A device file's major number; None where there is no such device."""
    try:
        found = path.stat()
    except OSError:
        return None
    return os.major(found.st_rdev) if stat.S_ISCHR(found.st_mode) else -1


def judge_driver(value: Any) -> Outcome:
    """The device file has to belong to the loaded module; with a new driver and library none is needed."""
    if outcome := not_here("GDRCopy's driver", value):
        return outcome
    loaded, major, node = value.get("loaded"), value.get("major"), value.get("node")
    whole = all(each is None or (isinstance(each, int) and not isinstance(each, bool)) for each in (major, node))
    if not isinstance(loaded, bool) or not whole:
        return unreadable("GDRCopy's driver", dict(value))
    wanted = "gdrdrv and its /dev/gdrdrv, or CUDA 13.3 with GDRCopy 2.6 for dma-buf"
    if loaded and node is not None and node == major:
        return Outcome(status="pass", observed=f"gdrdrv, /dev/gdrdrv of major {major}", expected=wanted)
    if _dma_buf(value):
        observed = f"dma-buf of CUDA {value.get('cuda')} with GDRCopy {value.get('library')}"
        return Outcome(status="pass", observed=observed, expected=wanted)
    if loaded and node is not None:
        observed = f"/dev/gdrdrv has major {node}, the module has {major}: a file left by an earlier load"
        return Outcome(status="fail", observed=observed, expected=wanted, remedy=f"rm /dev/gdrdrv, then {DEVICE_FLAG}")
    if loaded:
        observed = "gdrdrv is loaded, but there is no /dev/gdrdrv"
        return Outcome(status="warn", observed=observed, expected=wanted, remedy=DEVICE_FLAG)
    observed = "unable to open GDR driver, is gdrdrv.ko loaded? It is not"
    remedy = (
        "on the host: install gdrdrv-dkms and load it; UCX, NVSHMEM and NCCL go on without it, slower for small sizes"
    )
    return Outcome(status="warn", observed=observed, expected=wanted, remedy=remedy)


def _dma_buf(value: Any) -> bool:
    try:
        return numbers(value.get("cuda")) >= DMA_BUF_CUDA and numbers(value.get("library")) >= DMA_BUF_LIBRARY
    except ValueError:
        return False


def measure_match(context: Context, root: Path = Path("/")) -> dict[str, Any]:
    """The kernel module's version beside the library's."""
    module = text(root / "sys/module/gdrdrv/version")
    if not module:
        return absent(missing(root) or "no gdrdrv in this kernel")
    found = library(context)
    return found if found.get("absent") else {"module": module, "library": found.get("version", "")}


def judge_match(value: Any) -> Outcome:
    """They speak one protocol within a major version."""
    if outcome := not_here("GDRCopy's versions", value):
        return outcome
    try:
        module, own = numbers(value.get("module")), numbers(value.get("library"))
    except ValueError:
        return unreadable("GDRCopy's versions", dict(value))
    wanted, observed = f"gdrdrv of major version {own[0]}", f"gdrdrv {value['module']}, libgdrapi {value['library']}"
    if module[0] != own[0]:
        remedy = f"install gdrdrv-dkms {value['library']} on the host"
        return Outcome(status="fail", observed=observed, expected=wanted, remedy=remedy)
    return Outcome(status="pass", observed=observed, expected=wanted)


def measure_sanity(context: Context, root: Path = Path("/"), seconds: float = 120.0) -> dict[str, Any]:
    """gdrcopy_sanity, which older versions call sanity, under a deadline."""
    why = missing(root)
    found = [shutil.which(name, path=program_path()) for name in ("gdrcopy_sanity", "sanity")]
    program = next(filter(None, found), None)
    if why or program is None:
        return absent(why or "gdrcopy_sanity is not installed")
    return sanity(run([program], seconds), seconds)


def sanity(done: Ran, seconds: float) -> dict[str, Any]:
    """Exit code and counts of a run."""
    if done.code is None:
        return {"late": seconds} if done.error == "late" else {"error": done.error}
    line = re.search(r"Total: (\d+), Passed: (\d+), Failed: (\d+), Waived: (\d+)", done.output)
    counts = dict(zip(("total", "passed", "failed", "waived"), map(int, line.groups()), strict=True)) if line else {}
    return {"code": done.code, **counts, "output": done.output[-2000:]}


def judge_sanity(value: Any) -> Outcome:
    """A test that was waived tested nothing."""
    if outcome := not_here("gdrcopy_sanity", value):
        return outcome
    wanted, remedy = "every test passes", "see gdrcopy.driver and gdrcopy.match; dmesg | grep gdrdrv"
    if "late" in value or value.get("error"):
        observed = f"gdrcopy_sanity did not end within {value['late']:g} s" if "late" in value else str(value["error"])
        return Outcome(status="fail", observed=observed, expected=wanted, remedy=remedy)
    code, passed, failed = value.get("code"), value.get("passed"), value.get("failed", 0)
    if isinstance(code, bool) or not isinstance(code, int) or not isinstance(failed, int):
        return unreadable("gdrcopy_sanity", dict(value))
    if code == WAIVED or (code == 0 and passed == 0):
        return skip("gdrcopy_sanity waived its tests", remedy)
    if code != 0 or failed > 0:
        observed = f"gdrcopy_sanity: {failed} tests failed, exit code {code}"
        evidence = str(value.get("output", ""))
        return Outcome(status="fail", observed=observed, expected=wanted, evidence=evidence, remedy=remedy)
    waived = f", {value['waived']} waived" if value.get("waived") else ""
    return Outcome(status="pass", observed=f"{passed or 'all'} tests passed{waived}", expected=wanted)


CHECKS = (
    cheap(
        id="gdrcopy.library",
        title="GDRCopy's library",
        measure=library,
        judge=judge_library,
        why="UCX and NVSHMEM load libgdrapi when it is there and go without it when it is not: nothing says so.",
        rule="Fails when it does not load where the image declares it, or has another version than the release's.",
    ),
    cheap(
        id="gdrcopy.driver",
        title="GDRCopy's kernel driver, or dma-buf",
        measure=measure_driver,
        judge=judge_driver,
        why="`unable to open GDR driver, is gdrdrv.ko loaded?`, and it is loaded: modprobe makes no device file, and a "
        "container needs --device.",
        rule="Fails when /dev/gdrdrv has another major number than the module; warns without a device file, or "
        "with neither module nor dma-buf.",
    ),
    cheap(
        id="gdrcopy.match",
        title="GDRCopy's module against its library",
        measure=measure_match,
        judge=judge_match,
        why="A module of another major version refuses the library's calls: gdr_open fails, and nothing says versions.",
        rule="Fails when their major versions differ.",
    ),
    deep(
        id="gdrcopy.sanity",
        title="GDRCopy's self-test",
        measure=measure_sanity,
        judge=judge_sanity,
        why="A loaded module is no proof that mapping GPU memory works: `gdrcopy_sanity fails with gdrdrv loaded`.",
        rule="Fails when gdrcopy_sanity fails or does not end in 120 s; waived tests are a skip.",
    ),
)

"""A run under NVIDIA Nsight Systems: the command, where the report goes, and why there is none.

One nsys holds the whole torchrun, not one each rank. Asked to stop, nsys passes the signal on and ends at once:
torchrun would take the rank for ended before it has committed a checkpoint. And a rank that was killed would be one
that ended with exit code 137. Inside nsys, torchrun has the ranks themselves as its children, as ever, and one report
shows all of them on one time axis.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from itertools import count
from pathlib import Path

import psutil

from trackbed.submit.plan import Plan
from trackbed.submit.run import Run

DRIVER = Path("/dev/nvidiactl")
REMEDY = "use the gpu image built with its vendor overlay, or install your distribution's nsight-systems package"
# The first of the lines with which nsys ends, after its program's own.
CLOSING = re.compile(r"^Generating '", re.MULTILINE)


def wrap(plan: Plan, run: Run) -> Plan:
    """The plan with its command under nsys; where nsys cannot be used, the same plan with the reason in profile_note.

    Runs `nsys --version` and writes nothing.
    """
    tool, reason = _find()
    if reason:
        return replace(plan, profile_note=f"this run is not profiled: {reason}; {REMEDY}")
    report = _free_name(run.folder / "profile")
    command = [tool, "profile", *options(), "-o", str(report).replace("%", "%%"), *_with_umask(), *plan.command]
    return replace(plan, command=command, profile=f"{report}.nsys-rep")


def options() -> list[str]:
    """What is traced: calls into the system and NVTX ranges, and CUDA where its driver is.

    Samples and context switches are left out: they need rights in the kernel that no container has. There is no option
    for telemetry: nsys keeps a log in the temporary folder and connects to this machine alone (2022.4, seen by strace).
    """
    traces = "cuda,nvtx,osrt" if DRIVER.exists() else "nvtx,osrt"
    # nsys waits for torchrun alone: something that a rank has left running must not keep the submitter.
    return [f"--trace={traces}", "--sample=none", "--cpuctxsw=none", "--wait=primary", "--force-overwrite=false"]


def torchrun(plan: Plan) -> psutil.Process | None:
    """torchrun's own process somewhere under nsys; None before it has started and after it has ended.

    It is known by its whole command line, which names the run: when nsys is killed torchrun is no longer its child.
    """
    command = plan.command[plan.command.index(sys.executable) :]
    for process in psutil.process_iter(["cmdline"]):
        if process.info["cmdline"] == command:
            return process
    return None


def outcome(plan: Plan) -> str:
    """Where the report of an attempt that has ended is, or that there is none."""
    report = Path(plan.profile)
    if report.exists():
        return f"profile: {report} (nsys-ui opens it, nsys stats adds it up)"
    if raw := list(report.parent.glob(f"{report.stem}.*")):
        return f"profile: {raw[0]} (as recorded; nsys's host part, QdstrmImporter, makes {report.name} of it)"
    return f"warning: nsys left no report {report}; its last lines in train.log say why"


def _find() -> tuple[str, str]:
    """nsys and no reason, or no nsys and the reason."""
    beside = str(Path(sys.executable).parent)
    tool = shutil.which("nsys", path=os.pathsep.join([os.environ.get("PATH", os.defpath), beside]))
    if tool is None:
        return "", f"nsys is neither on PATH nor in {beside}"
    try:
        subprocess.run([tool, "--version"], capture_output=True, text=True, check=True, timeout=60)
    except subprocess.CalledProcessError as error:
        return "", f"{tool} does not start: {' '.join(error.stderr.split()) or error}"
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", f"{tool} does not start: {error}"
    return tool, ""


def _with_umask() -> list[str]:
    """nsys starts its program with a umask of 0: everybody could write to checkpoints and to the model."""
    mask = os.umask(0o077)
    os.umask(mask)
    return ["sh", "-c", f'umask {mask:04o} && exec "$@"', "sh"]


def _free_name(folder: Path) -> Path:
    """A report's path without its suffix. Reports are numbered, and none is ever written over, finished or not."""
    return next(folder / f"report-{n}" for n in count(1) if not any(folder.glob(f"report-{n}.*")))

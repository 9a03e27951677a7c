"""Read the real version of a component, by the way its `probe` names.

    loaded = load(["torch", "call:torch.version:cuda"])      # one child interpreter, killed when one hangs
    found = read(component, loaded)

Nothing read here can hurt the caller: a module that crashes, hangs or raises becomes a `Found` with an error.
`python -m trackbed.release.probe TARGET...` is that child; it writes one JSON line a target. A target is a module, or
`call:MODULE:NAME` for a value or function in one, or `library:FILE:FUNCTION` for a C library's own version function.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import platform
import pwd
import re
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import trackbed
from trackbed.release import Component

NUMBER = re.compile(r"\d+(?:\.\d+)+[\w.+-]*")
IN_CHILD = ("import", "call", "library")
DRIVER = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True, kw_only=True)
class Found:
    """The version a probe found, or why it found none."""

    version: str = ""
    error: str = ""


def read(component: Component, loaded: Mapping[str, Found]) -> Found:
    """The version of one component; what a child reads is answered from `loaded` (see `load`)."""
    kind, _, target = component.probe.partition(":")
    if kind in IN_CHILD:
        return loaded.get(child_target(component.probe)) or Found(error=f"{target} was not probed")
    readers = {
        "metadata": _metadata,
        "command": command_version,
        "python": _python,
        "os-release": _os_release,
        "driver": _driver,
        "declared": _declared,
    }
    if kind not in readers:
        return Found(error=f"the release names an unknown probe, `{component.probe}`")
    return readers[kind](target)


def child_target(probe: str) -> str:
    """What a child is asked for a probe: the module of `import:MODULE`, the probe itself of the others; else empty."""
    kind = probe.partition(":")[0]
    return (probe.removeprefix("import:") if kind == "import" else probe) if kind in IN_CHILD else ""


def load(modules: Sequence[str], seconds: float = 60.0) -> dict[str, Found]:
    """Read targets, in this order, in one child interpreter; each may take `seconds`.

    When one kills or hangs the child it is recorded as the culprit, and a new child imports the rest.
    """
    found: dict[str, Found] = {}
    while left := [module for module in modules if module not in found]:
        found.update(_load_until_failure(left, seconds))
    return found


def environment() -> dict[str, str]:
    """The parent's environment, in which a child finds this package and the programs installed beside Python."""
    home = str(Path(trackbed.__file__).parents[1])
    paths = [home, *filter(None, [os.environ.get("PYTHONPATH")])]
    ours = {"PYTHONPATH": os.pathsep.join(paths), "PATH": program_path()}
    # A Slurm prolog and a service get none, and mpirun does not start without one.
    return {"HOME": _home(), **os.environ, **ours}


def _home() -> str:
    """This user's home by the user's record; the temporary folder for one without a record."""
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return "/tmp"


def program_path() -> str:
    """PATH with the folder of this interpreter first: an environment need not be activated to be checked."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def _load_until_failure(modules: Sequence[str], seconds: float) -> dict[str, Found]:
    """Run one child until it is done or one module fails it; always says something of the first module."""
    command = [sys.executable, "-m", "trackbed.release.probe", *modules]
    child = subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        found = dict(_records(child, seconds))
        culprit = next((module for module in modules if module not in found), None)
        return found if culprit is None else {**found, culprit: Found(error=_cause(child, seconds))}
    finally:
        _kill(child)


def _records(child: subprocess.Popen[bytes], seconds: float) -> Iterator[tuple[str, Found]]:
    """Lines of the child as they come, until it closes its output or says nothing for `seconds`."""
    assert child.stdout is not None
    waiting = b""
    while select.select([child.stdout], [], [], seconds)[0]:
        chunk = os.read(child.stdout.fileno(), 65536)
        if not chunk:
            return
        *lines, waiting = (waiting + chunk).split(b"\n")
        for line in lines:
            record = json.loads(line)
            yield record["module"], Found(version=record["version"], error=record["error"])


def _cause(child: subprocess.Popen[bytes], seconds: float) -> str:
    try:
        code = child.wait(timeout=1)
    except subprocess.TimeoutExpired:
        return f"its import did not end within {seconds:g} s"
    died = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return f"its import killed the interpreter ({died})"


def _kill(child: subprocess.Popen[bytes]) -> None:
    """End the child's whole group, also what an import left running, and take its exit status."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    if child.stdout:
        child.stdout.close()


def _metadata(distribution: str) -> Found:
    try:
        return Found(version=metadata.version(distribution))
    except metadata.PackageNotFoundError:
        return Found(error=f"{distribution} is not installed")


def command_version(line: str) -> Found:
    """The first version number that a command line prints."""
    program, *arguments = line.split()
    path = shutil.which(program, path=program_path())
    if path is None:
        return Found(error=f"there is no program {program}")
    try:
        done = subprocess.run(
            [path, *arguments], env=environment(), capture_output=True, text=True, errors="replace", timeout=20
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Found(error=f"{program}: {error}")
    match = NUMBER.search(done.stdout + done.stderr)
    return Found(version=match[0]) if match else Found(error=f"`{line}` printed no version")


def _python(_: str) -> Found:
    return Found(version=platform.python_version())


def _os_release(_: str) -> Found:
    try:
        return Found(version=platform.freedesktop_os_release()["VERSION_ID"])
    except (OSError, KeyError):
        return Found(error="this system has no os-release file with a VERSION_ID")


def _driver(_: str) -> Found:
    """The kernel module's version: the first number of a line such as `NVRM version: ... Module  580.95.05  ...`."""
    try:
        text = DRIVER.read_text("utf-8", "replace")
    except OSError:
        return Found(error="no NVIDIA driver on this machine")
    match = re.search(r"^NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", text, re.MULTILINE)
    return Found(version=match[1]) if match else Found(error=f"{DRIVER} names no version")


def _declared(variable: str) -> Found:
    """What a variable says, for a part that nothing here can load."""
    said = os.environ.get(variable, "")
    return Found(version=said) if said else Found(error=f"{variable} is not set")


def _read_in_child(target: str) -> Found:
    try:
        version = {"call": _call, "library": _library}.get(target.partition(":")[0], _import)(target)
    except BaseException as error:  # noqa: BLE001 - whatever an import raises, SystemExit too, is the finding
        return Found(error=" ".join(f"{type(error).__name__}: {error}".split()))
    return Found(version=version)


def _import(name: str) -> str:
    return str(getattr(importlib.import_module(name), "__version__", ""))


def _call(target: str) -> str:
    _, module, name = target.split(":")
    value = getattr(importlib.import_module(module), name)
    value = value() if callable(value) else value
    if isinstance(value, tuple):
        return ".".join(map(str, value))
    return _from_integer(value) if isinstance(value, int) else str(value or "")


def _library(target: str) -> str:
    _, file, name = target.split(":")
    function = getattr(ctypes.CDLL(file), name)
    if name == "gdr_runtime_get_version":
        major, minor = ctypes.c_int(), ctypes.c_int()
        function(ctypes.byref(major), ctypes.byref(minor))
        return f"{major.value}.{minor.value}"
    return _from_integer(function())


def _from_integer(number: int) -> str:
    """NVIDIA's libraries count 9.20.0 as 92000, and before version 9 (TensorRT: 10) 8.9.2 as 8902."""
    thousand = 10_000 if number >= 90_000 else 1_000
    return f"{number // thousand}.{number % thousand // 100}.{number % 100}"


def _child(modules: Sequence[str]) -> None:
    """Write a line a module to what was standard output; what libraries print goes to standard error."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as report:
        os.dup2(2, 1)
        for module in modules:
            found = _read_in_child(module)
            line = {"module": module, "version": found.version, "error": found.error}
            report.write(json.dumps(line) + "\n")
            report.flush()
    # Libraries that crash or wait while the interpreter ends have already said what was asked of them.
    os._exit(0)


if __name__ == "__main__":
    _child(sys.argv[1:])

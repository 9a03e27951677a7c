"""Read the real version of a component, by the way its `probe` names.

    loaded = load(["torch", "deepspeed"])      # one child interpreter, killed when a module hangs
    found = read(component, loaded)

Nothing read here can hurt the caller: a module that crashes, hangs or raises becomes a `Found` with an error.
`python -m trackbed.release.probe MODULE...` is that child; it writes one JSON line a module.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
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


@dataclass(frozen=True, kw_only=True)
class Found:
    """The version a probe found, or why it found none."""

    version: str = ""
    error: str = ""


def read(component: Component, loaded: Mapping[str, Found]) -> Found:
    """The version of one component; `import:` probes are answered from `loaded` (see `load`)."""
    kind, _, target = component.probe.partition(":")
    if kind == "import":
        return loaded.get(target) or Found(error=f"{target} was not probed")
    readers = {"metadata": _metadata, "command": _command, "python": _python, "os-release": _os_release}
    if kind not in readers:
        return Found(error=f"the release names an unknown probe, `{component.probe}`")
    return readers[kind](target)


def load(modules: Sequence[str], seconds: float = 60.0) -> dict[str, Found]:
    """Import modules, in this order, in one child interpreter; each may take `seconds`.

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
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PATH": program_path()}


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


def _command(line: str) -> Found:
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


def _import(name: str) -> Found:
    try:
        module = importlib.import_module(name)
    except BaseException as error:  # noqa: BLE001 - whatever an import raises, SystemExit too, is the finding
        return Found(error=" ".join(f"{type(error).__name__}: {error}".split()))
    return Found(version=str(getattr(module, "__version__", "")))


def _child(modules: Sequence[str]) -> None:
    """Write a line a module to what was standard output; what libraries print goes to standard error."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as report:
        os.dup2(2, 1)
        for module in modules:
            found = _import(module)
            line = {"module": module, "version": found.version, "error": found.error}
            report.write(json.dumps(line) + "\n")
            report.flush()
    # Libraries that crash or wait while the interpreter ends have already said what was asked of them.
    os._exit(0)


if __name__ == "__main__":
    _child(sys.argv[1:])

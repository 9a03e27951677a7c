"""deepspeed.*: whether DeepSpeed's own operations can be had here: loaded if they are built, compiled if not.

Trackbed's jobs need none of them: they use torch's fused AdamW. CPU offload and DeepSpeed's fused optimizers do. A
job says that it needs a compiler with `expect["compiler"]`, TRACKBED_COMPILER=1 or CXX.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from trackbed.errors import Problem, TrackbedError
from trackbed.release.probe import environment, program_path
from trackbed.validate import Check, Context, Outcome, number, skip, unreadable

STALE = 600.0  # seconds; compiling one operation takes one to three minutes
# The smallest program that needs what every torch extension needs: a compiler, a linker, Python's headers.
SOURCE = (
    "#include <Python.h>\n#include <vector>\nint trackbed() { return std::vector<int>(PY_MAJOR_VERSION).size(); }\n"
)
HEADERS = {
    "Python.h": "apt-get install python3-dev (Debian, Ubuntu), dnf install python3-devel, or conda's own Python",
    "": "apt-get install g++ python3-dev, or dnf install gcc-c++ python3-devel",
}
# What was removed, and the part of the package whose absence says so.
REMOVED = {
    "elasticity": "elasticity",
    "--elastic_training": "elasticity",
    "--min_elastic_nodes": "elasticity",
    "--max_elastic_nodes": "elasticity",
}
CONFIG = "TRACKBED_CHECK_DEEPSPEED"


def extensions(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder that torch compiles extensions into."""
    return Path(environ.get("TORCH_EXTENSIONS_DIR") or Path.home() / ".cache" / "torch_extensions")


def measure_compiler(context: Context) -> dict[str, Any]:
    """Compile the smallest extension, if there is a compiler. Where it is loaded from, container.caches checks."""
    compiler = os.environ.get("CXX") or "c++"
    program = shutil.which(compiler, path=program_path())
    wanted = bool(context.expect.get("compiler") or os.environ.get("TRACKBED_COMPILER") or os.environ.get("CXX"))
    return {
        "compiler": compiler,
        "found": program or "",
        "ninja": bool(shutil.which("ninja", path=program_path())),
        "error": _compile(program) if program else "",
        "wanted": wanted,
    }


def judge_compiler(measured: object) -> Outcome:
    """Without a compiler nothing is wrong until a job needs one; with half of one somebody meant to have it."""
    found = measured if isinstance(measured, Mapping) else {}
    if not all(isinstance(found.get(name), str) for name in ("compiler", "found", "error")):
        return unreadable("the compiler", measured)
    missing = _missing(found)
    expected = "a C++ compiler, ninja and Python.h"
    if not missing:
        observed = f"{found['found']} compiles and links an extension for Python"
        return Outcome(status="pass", observed=observed, expected=expected)
    text, remedy = missing
    if not found.get("wanted"):
        return skip(f"{text}; no job here needs one (TRACKBED_COMPILER=1 says that one does)", remedy)
    return Outcome(status="fail", observed=text, expected=expected, evidence=found["error"], remedy=remedy)


def measure_locks(context: Context, now: float | None = None) -> list[dict[str, Any]]:
    """Locks of builds: path, seconds since anything in its folder last changed, the builder's pid, 0 for none."""
    root, when = extensions(), time.time() if now is None else now
    locks = [lock for pattern in ("lock", "*/lock", "*/*/lock") for lock in root.glob(pattern) if lock.is_file()]
    return [
        {"path": str(lock), "age": _age(lock.parent, when), "builder": _builder(lock.parent)} for lock in sorted(locks)
    ]


def judge_locks(locks: object) -> Outcome:
    """A build that was killed leaves its lock, and every later start waits for it: for ever, and without a word."""
    if not isinstance(locks, list) or any(not isinstance(lock, Mapping) for lock in locks):
        return unreadable("the locks of builds", locks)
    if any(number(lock.get("age")) is None or number(lock.get("builder")) is None for lock in locks):
        return unreadable("a lock of a build", locks)
    stale = [lock for lock in locks if lock["age"] > STALE and not lock["builder"]]
    expected = f"no lock older than {STALE / 60:g} minutes without a builder"
    if not stale:
        observed = f"{len(locks)} locks, of builds that are going on" if locks else "no build has left a lock"
        return Outcome(status="pass", observed=observed, expected=expected)
    observed = "; ".join(f"{lock['path']} is {lock['age'] / 60:.0f} minutes old and nobody builds" for lock in stale)
    remedy = "rm " + " ".join(str(lock["path"]) for lock in stale)
    return Outcome(status="fail", observed=observed, expected=expected, remedy=remedy)


def measure_removed(context: Context) -> dict[str, Any]:
    """The words of a DeepSpeed configuration or launch script that this DeepSpeed has dropped.

    `expect["deepspeed"]` is its path, else TRACKBED_CHECK_DEEPSPEED.
    """
    path = str(context.expect.get("deepspeed") or os.environ.get(CONFIG) or "")
    if not path:
        return {"path": "", "used": [], "gone": []}
    spec = importlib.util.find_spec("deepspeed")
    home = Path((spec.submodule_search_locations or [""])[0]) if spec else Path()
    gone = [word for word, part in REMOVED.items() if spec and not (home / part).exists()]
    return {"path": path, "used": _words(Path(path)), "gone": gone, "installed": bool(spec)}


def judge_removed(measured: object) -> Outcome:
    """What an older DeepSpeed took is an error of the launcher now, or changes nothing without a word."""
    found = measured if isinstance(measured, Mapping) else {}
    path, used, gone = (found.get(name) for name in ("path", "used", "gone"))
    if not isinstance(path, str) or not isinstance(used, list) or not isinstance(gone, list):
        return unreadable("the DeepSpeed configuration", measured)
    if not path:
        return skip("no DeepSpeed configuration or launch script is named", f"name it to have it read: {CONFIG}=FILE")
    if not found.get("installed"):
        return Outcome(status="fail", observed="DeepSpeed is not installed", expected="DeepSpeed", remedy="make setup")
    bad = [word for word in used if word in gone]
    expected = "nothing that this DeepSpeed has removed"
    if not bad:
        return Outcome(status="pass", observed=f"{path} uses nothing that was removed", expected=expected)
    return Outcome(
        status="fail",
        observed=f"{path} uses {', '.join(bad)}, which this DeepSpeed no longer has",
        expected=expected,
        remedy="take it out and restart with torchrun (--nnodes=MIN:MAX, --max-restarts) and a checkpoint; or "
        "use a release whose DeepSpeed has it (23.06, 23.07)",
    )


def _missing(found: Mapping[str, Any]) -> tuple[str, str] | None:
    """What a build lacks, and how to get it."""
    if not found["found"]:
        add = "apt-get install g++ python3-dev in an image FROM this one; dnf install gcc-c++ python3-devel"
        return f"there is no compiler {found['compiler']}", f"{add}; or unset CXX, or set it to one that is there"
    if found["error"]:
        header = re.search(r"fatal error: '?([\w./]+)'?", found["error"])
        return f"{found['found']}: {found['error']}", HEADERS.get(header[1] if header else "", HEADERS[""])
    if not found.get("ninja"):
        return "there is no ninja", "pip install ninja, or apt-get install ninja-build"
    return None


def _compile(compiler: str) -> str:
    """The compiler's first error line; empty when it makes a shared library."""
    with tempfile.TemporaryDirectory(prefix="trackbed-") as folder:
        source, library = Path(folder, "probe.cpp"), Path(folder, "probe.so")
        source.write_text(SOURCE, "utf-8")
        flags = ["-shared", "-fPIC", f"-I{sysconfig.get_paths()['include']}"]
        try:
            done = subprocess.run(
                [compiler, *flags, str(source), "-o", str(library)], capture_output=True, text=True, errors="replace",
                env=environment(), check=False, timeout=20,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        return first_error(done.stderr) if done.returncode else ""


def first_error(said: str) -> str:
    """The first line with an error that a compiler or a linker printed, without the path before it."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\berror\b|cannot find|undefined reference|not found", line)]
    line = (errors or lines or ["it said nothing"])[0]
    return re.sub(r"^\S+\.(cpp|h|cu)(:\d+)*:\s*", "", line)[:300]


def _age(folder: Path, now: float) -> float:
    """Seconds since the newest file in a build's folder changed; 0 for a time in the future."""
    newest = 0.0
    for path in folder.iterdir():
        with suppress(OSError):
            newest = max(newest, path.lstat().st_mtime)
    return max(0.0, now - newest)


def _builder(folder: Path) -> int:
    """A process that compiles there: ninja works in the folder, and compilers name it."""
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            words = process.cmdline()
            if process.pid != os.getpid() and (
                process.cwd() == str(folder) or any(word.startswith(f"{folder}{os.sep}") for word in words)
            ):
                return process.pid
    return 0


def _words(path: Path) -> list[str]:
    """Keys of a JSON configuration; flags of a script. TrackbedError for a path that cannot be read."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        what = f"{path} cannot be read: {error}"
        raise TrackbedError(Problem(id="deepspeed.removed-features", what=what, remedy=f"correct {CONFIG}")) from error
    try:
        return sorted(json.loads(text))
    except (ValueError, TypeError):
        return sorted({word.partition("=")[0] for word in re.findall(r"--[\w-]+", text)})


CHECKS = (
    Check(
        id="deepspeed.compiler",
        title="what compiling DeepSpeed's operations needs",
        measure=measure_compiler,
        judge=judge_compiler,
        deadline=30,
        child="host",
        why="`fatal error: Python.h: No such file or directory`, `c++: not found` or `Unable to JIT load the cpu_adam "
        "op due to ninja not being installed.` at the first step of a job with CPU offload, after the model is loaded.",
        rule="Fails when a job says that it compiles (TRACKBED_COMPILER=1, CXX) and the smallest extension "
        "does not compile or there is no ninja. Skipped when that fails and nobody asks for it, as in the image.",
    ),
    Check(
        id="deepspeed.stale-lock",
        title="locks that killed builds left",
        measure=measure_locks,
        judge=judge_locks,
        deadline=20,
        child="host",
        why="The start hangs for ever at `Using ... as PyTorch extensions root...`: a build that was killed left its "
        "lock, and everyone waits for it.",
        rule="Fails when a `lock` in the extensions folder is older than ten minutes and no process compiles there.",
    ),
    Check(
        id="deepspeed.removed-features",
        title="what this DeepSpeed has removed",
        measure=measure_removed,
        judge=judge_removed,
        deadline=20,
        child="host",
        why="`error: unrecognized arguments: --elastic_training`, or `Elastic training has been removed` when the "
        "engine is built: a configuration of an older DeepSpeed.",
        rule="Fails when the named configuration or script uses elastic training and this DeepSpeed has none. Skipped "
        "when none is named.",
    ),
)

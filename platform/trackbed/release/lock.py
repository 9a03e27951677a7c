"""Work out the locked files of a release with uv, and move its pins to newer versions.

`lock(release, root)` reads requirements/RELEASE/*.in and writes the *.lock beside them: hashes, no addresses, nothing
newer than the release's date, so that two runs give the same files.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path

from trackbed.errors import Problem, ReleaseError
from trackbed.release import FOLDER, Component, Lock, Release

COMMON = ["--no-header", "--no-annotate", "--python-platform", "x86_64-manylinux_2_28"]
# What prefers the CPU build of torch, which satisfies the GPU variant's pin too and would take its place unseen.
CPU_SETTINGS = ("UV_FIND_LINKS", "UV_TORCH_BACKEND")


def lock(release: Release, root: Path) -> list[Path]:
    """Write every lock of a release, tools included for the default one; returns the files."""
    folder = root / release.name
    done = [_compile(release, folder / f"{name}.in") for name in ("cpu", "gpu", "build", "vendor", "library")]
    if release.select(group="boot"):
        done += [_compile(release, root / f"{name}.in") for name in ("boot", "model", "data")]
        done += [_compile(release, root / "dev.in", "-c", str(folder / "cpu.lock"))]
    return done


def upgrade(release: Release, until: date | None = None) -> dict[str, tuple[str, str]]:
    """Pin what the registry had `until` then that is newest and fits together; returns {component: (old, new)}.

    Without `until` the release keeps its own date, as one of years ago should. Only the release file is written: the
    change is a diff of versions, and render and lock come after.
    """
    release = replace(release, lock=replace(release.lock, before=until or release.lock.before))
    moved: dict[str, tuple[str, str]] = {}
    for group in ("runtime", "dev", "boot", "build", "model", "data"):
        parts = release.select(group=group)
        newest = _newest(release, parts) if parts else {}
        moved |= {part.name: (part.version, newest[part.name]) for part in parts if _moves(part, newest)}
    path = FOLDER / f"{release.name}.toml"
    text = _with_versions(path.read_text("utf-8"), {name: new for name, (_, new) in moved.items()})
    path.write_text(re.sub(r"(?m)^before = .*", f"before = {release.lock.before}", text, count=1), "utf-8")
    return moved


def pins(text: str) -> dict[str, str]:
    """Package and version of every line of a locked file."""
    return dict(re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", text, re.MULTILINE))


def _compile(release: Release, source: Path, *more: str) -> Path:
    """One lock. A file without pins, as of a release without a vendor wheel, gives an empty one."""
    target = source.with_suffix(".lock")
    if not source.exists():
        remedy = "at the top of the repository: make render, then make lock"
        raise ReleaseError(Problem(id="release.no-input", where=str(source), what="is not here", remedy=remedy))
    if not pins(source.read_text("utf-8")):
        target.write_text("", "utf-8")
        return target
    gpu = source.stem in ("gpu", "vendor", "library")
    alone = ["--no-deps"] if source.stem in ("model", "data", "vendor", "library") else []
    target.write_text(_uv(release, source, "--generate-hashes", *alone, *more, gpu=gpu), "utf-8")
    return target


def _newest(release: Release, parts: list[Component]) -> dict[str, str]:
    """The version that each component would get if nothing but the caps and the date bound it."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "newest.in"
        # Never an older one: without this bound, the newest cuDNN would buy itself an old torch.
        source.write_text("".join(f"{part.package}>={part.installed}\n" for part in parts), "utf-8")
        found = {name.lower(): version for name, version in pins(_uv(release, source, gpu=True)).items()}
    return {part.name: found[part.package.lower()] for part in parts if part.package.lower() in found}


def _moves(part: Component, newest: dict[str, str]) -> bool:
    """A pin that stands for something that is not public has nothing newer to move to."""
    return not part.substitute and newest.get(part.name, part.version) != part.version


def _uv(release: Release, source: Path, *more: str, gpu: bool = False) -> str:
    """The lock that uv works out; ReleaseError with uv's own words when nothing fits."""
    cpu_build = any(part.cpu_build for part in release.components.values()) and not gpu
    environment = {name: value for name, value in os.environ.items() if cpu_build or name not in CPU_SETTINGS}
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as caps:
        caps.write("".join(f"{cap}\n" for cap in release.lock.caps))
        caps.flush()
        command = [_program(), "pip", "compile", "-q", *COMMON, "--python-version", _python(release, source)]
        command += ["-c", caps.name, *_dates(release.lock), *more, str(source)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        what = f"uv cannot lock {source.name} of {release.name}: {done.stderr.strip()}"
        raise ReleaseError(Problem(id="release.lock", what=what, remedy="change the pins that it names"))
    return done.stdout


def _python(release: Release, source: Path) -> str:
    """The interpreter to lock for: a wheel that only its libraries are taken from may be another one's."""
    others = [part.library_python for part in release.components.values() if part.library_python]
    return others[0] if source.stem == "library" and others else release.components["python"].installed


def _dates(lock: Lock) -> Iterator[str]:
    """uv's arguments for the dates after which a file is not looked at."""
    if lock.before:
        yield from ("--exclude-newer", lock.before.isoformat())
    for package, day in lock.later.items():
        yield from ("--exclude-newer-package", f"{package}={day.isoformat()}")


def _program() -> str:
    """uv as `make setup` installed it, else the one on PATH."""
    ours = Path(".uv/bin/uv")
    path = str(ours) if ours.exists() else shutil.which("uv")
    if not path:
        raise ReleaseError(Problem(id="release.no-uv", what="uv is not here", remedy="make setup, at the repository"))
    return path


def _with_versions(text: str, new: dict[str, str]) -> str:
    """The release file with only the versions changed: its comments are worth as much as its pins."""
    for name, version in new.items():
        pattern = rf'(^\[components\.{re.escape(name)}\]\n(?:[^\[\n][^\n]*\n)*?version = ")[^"]*(")'
        text, done = re.subn(pattern, rf"\g<1>{version}\g<2>", text, count=1, flags=re.MULTILINE)
        if not done:
            what = f"its version cannot be moved to {version}: the file has no such line"
            wanted = f'[components.{name}] and, with no empty line between, version = "..."'
            raise ReleaseError(Problem(id="release.upgrade", where=name, what=what, wanted=wanted))
    return text

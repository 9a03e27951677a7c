"""Rules of the repository that no single module can hold."""

from __future__ import annotations

import ast
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT
from trackbed.release import names
from trackbed.release.render import render

PACKAGE = ROOT / "platform" / "trackbed"
LOCKS = [path for path in sorted((ROOT / "requirements").rglob("*.lock")) if path.read_text()]
HEAVY = {"torch", "deepspeed", "nvidia", "transformers", "tensorboard"}
ALLOWED = {
    "submit": {"submit", "job", "hub", "folders", "errors"},
    "train": {"train", "job", "hub", "folders", "data", "monitor", "errors"},
    "release": {"release", "errors"},
    "data": {"data", "errors", "folders", "hub", "job", "wheels"},
    "monitor": {"monitor", "errors", "folders"},
    "validate": {"validate", "release", "errors", "folders"},
}


def run(*command: str) -> str:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def imports(path: Path, *, everywhere: bool) -> set[str]:
    """Modules that a file imports: at its top level, or everywhere in it."""
    tree = ast.parse(path.read_text("utf-8"))
    nodes = ast.walk(tree) if everywhere else iter(tree.body)
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "trackbed":
            found |= {f"trackbed.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def test_platform_is_a_source_root_and_no_package() -> None:
    assert not (ROOT / "platform" / "__init__.py").exists()


SHOW = "import platform; print(platform.__file__, platform.system())"


@pytest.mark.parametrize(
    "command",
    [
        ("-c", SHOW),
        ("-m", "pytest", "--version"),
        (
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            "1",
            "--no-python",
            sys.executable,
            "-c",
            SHOW,
        ),
    ],
    ids=["python -c", "python -m pytest", "torchrun"],
)
def test_platform_does_not_shadow_the_standard_library(command: tuple[str, ...]) -> None:
    printed = run(sys.executable, *command)
    assert str(ROOT / "platform") not in printed


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    code = f"import sys, trackbed.cli; print(sorted({{n.split('.')[0] for n in sys.modules}} & {HEAVY!r}))"
    assert run(sys.executable, "-c", code).strip() == "[]"
    assert min(_cpu_seconds(sys.executable, "-m", "trackbed", "--help") for _ in range(3)) < 0.5


def _cpu_seconds(*command: str) -> float:
    """Processor time of a command: unlike the clock on the wall it does not count what else the machine does."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run(*command)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.parametrize("room", sorted(ALLOWED))
def test_dependencies_have_one_direction(room: str) -> None:
    for path in (PACKAGE / room).rglob("*.py"):
        rooms = {name.split(".")[1] for name in imports(path, everywhere=True) if name.startswith("trackbed.")}
        assert rooms <= ALLOWED[room], path


def test_submit_never_imports_training_or_torch() -> None:
    for path in (PACKAGE / "submit").rglob("*.py"):
        names = imports(path, everywhere=True)
        assert not {name.split(".")[0] for name in names} & HEAVY, path
        assert not [name for name in names if name.startswith("trackbed.train")], path


@pytest.mark.parametrize("room", ["cli", "submit", "release", "validate"])
def test_rooms_of_the_submitter_load_nothing_heavy(room: str) -> None:
    for path in (PACKAGE / room).rglob("*.py"):
        assert not {name.split(".")[0] for name in imports(path, everywhere=False)} & HEAVY, path


def test_only_the_command_line_prints_or_exits() -> None:
    child_protocols = {"runner.py", "probe.py", "comm.py", "pydocs.py"}
    for path in PACKAGE.rglob("*.py"):
        if "cli" not in path.parts and path.name not in child_protocols:
            assert not re.search(r"^\s*(print|sys\.exit)\(", path.read_text(), re.MULTILINE), path


def test_rendered_files_agree_with_the_release() -> None:
    assert render(ROOT) == {}


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_lock_files_have_hashes_and_no_address(path: Path) -> None:
    text = path.read_text()
    assert "://" not in text
    assert "--index" not in text
    pins = re.findall(r"^[a-z0-9._-]+==", text, re.MULTILINE)
    assert pins
    assert text.count("--hash=sha256:") >= len(pins)


@pytest.mark.parametrize("release", names())
def test_variants_agree_on_every_version_they_share(release: str) -> None:
    folder = ROOT / "requirements" / release
    pins = [
        dict(re.findall(r"^([a-z0-9._-]+)==([^ +]+)", (folder / name).read_text(), re.MULTILINE))
        for name in ("cpu.lock", "gpu.lock")
    ]
    shared = pins[0].keys() & pins[1].keys()
    assert {name: pins[0][name] for name in shared} == {name: pins[1][name] for name in shared}


def test_only_the_cpu_lock_has_the_cpu_build_of_torch() -> None:
    locks = {name: (ROOT / "requirements" / names()[-1] / f"{name}.lock").read_text() for name in ("cpu", "gpu")}
    assert "+cpu" in locks["cpu"]
    assert "+cpu" not in locks["gpu"]
    assert "nvidia-nccl-cu13==" in locks["gpu"]


def test_files_stay_small() -> None:
    long = {path.name: lines for path in PACKAGE.rglob("*.py") if (lines := len(path.read_text().splitlines())) > 300}
    assert long == {}


def test_readme_names_commands_and_files_that_exist() -> None:
    text = (ROOT / "README.md").read_text()
    targets = (ROOT / "Makefile").read_text()
    for verb in re.findall(r"\bmake ([a-z-]+)", text):
        assert re.search(rf"^{verb}:", targets, re.MULTILINE), verb
    for link in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (ROOT / link).exists(), link


def test_the_command_line_knows_every_set_and_format() -> None:
    """It repeats their names, because to import them takes seconds."""
    from typing import get_args, get_type_hints

    from trackbed.cli import data
    from trackbed.data.config import DataConfig
    from trackbed.data.sets.catalogue import SETS

    assert list(SETS) == data.SETS
    assert list(get_args(get_type_hints(DataConfig)["format"])) == data.FORMATS

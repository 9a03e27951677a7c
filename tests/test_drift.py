"""Versions are read without harm to the reader, and drift names exactly what drifted."""

from __future__ import annotations

import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

import pytest

from trackbed.release import Component, load, parse, probe
from trackbed.release import drift as drift_of
from trackbed.release.probe import Found

RELEASE = """
name = "1"
summary = "for tests"
base_image = "none"
[components.python]
title = "Python"
version = "3.11"
rule = "prefix"
probe = "python"
env = "PYTHON_VERSION"
[components.fine]
title = "Fine"
version = "1.2"
rule = "exact"
probe = "import:fine"
env = "FINE_VERSION"
package = "fine-dist"
[components.system]
title = "System"
version = "0"
rule = "at-least"
probe = "os-release"
image_only = true
[components.only-gpu]
title = "GPU"
version = "9"
rule = "exact"
probe = "metadata:no-such-distribution"
variants = ["gpu"]
[components.tests]
title = "Tests"
version = "9"
rule = "exact"
probe = "metadata:no-such-distribution"
group = "dev"
"""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of modules that a child interpreter can import."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delenv(drift_of.MARK, raising=False)
    sources = {
        "fine": "print('noise on standard output')\n__version__ = '1.2'",
        "silent": "",
        "raises": "raise RuntimeError('two\\nlines')",
        "leaves": "import sys; sys.exit(3)",
        "crashes": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
        "quits": "import os; os._exit(7)",
        "hangs": "import time; time.sleep(600)",
    }
    for name, source in sources.items():
        (tmp_path / f"{name}.py").write_text(source, "utf-8")
    return tmp_path


def component(probe: str, **changes: str) -> Component:
    fields = {"name": "part", "title": "Part", "version": "1.2", "rule": "exact", **changes}
    return Component(probe=probe, **fields)  # type: ignore[arg-type]


def test_a_module_that_fails_is_an_error_record_and_the_rest_are_still_read(modules: Path) -> None:
    found = probe.load(["raises", "crashes", "silent", "leaves", "quits", "nowhere", "fine"])
    assert found["fine"] == Found(version="1.2")
    assert found["silent"] == Found()
    assert found["raises"].error == "RuntimeError: two lines"
    assert found["leaves"].error == "SystemExit: 3"
    assert "SIGSEGV" in found["crashes"].error
    assert "exit code 7" in found["quits"].error
    assert "ModuleNotFoundError" in found["nowhere"].error


def test_a_module_that_hangs_is_cut_off_and_named(modules: Path) -> None:
    started = time.monotonic()
    found = probe.load(["hangs", "fine"], seconds=3)
    assert time.monotonic() - started < 30
    assert found["hangs"].error == "its import did not end within 3 s"
    assert found["fine"].version == "1.2"


def test_modules_are_imported_in_the_order_given_in_one_interpreter(modules: Path) -> None:
    (modules / "second.py").write_text("import sys\n__version__ = str('fine' in sys.modules)", "utf-8")
    assert probe.load(["fine", "second"])["second"].version == "True"
    assert probe.load(["second", "fine"])["second"].version == "False"


@pytest.mark.parametrize(
    ("line", "version"),
    [("metadata:numpy", metadata.version("numpy")), ("python", sys.version.split()[0])],
)
def test_versions_that_need_no_import(line: str, version: str) -> None:
    assert probe.read(component(line), {}) == Found(version=version)


def test_a_command_is_found_beside_the_interpreter_and_its_first_version_is_taken() -> None:
    assert probe.read(component("command:mpirun --version"), {}).version == metadata.version("openmpi")


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("metadata:no-such-distribution", "is not installed"),
        ("command:no-such-program --version", "there is no program"),
        ("command:true", "printed no version"),
        ("import:fine", "was not probed"),
        ("guess:fine", "unknown probe"),
    ],
)
def test_a_version_that_cannot_be_read_says_why(line: str, error: str) -> None:
    found = probe.read(component(line), {})
    assert error in found.error
    assert not found.version


@pytest.mark.parametrize(
    ("found", "declared", "status", "note"),
    [
        (Found(version="1.2"), None, "ok", ""),
        (Found(version="1.2"), {"PART_VERSION": "1.2"}, "ok", ""),
        (Found(version="1.3"), None, "drift", "1.3 is loaded"),
        (Found(version="1.2"), {"PART_VERSION": "1.3"}, "drift", "declares PART_VERSION=1.3"),
        (Found(version="1.2"), {}, "drift", "does not declare PART_VERSION"),
        (Found(error="it hangs"), None, "missing", "it hangs"),
        (Found(), None, "missing", "no version"),
        (Found(version="garbage"), None, "drift", "garbage is loaded"),
    ],
)
def test_three_ways_to_drift(found: Found, declared: dict[str, str] | None, status: str, note: str) -> None:
    row = drift_of.row(component("python", env="PART_VERSION"), found, declared)
    assert (row.status, row.wanted, row.loaded) == (status, "1.2", found.version)
    assert note in row.note


def test_outside_the_image_declarations_and_the_images_own_parts_do_not_count(
    modules: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FINE_VERSION", "0.1")
    monkeypatch.setattr(drift_of, "variant", lambda: "cpu")
    rows = drift_of.compare(parse(RELEASE))
    assert [(row.component, row.status, row.declared) for row in rows] == [("python", "ok", ""), ("fine", "ok", "")]
    assert rows[1].requirement == "fine-dist==1.2"


def test_inside_the_image_they_do(modules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drift_of, "variant", lambda: "gpu")
    monkeypatch.setenv(drift_of.MARK, "1")
    monkeypatch.setenv("PYTHON_VERSION", "3.11")
    monkeypatch.setenv("FINE_VERSION", "0.1")
    rows = {row.component: row for row in drift_of.compare(parse(RELEASE))}
    assert {name: row.status for name, row in rows.items()} == {
        "python": "ok", "fine": "drift", "system": "ok", "only-gpu": "missing",
    }  # fmt: skip
    assert rows["fine"].declared == "0.1"


def test_versions_already_loaded_are_not_loaded_again(modules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drift_of, "variant", lambda: "cpu")
    monkeypatch.setattr(drift_of, "load", lambda names: pytest.fail("loaded again"))
    rows = drift_of.compare(parse(RELEASE), {"fine": Found(version="1.1")})
    assert [row.component for row in rows if row.status == "drift"] == ["fine"]


def test_every_release_has_only_probes_that_can_be_read() -> None:
    kinds = {part.probe.partition(":")[0] for part in load().components.values()}
    assert kinds <= {"import", "metadata", "command", "python", "os-release"}


def test_reading_about_versions_loads_nothing_heavy() -> None:
    code = "import sys, trackbed.release.drift, trackbed.validate.runner, trackbed.validate.catalogue;"
    code += "sys.exit(str({'torch', 'deepspeed', 'nvidia', 'numpy', 'tensorboard', 'mpi4py'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=probe.environment())
    assert done.stderr.strip() == "set()"

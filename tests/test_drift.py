"""Versions are read without harm to the reader, and drift names exactly what drifted."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from conftest import ROOT, Command, environ
from trackbed.cli import main
from trackbed.release import Component, load, names, parse, probe
from trackbed.release import capture as capture_of
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
    for name in (drift_of.MARK, drift_of.NGC_MARK, "TRACKBED_VARIANT"):
        monkeypatch.delenv(name, raising=False)
    sources = {
        "fine": "print('noise on standard output')\n__version__ = '1.2'",
        "silent": "",
        "raises": "raise RuntimeError('two\\nlines')",
        "leaves": "import sys; sys.exit(3)",
        "crashes": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
        "quits": "import os; os._exit(7)",
        "hangs": "import time; time.sleep(600)",
        "values": "triple = (2, 18, 1); number = 92000; none = None\ndef text(): return '12.1'\ndef bad(): 1 / 0",
    }
    for name, source in sources.items():
        (tmp_path / f"{name}.py").write_text(source, "utf-8")
    return tmp_path


def component(probe: str, **changes: Any) -> Component:
    fields: dict[str, Any] = {"name": "part", "title": "Part", "version": "1.2", "rule": "exact", **changes}
    return Component(probe=probe, **fields)


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
        (Found(version="1.2"), {drift_of.MARK: "1"}, "drift", "does not declare PART_VERSION"),
        (Found(version="1.2"), {drift_of.MARK: "1", "PART_VERSION": "1.2+cuda12"}, "ok", ""),
        (Found(version="1.2"), {drift_of.NGC_MARK: "23.06"}, "ok", ""),
        (Found(version="1.2"), {drift_of.NGC_MARK: "23.06", "PART_VERSION": "1.3"}, "drift", "PART_VERSION=1.3"),
        (Found(version="1.2"), {}, "ok", ""),
        (Found(error="it hangs"), None, "missing", "it hangs"),
        (Found(), None, "missing", "no version"),
        (Found(version="garbage"), None, "drift", "garbage is loaded"),
    ],
)
def test_three_ways_to_drift(found: Found, declared: dict[str, str] | None, status: str, note: str) -> None:
    row = drift_of.row(component("python", env="PART_VERSION"), found, declared)
    assert (row.status, row.wanted, row.loaded) == (status, "1.2", found.version)
    assert note in row.note


OPEN = component("python", substitute="1.1", why="1.2 is not public")
VENDOR = component("command:tool", group="vendor", env="PART_VERSION", variants=("gpu",))
DRIVER = component("driver", name="driver", version="580", rule="at-least", variants=("gpu",))
CPU = component("python", rule="prefix")
WHEEL = component("python", package="part")
NO_DRIVER = Found(error="no NVIDIA driver on this machine")


@pytest.mark.parametrize(
    ("part", "found", "declared", "status", "note"),
    [
        (OPEN, Found(version="1.1"), None, "substitute", "1.1 stands in for 1.2: 1.2 is not public"),
        (OPEN, Found(version="1.1+cu121"), None, "substitute", "stands in"),
        (OPEN, Found(version="1.2"), None, "ok", ""),
        (OPEN, Found(version="1.0"), None, "drift", "1.0 is loaded, the release wants 1.2"),
        (replace(OPEN, env="V"), Found(version="1.1"), {"V": "1.1"}, "substitute", "stands in"),
        (replace(OPEN, env="V"), Found(version="1.1"), {"V": "1.0"}, "drift", "declares V=1.0"),
        (VENDOR, Found(error="there is no program tool"), None, "absent", "--build-arg VENDOR=nvidia"),
        (replace(VENDOR, why="never public"), Found(error="there is no program tool"), {}, "absent", "never public"),
        (VENDOR, Found(error="its import killed the interpreter (signal SIGSEGV)"), {}, "missing", "SIGSEGV"),
        (VENDOR, Found(error="there is no program tool"), {"PART_VERSION": "1.2"}, "missing", "no program tool"),
        (VENDOR, Found(version="1.3"), {}, "drift", "1.3 is loaded"),
        (DRIVER, NO_DRIVER, None, "absent", "no NVIDIA driver"),
        (
            replace(OPEN, env="V"),
            Found(version="1.1"),
            {"V": "1.2"},
            "drift",
            "1.1 is loaded, the image declares",
        ),
        (
            replace(OPEN, env="V"),
            Found(version="1.2"),
            {"V": "1.1"},
            "drift",
            "1.2 is loaded, the image declares",
        ),
        (component("python", rule="at-least", env="V"), Found(version="1.3"), {"V": "1.2"}, "ok", ""),
        (component("python", rule="at-least", env="V"), Found(version="1.2"), {"V": "9"}, "drift", "declares V=9"),
        (replace(CPU, cpu_build="+cpu"), Found(version="1.2+cpu"), {"TRACKBED_VARIANT": "cpu"}, "ok", ""),
        (replace(CPU, cpu_build="+cpu"), Found(version="1.2+cu130"), None, "drift", "not the build for cpu"),
        (DRIVER, Found(error="it names no version"), None, "missing", "names no version"),
        (DRIVER, Found(version="579.99"), None, "drift", "579.99 is loaded, the release wants 580 or newer"),
        (DRIVER, Found(version="580.95.05"), None, "ok", ""),
        (
            component("python", status="import-only", why="trains on GPUs only"),
            Found(version="1.2"),
            None,
            "ok",
            "GPUs",
        ),
        (component("python", rule="prefix"), Found(version="2"), None, "drift", "wants 1.2.*"),
        (component("python", version="1.2.9", reads=2), Found(version="1.2"), None, "ok", ""),
    ],
)
def test_what_stands_in_and_what_is_left_out_is_said_and_is_no_drift(
    part: Component,
    found: Found,
    declared: dict[str, str] | None,
    status: str,
    note: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRACKBED_VARIANT", "cpu")
    row = drift_of.row(part, found, declared)
    assert (row.status, row.bad) == (status, status in ("drift", "missing"))
    assert note in row.note
    assert bool(row.remedy) == row.bad


@pytest.mark.parametrize(
    ("part", "found", "marks", "remedy"),
    [
        (WHEEL, Found(version="1"), {}, "pip install 'part==1.2', or make setup"),
        (WHEEL, Found(error="cannot declare"), {}, "pip install 'part==1.2', or make setup"),
        (WHEEL, Found(version="1"), {drift_of.MARK: "1"}, "or start a fresh container"),
        (WHEEL, Found(version="1"), {drift_of.NGC_MARK: "1"}, "or start a fresh container"),
        (replace(WHEEL, env="V"), Found(version="1.2"), {drift_of.MARK: "1"}, "build the image again"),
        (component("python"), Found(version="1"), {drift_of.MARK: "1"}, "build the image again"),
        (component("python"), Found(version="1"), {}, "make setup, or work in the image"),
        (DRIVER, Found(version="470.1"), {drift_of.MARK: "1"}, "driver 580 or newer on this host"),
    ],
)
def test_a_remedy_fits_where_it_is_read(
    part: Component, found: Found, marks: dict[str, str], remedy: str, modules: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in marks.items():
        monkeypatch.setenv(name, value)
    assert remedy in drift_of.row(part, found, drift_of.declarations()).remedy


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


@pytest.mark.parametrize("name", names())
def test_every_release_has_only_probes_that_can_be_read(name: str) -> None:
    kinds = {part.probe.partition(":")[0]: part for part in load(name).components.values()}
    for part in kinds.values():
        assert "unknown probe" not in probe.read(part, {}).error, part.name


def test_a_value_or_a_function_of_a_module_is_a_version(modules: Path) -> None:
    wanted = {
        "triple": Found(version="2.18.1"),
        "number": Found(version="9.20.0"),
        "none": Found(),
        "text": Found(version="12.1"),
        "bad": Found(error="ZeroDivisionError: division by zero"),
        "absent": Found(error="AttributeError: module 'values' has no attribute 'absent'"),
    }
    assert probe.load([f"call:values:{name}" for name in wanted]) == {
        f"call:values:{name}": found for name, found in wanted.items()
    }


@pytest.mark.parametrize(
    ("number", "version"),
    [(92000, "9.20.0"), (8902, "8.9.2"), (8600, "8.6.0"), (8601, "8.6.1"), (101303, "10.13.3"), (110000, "11.0.0")],
)
def test_a_number_of_nvidias_libraries_is_a_version(number: int, version: str) -> None:
    assert probe._from_integer(number) == version


def test_a_library_that_is_missing_or_another_one_says_so(modules: Path) -> None:
    targets = ["library:libnowhere.so.9:version", "library:libc.so.6:no_such_function", "library:garbage", "fine"]
    found = probe.load(targets)
    assert "libnowhere.so.9: cannot open shared object file" in found[targets[0]].error
    assert "no_such_function" in found[targets[1]].error
    assert found[targets[2]].error
    assert found["fine"].version == "1.2"


class Library:
    """A fixture in the place of NVIDIA's libraries."""

    @staticmethod
    def getInferLibVersion() -> int:
        return 8601

    @staticmethod
    def gdr_runtime_get_version(major: Any, minor: Any) -> None:
        major._obj.value, minor._obj.value = 2, 3


def test_a_library_is_asked_for_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda file: Library)
    assert probe._library("library:libnvinfer.so.8:getInferLibVersion") == "8.6.1"
    assert probe._library("library:libgdrapi.so.2:gdr_runtime_get_version") == "2.3"


KERNEL = "NVRM version: NVIDIA UNIX {}  {}  Fri Jan 10 20:00:00 UTC 2025\nGCC version:  gcc version 12.2.0 (Debian)\n"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (KERNEL.format("x86_64 Kernel Module", "580.95.05"), Found(version="580.95.05")),
        (KERNEL.format("Open Kernel Module for x86_64", "470.10"), Found(version="470.10")),
        (KERNEL.format("Kernel Module", "garbage"), Found(error="names no version")),
        ("", Found(error="names no version")),
        (None, Found(error="no NVIDIA driver on this machine")),
    ],
    ids=["proprietary", "open", "garbage", "empty", "missing"],
)
def test_the_driver_is_the_kernel_modules_version(
    text: str | None, found: Found, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "DRIVER", tmp_path / "version")
    if text is not None:
        (tmp_path / "version").write_text(text, "utf-8")
    read = probe.read(component("driver"), {})
    assert read.version == found.version
    assert read.error.endswith(found.error)


def test_what_nothing_can_load_is_what_its_variable_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PART_VERSION", "12.1.3.1")
    assert probe.read(component("declared:PART_VERSION"), {}) == Found(version="12.1.3.1")
    monkeypatch.delenv("PART_VERSION")
    assert probe.read(component("declared:PART_VERSION"), {}) == Found(error="PART_VERSION is not set")


def test_which_release_and_variant_an_image_is(modules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (drift_of.current(), drift_of.declarations()) == (None, None)
    monkeypatch.setenv(drift_of.NGC_MARK, "23.06")
    assert (drift_of.current(), drift_of.variant(), drift_of.declarations()) == ("23.06", "gpu", os.environ)
    monkeypatch.setenv(drift_of.NGC_MARK, "19.01")
    assert drift_of.current() == "19.01"  # and loading it says that there is none: never another one in its place
    monkeypatch.setenv(drift_of.MARK, "26.11")
    monkeypatch.setenv("TRACKBED_VARIANT", "cpu")
    assert (drift_of.current(), drift_of.variant()) == ("26.11", "cpu")


@pytest.fixture
def own(modules: Path) -> tuple[Path, dict[str, str]]:
    """A release file for the fake modules, and the environment in which a command finds them."""
    (modules / "own.toml").write_text(RELEASE, "utf-8")
    return modules / "own.toml", {"PYTHONPATH": f"{ROOT / 'platform'}:{modules}", "TRACKBED_VARIANT": "cpu"}


def test_check_is_exit_zero_without_drift_and_two_with_it_and_says_how_to_mend(
    own: tuple[Path, dict[str, str]], trackbed: Command
) -> None:
    file, environment = own
    good = trackbed("release", "check", "--release", file, **environment)
    assert (good.returncode, good.stderr) == (0, "")
    assert "2 components, no drift" in good.stdout
    (file.parent / "fine.py").write_text("__version__ = '1.3'", "utf-8")
    bad = trackbed("release", "check", "--release", file, **environment)
    mend = "  mend:   pip install 'fine-dist==1.2', or make setup\n"
    assert (bad.returncode, bad.stderr) == (2, f"error: fine: 1.3 is loaded, the release wants 1.2\n{mend}")
    assert "2 components, 1 drift" in bad.stdout


def test_check_as_json_is_still_exit_two(monkeypatch: pytest.MonkeyPatch) -> None:
    row = drift_of.row(component("python", package="part"), Found(version="1.3"), None)
    monkeypatch.setattr(drift_of, "compare", lambda release: [row])
    done = CliRunner().invoke(main, ["release", "check", "--release", "23.06", "--json"])
    told = json.loads(done.stdout)
    assert (done.exit_code, told["release"]) == (2, "23.06")
    assert (told["components"][0]["status"], told["components"][0]["loaded"]) == ("drift", "1.3")
    assert "error: part: 1.3 is loaded, the release wants 1.2" in done.stderr


# What NVIDIA's image of June 2023 says of itself, beside whatever is really installed where the tests run.
NGC = {
    "NVIDIA_PYTORCH_VERSION": "23.06", "PYTORCH_VERSION": "2.1.0a0+4136153", "TRT_VERSION": "8.6.1.6+cuda12.0.1.011",
    "CUBLAS_VERSION": "12.1.3.1", "HPCX_VERSION": "2.15", "OPENMPI_VERSION": "4.1.4", "CUDA_VERSION": "12.1.1.009",
    "CUDNN_VERSION": "8.9.2.26", "DALI_VERSION": "1.26.0", "NUMPY_VERSION": "1.22.2",
    "NSIGHT_COMPUTE_VERSION": "2023.1.1.4",
}  # fmt: skip


def command(folder: Path, *words: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
    """`trackbed release ...` as in that image, also where the tests themselves run in one of ours."""
    environment = environ(folder, **{**NGC, **more})
    for name in (drift_of.MARK, "TRACKBED_VARIANT"):
        environment.pop(name, None)
    line = [sys.executable, "-m", "trackbed", "release", *map(str, words)]
    return subprocess.run(line, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("captured")
    done = command(folder, "capture", "--output", folder / "image.toml")
    assert (done.returncode, done.stderr) == (0, "")
    return folder / "image.toml"


def test_what_was_captured_is_a_release_of_facts(captured: Path) -> None:
    release = load(str(captured))
    parts = release.components
    assert release.name == "23.06"
    assert {part.confidence for part in parts.values()} == {"captured"}
    assert (parts["tensorrt"].version, parts["tensorrt"].probe) == ("8.6.1.6", "declared:TRT_VERSION")
    assert (parts["cublas"].version, parts["hpcx"].version) == ("12.1.3.1", "2.15")
    assert (parts["openmpi"].version, parts["openmpi"].declared) == (metadata.version("openmpi"), "4.1.4")
    assert (parts["numpy"].version, parts["numpy"].probe) == (metadata.version("numpy"), "import:numpy")
    assert parts["numpy-declared"].version == "1.22.2"
    assert not {"driver", "gdrcopy", "nvidia-pytorch"} & parts.keys()


def test_a_captured_image_agrees_with_itself(captured: Path) -> None:
    done = command(captured.parent, "check", "--release", captured)
    assert (done.returncode, done.stderr) == (0, "")
    assert "no drift" in done.stdout


@pytest.mark.parametrize(
    ("variable", "said", "component"),
    [("CUBLAS_VERSION", "12.2.1.16", "cublas"), ("OPENMPI_VERSION", "4.1.5", "openmpi"), ("HPCX_VERSION", "", "hpcx")],
)
def test_one_changed_variable_is_exactly_one_drift(captured: Path, variable: str, said: str, component: str) -> None:
    done = command(captured.parent, "check", "--release", captured, **{variable: said})
    assert done.returncode == 2, done.stdout
    assert done.stderr.startswith(f"error: {component}: ")
    assert done.stderr.count("error: ") == done.stderr.count("  mend: ") == 1
    assert (said or variable) in done.stderr


@pytest.mark.parametrize(
    ("changes", "found", "said", "version", "declared"),
    [
        ({}, "2.13.0+cpu", "2.13.0", "2.13.0+cpu", "2.13.0"),
        ({}, "2.1.0a0+4136153", "2.1.0a0+4136153", "2.1.0a0+4136153", ""),
        ({"reads": 3}, "8.6.1", "8.6.1.6+cuda12.0", "8.6.1.6", ""),
        ({"reads": 3}, "8.6.1", "8.6.0.4", "8.6.1", "8.6.0.4"),
        ({}, "5.0.11", "4.1.4", "5.0.11", "4.1.4"),
        ({}, "1.2", "", "1.2", ""),
    ],
)
def test_a_captured_part_accepts_what_it_was_captured_from(
    changes: dict[str, Any], found: str, said: str, version: str, declared: str
) -> None:
    part = component("python", env="PART_VERSION", **changes)
    table = capture_of._table(part, Found(version=found), {"PART_VERSION": said})
    assert (table["version"], table.get("declared", "")) == (version, declared)
    row = drift_of.row(Component(name="part", **table), Found(version=found), {"PART_VERSION": said})
    assert row.status == "ok"


def test_the_driver_of_the_host_is_no_part_of_a_captured_image(
    modules: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "DRIVER", tmp_path / "version")
    (tmp_path / "version").write_text(KERNEL.format("x86_64 Kernel Module", "580.95.05"), "utf-8")
    like = replace(parse(RELEASE), components={"driver": DRIVER, "part": component("python")})
    captured = parse(capture_of.capture(like, "own", "gpu"))
    assert captured.components["part"].version == sys.version.split()[0]
    assert "driver" not in captured.components


def test_a_capture_never_overwrites_and_says_where_it_cannot_write(
    own: tuple[Path, dict[str, str]], trackbed: Command
) -> None:
    file, environment = own
    for output, said in ((file, "exists already"), (file.parent / "no" / "folder.toml", "No such file or directory")):
        done = trackbed("release", "capture", "--like", file, "--output", output, **environment)
        assert done.returncode == 2
        assert done.stderr.startswith(f"error: {output}: ")
        assert said in done.stderr
        assert "  mend: " in done.stderr
    assert file.read_text("utf-8") == RELEASE
    shown = trackbed("release", "capture", "--like", file, **environment)
    assert parse(shown.stdout).components["fine"].version == "1.2"


def test_reading_about_versions_loads_nothing_heavy() -> None:
    code = "import sys, trackbed.release.drift, trackbed.validate.runner, trackbed.validate.catalogue;"
    code += "sys.exit(str({'torch', 'deepspeed', 'nvidia', 'numpy', 'tensorboard', 'mpi4py'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=probe.environment())
    assert done.stderr.strip() == "set()"

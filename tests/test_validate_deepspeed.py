"""DeepSpeed's operations: compilers that are not there, folders that cannot be loaded from, locks that nobody holds."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from trackbed.errors import TrackbedError
from trackbed.validate import Context
from trackbed.validate.stack import deepspeed, deepspeed_ops

HERE = Context(output=Path())


@pytest.fixture(autouse=True)
def _extensions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An extensions folder of its own, and nothing that asks for a compiler."""
    for name in ("CXX", "TRACKBED_COMPILER", deepspeed.CONFIG):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "ext"))


def compiler(**expect: Any) -> Any:
    return deepspeed.judge_compiler(deepspeed.measure_compiler(Context(output=Path(), expect=expect)))


needs_compiler = pytest.mark.skipif(not shutil.which("c++"), reason="this machine has no C++ compiler")


@needs_compiler
def test_the_smallest_extension_compiles_here_and_leaves_nothing(tmp_path: Path) -> None:
    assert compiler(compiler=True).status == "pass"
    assert list(tmp_path.iterdir()) == []


def test_a_compiler_that_is_asked_for_and_not_there_fails_and_unsetting_it_mends_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CXX", "no-such-c++")
    outcome = compiler()
    assert (outcome.status, outcome.observed) == ("fail", "there is no compiler no-such-c++")
    assert "unset CXX" in outcome.remedy
    monkeypatch.delenv("CXX")
    assert compiler().status in ("pass", "skip")


def test_without_a_compiler_nothing_is_wrong_until_a_job_needs_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deepspeed, "program_path", lambda: str(tmp_path))
    assert compiler().status == "skip"
    assert compiler(compiler=True).status == "fail"
    monkeypatch.setenv("TRACKBED_COMPILER", "1")
    assert compiler().status == "fail"


@pytest.mark.parametrize(
    ("script", "observed", "remedy"),
    [
        ("echo 'x.cpp:1:10: fatal error: Python.h: No such file' >&2; exit 1", "fatal error: Python.h", "python3-dev"),
        ("echo '/usr/bin/ld: cannot find -lstdc++: No such file' >&2; exit 1", "cannot find -lstdc++", "g++"),
        ("exit 1", "it said nothing", "g++"),
    ],
)  # fmt: skip
def test_the_compilers_first_error_line_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, observed: str, remedy: str
) -> None:
    program = tmp_path / "broken-c++"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("CXX", str(program))
    outcome = compiler()
    assert outcome.status == "fail"
    assert observed in outcome.observed
    assert remedy in outcome.remedy


@needs_compiler
def test_python_without_headers_is_seen_for_real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deepspeed.sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    outcome = compiler(compiler=True)
    assert outcome.status == "fail"
    assert "Python.h: No such file or directory" in outcome.observed


# --- locks ---


def lock(folder: Path, age: float) -> Path:
    folder.mkdir(parents=True)
    path = folder / "lock"
    path.touch()
    os.utime(path, (time.time() - age,) * 2)
    return path


def locks(**more: Any) -> Any:
    return deepspeed.judge_locks(deepspeed.measure_locks(HERE, **more))


@pytest.mark.parametrize("place", ["cpu_adam", "py311_cpu/cpu_adam"])
def test_a_stale_lock_fails_and_its_remedy_mends_it(tmp_path: Path, place: str) -> None:
    assert locks().status == "pass"
    path = lock(tmp_path / "ext" / place, 700)
    outcome = locks()
    assert outcome.status == "fail"
    assert str(path) in outcome.observed
    subprocess.run(outcome.remedy.split(), check=True)
    assert locks().status == "pass"


def test_a_young_lock_and_one_in_a_folder_that_still_changes_pass(tmp_path: Path) -> None:
    lock(tmp_path / "ext" / "young", 500)
    lock(tmp_path / "ext" / "busy", 7000)
    (tmp_path / "ext" / "busy" / "cpu_adam.o").touch()
    assert locks().status == "pass"
    assert locks(now=time.time() + 10_000).status == "fail"
    assert locks(now=0.0).status == "pass"


@pytest.mark.parametrize("way", ["works there", "names it"])
def test_a_lock_whose_builder_lives_passes(tmp_path: Path, way: str) -> None:
    folder = tmp_path / "ext" / "cpu_adam"
    lock(folder, 7000)
    command = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()", f"{folder}/cpu_adam.o"]
    words, place = (command[:3], folder) if way == "works there" else (command, tmp_path)
    with subprocess.Popen(words, cwd=place, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as builder:
        assert builder.stdout
        builder.stdout.readline()
        found = deepspeed.measure_locks(HERE)
        assert [each["builder"] for each in found] == [builder.pid]
        assert deepspeed.judge_locks(found).status == "pass"
        builder.kill()
    assert locks().status == "fail"


# --- what was removed ---


def removed(path: Path) -> Any:
    return deepspeed.judge_removed(deepspeed.measure_removed(Context(output=Path(), expect={"deepspeed": str(path)})))


def test_a_configuration_and_a_script_that_use_what_is_gone_fail(tmp_path: Path) -> None:
    config, script = tmp_path / "ds.json", tmp_path / "run.sh"
    config.write_text(json.dumps({"train_batch_size": 8, "elasticity": {"enabled": True}}))
    script.write_text("deepspeed --elastic_training --num_gpus=8 train.py")
    assert (removed(config).status, "elasticity" in removed(config).observed) == ("fail", True)
    assert (removed(script).status, "--elastic_training" in removed(script).observed) == ("fail", True)
    config.write_text(json.dumps({"train_batch_size": 8}))
    script.write_text("torchrun --nproc-per-node=8 train.py")
    assert {removed(config).status, removed(script).status} == {"pass"}


def test_a_deepspeed_that_still_has_it_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deepspeed" / "elasticity").mkdir(parents=True)
    (tmp_path / "deepspeed" / "__init__.py").touch()
    (tmp_path / "ds.json").write_text('{"elasticity": {}}')
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "deepspeed", raising=False)
    assert removed(tmp_path / "ds.json").status == "pass"


def test_a_configuration_that_is_not_there_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(TrackbedError, match="cannot be read"):
        removed(tmp_path / "none.json")


# --- operations ---

# Written after ds_report of DeepSpeed 0.19.8 (colours included), with an operation built that does not fit.
REPORT = (
    "op name ................ installed .. compatible\n"
    "cpu_adam ............... \x1b[93m[NO]\x1b[0m ....... \x1b[92m[OKAY]\x1b[0m\n"
    "deepspeed_not_implemented  \x1b[93m[NO]\x1b[0m ....... \x1b[92m[OKAY]\x1b[0m\n"
    "fused_adam ............. \x1b[92m[YES]\x1b[0m ...... \x1b[93m[NO]\x1b[0m\n"
)


def test_ds_reports_table_is_read_with_its_colours() -> None:
    table = deepspeed_ops.operators(REPORT)
    assert table["cpu_adam"] == {"installed": False, "compatible": True}
    assert table["fused_adam"] == {"installed": True, "compatible": False}
    assert len(table) == 3
    assert deepspeed_ops.judge_operators({"operators": table, "error": ""}).status == "fail"


def test_ds_report_itself_is_read() -> None:
    found = deepspeed_ops.measure_operators(HERE)
    assert "cpu_adam" in found["operators"]
    assert deepspeed_ops.judge_operators(found).status == "pass"


def test_cpu_adam_without_a_compiler_is_skipped_or_fails_when_a_job_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deepspeed_ops, "program_path", lambda: str(tmp_path))
    monkeypatch.setattr(deepspeed_ops, "_prebuilt", lambda: False)
    assert deepspeed_ops.judge_cpu_adam(deepspeed_ops.measure_cpu_adam(HERE)).status == "skip"
    needed = Context(output=Path(), expect={"compiler": True})
    assert deepspeed_ops.judge_cpu_adam(deepspeed_ops.measure_cpu_adam(needed)).status == "fail"


def test_a_build_that_fails_is_told_with_the_compilers_words_and_leaves_the_environment_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> float:
        assert os.environ["TORCH_EXTENSIONS_DIR"] != before
        raise RuntimeError("Error building extension 'cpu_adam': [1/3] c++ ...\nx.cpp:1:1: fatal error: omp.h: gone\n")

    before = os.environ["TORCH_EXTENSIONS_DIR"]
    monkeypatch.setattr(deepspeed_ops, "_difference", fail)
    monkeypatch.setattr(deepspeed_ops, "_prebuilt", lambda: True)
    outcome = deepspeed_ops.judge_cpu_adam(deepspeed_ops.measure_cpu_adam(HERE))
    assert outcome.status == "fail"
    assert outcome.observed == "fatal error: omp.h: gone"
    assert os.environ["TORCH_EXTENSIONS_DIR"] == before


@needs_compiler
@pytest.mark.skipif("TRACKBED_TEST_DEEP" not in os.environ, reason="compiles for two minutes: set TRACKBED_TEST_DEEP=1")
def test_cpu_adam_is_compiled_and_agrees_with_torch() -> None:
    outcome = deepspeed_ops.judge_cpu_adam(deepspeed_ops.measure_cpu_adam(HERE))
    assert outcome.status == "pass", outcome

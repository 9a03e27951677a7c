"""Expectation files: what a node is read as, what a file may say, learning one, and holding a node against it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import psutil
import pytest

from trackbed.errors import ValidationError
from trackbed.validate import GIB, Context
from trackbed.validate.hardware import nvml
from trackbed.validate.site import expect, expectations, learn

GOOD = """
schema_version = 1
[cpu]
count = 64
[gpu]
count = 8
model = "NVIDIA H100 80GB HBM3"
[rdma]
rates_gbit_s = [400, 400.0]
[[mounts]]
path = "/scratch"
[[mounts]]
path = "/home"
minimum_free_gib = 10
"""


def port(root: Path, device: str, state: str, rate: str) -> None:
    """A port as /sys/class/infiniband shows it, from a ConnectX-7 under Linux 6.1 (device names are changed)."""
    folder = root / "sys/class/infiniband" / device / "ports/1"
    folder.mkdir(parents=True)
    (folder / "state").write_text(state + "\n")
    (folder / "rate").write_text(rate + "\n")


@pytest.fixture
def fabric(tmp_path: Path) -> Path:
    port(tmp_path, "mlx5_0", "4: ACTIVE", "400 Gb/sec (4X NDR)")
    port(tmp_path, "mlx5_1", "1: DOWN", "10 Gb/sec (4X SDR)")
    port(tmp_path, "mlx5_2", "4: ACTIVE", "2.5 Gb/sec (1X SDR)")
    port(tmp_path, "mlx5_3", "4: ACTIVE", "")
    return tmp_path


# --- reading a node ---


def test_rdma_ports_are_active_with_a_rate_or_not_there(fabric: Path) -> None:
    found = expect.read_rdma(fabric)
    assert found["rates"] == {"mlx5_0/1": 400.0, "mlx5_2/1": 2.5}
    assert found["down"] == {"mlx5_1/1": "1: DOWN", "mlx5_3/1": "4: ACTIVE"}
    assert expect.read_rdma(fabric / "none") == {"rates": {}, "down": {}}


def test_mounts_are_read_with_blanks_in_their_names_and_the_last_one_on_top(tmp_path: Path) -> None:
    lines = [
        "1 0 8:1 / / rw - ext4 /dev/sda1 rw",
        r"2 1 0:5 / /mnt/my\040data rw shared:1 - nfs4 server:/x rw",
        "3 1 0:6 / /scratch rw - xfs /dev/sdb rw",
        "4 1 0:7 / /scratch rw - lustre 10.0.0.1@o2ib:/fs rw",
        "garbage",
    ]
    path = tmp_path / "proc/self/mountinfo"
    path.parent.mkdir(parents=True)
    path.write_text("\n".join(lines))
    assert expect.mounts(tmp_path) == {"/": "ext4", "/mnt/my data": "nfs4", "/scratch": "lustre"}
    assert expect.read_mounts(["/", "/nowhere"], tmp_path)["/nowhere"] is None
    assert expect.mounts(tmp_path / "none") == {}
    assert expect.read_mounts(["/scratch/"], tmp_path)["/scratch/"]["file_system"] == "lustre"


def test_this_machine_is_read_as_it_is() -> None:
    assert expect.read_cpus() == {"count": os.cpu_count()}
    assert expect.read_memory()["gib"] * GIB == psutil.virtual_memory().total
    assert expect.read_mounts(["/"])["/"]["free_gib"] > 0
    assert expect.read_shared_memory(Path("/nowhere")) == {"gib": None}


@pytest.mark.parametrize(
    ("seen", "found"),
    [
        ({"absent": "no driver"}, {"count": 0, "models": {}, "why": "no driver"}),
        ({"late": 10.0}, {"count": 0, "models": {}, "why": "NVML does not answer"}),
        ({"error": "Driver mismatch", "code": 18}, {"count": 0, "models": {}, "why": "Driver mismatch"}),
        ({"gpus": [{"name": "A"}, {"name": "B"}, {"name": "A"}]}, {"count": 3, "models": {"A": 2, "B": 1}, "why": ""}),
    ],
)  # fmt: skip
def test_gpus_are_those_that_the_driver_answers_for(
    seen: dict[str, Any], found: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml, "snapshot", lambda root: seen)
    assert expect.read_gpus() == found


def test_nothing_is_read_where_nothing_is_expected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expect, "READERS", {})
    for file, given in ((False, {}), (True, {"cpu": {"count": 1}})):
        measured = expect.measure(Context(output=tmp_path, expect=given), "memory")
        assert measured == {"file": file, "wanted": None, "found": None}


# --- files ---


def written(folder: Path, text: str) -> Path:
    path = folder / "site.toml"
    path.write_text(text, "utf-8")
    return path


def test_a_good_file_is_read_without_its_version(tmp_path: Path) -> None:
    wanted = expectations.read(written(tmp_path, GOOD))
    assert set(wanted) == {"cpu", "gpu", "rdma", "mounts"}
    assert [mount["path"] for mount in wanted["mounts"]] == ["/scratch", "/home"]


def test_all_that_a_check_asks_of_a_checkpoint_may_be_said(tmp_path: Path) -> None:
    said = {"bytes": 4_000_000_000, "keep": 2, "every_seconds": 600}
    lines = "".join(f"{name} = {value}\n" for name, value in said.items())
    assert expectations.read(written(tmp_path, f"schema_version = 1\n[checkpoint]\n{lines}")) == {"checkpoint": said}


def problems(path: Path) -> list[str]:
    with pytest.raises(ValidationError) as refused:
        expectations.read(path)
    assert all(problem.remedy for problem in refused.value.problems)
    return [str(problem) for problem in refused.value.problems]


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ("count = 64", "count 64", 4, "is no TOML"),
        ("[cpu]", "[cpus]", 3, "did you mean `cpu`?"),
        ("[cpu]", "[zzz]", 3, "one of cpu, memory"),
        ("model =", "modle =", 7, "did you mean `model`?"),
        ("count = 8", "count = -8", 6, "`gpu.count` is -8"),
        ("count = 8", "count = 8.0", 6, "a whole number"),
        ("count = 8", "count = true", 6, "`gpu.count` is True"),
        ("count = 8", "", 5, "`gpu` has no `count`"),
        ('"NVIDIA H100 80GB HBM3"', '""', 7, "text in quotes"),
        ("[400, 400.0]", '[400, "fast"]', 9, "a list of numbers"),
        ("[400, 400.0]", "400", 9, "a list of numbers"),
        ("minimum_free_gib = 10", "minimum_free_gib = inf", 14, "`mounts.minimum_free_gib` is inf"),
        ('path = "/home"', "", 12, "`mounts` has no `path`"),
        ("[cpu]\ncount = 64", "cpu = 64", 3, "[cpu], a table"),
        ("schema_version = 1", "schema_version = 2", 2, "schema_version is 2"),
    ],
)
def test_a_broken_file_names_the_line_and_what_is_wanted(
    tmp_path: Path, old: str, new: str, line: int, says: str
) -> None:
    path = written(tmp_path, GOOD.replace(old, new, 1))
    (problem,) = problems(path)
    assert problem.startswith(f"{path}:{line}: "), problem
    assert says in problem


def test_a_table_of_mounts_that_is_no_list_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, 'schema_version = 1\n[mounts]\npath = "/x"\n')
    assert "[[mounts]], one or more tables" in problems(path)[0]


def test_every_mistake_is_named_at_once(tmp_path: Path) -> None:
    path = written(tmp_path, "[cpu]\ncuont = 1\n")
    assert len(problems(path)) == 3  # no version, no count, an unknown key


def test_files_that_expect_nothing_or_cannot_be_read(tmp_path: Path) -> None:
    assert "nothing is expected" in problems(written(tmp_path, "schema_version = 1\n"))[0]
    (tmp_path / "site.toml").write_bytes(b"\xff\xfe")
    assert "is not UTF-8 at byte 0" in problems(tmp_path / "site.toml")[0]
    assert "No such file" in problems(tmp_path / "none.toml")[0]


# --- learning ---


def test_what_is_learned_is_a_file_that_this_machine_meets(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    learn.write(path, learn.to_toml(learn.learn(tmp_path), "node001", "2026-11-30T10:00:00Z"))
    wanted = expectations.read(path)
    assert {"cpu", "memory", "mounts"} <= set(wanted)
    context = Context(output=tmp_path, expect=wanted)
    outcomes = {check.id: check.judge(check.measure(context)) for check in expect.CHECKS}
    assert {outcome.status for outcome in outcomes.values()} == {"pass", "skip"}
    assert outcomes["expect.mounts"].status == outcomes["expect.cpus"].status == "pass"


def test_hardware_is_learned_where_there_is_some(fabric: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version = fabric / "proc/driver/nvidia/version"
    version.parent.mkdir(parents=True)
    # The first line of that file, from a data-centre driver with open kernel modules.
    version.write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (root@host)\n"
    )
    monkeypatch.setattr(nvml, "snapshot", lambda root: {"gpus": [{"name": "NVIDIA H100"}] * 8})
    learned = learn.learn(fabric, fabric)
    assert learned["gpu"] == {"count": 8, "model": "NVIDIA H100"}
    assert learned["driver"] == {"version": "580.65.06"}
    assert learned["rdma"] == {"rates_gbit_s": [400.0, 2.5]}
    assert "mounts" not in learned  # the recorded tree has none
    text = learn.to_toml(learned, "node001", "now")
    (fabric / "site.toml").write_text(text)
    assert expectations.read(fabric / "site.toml")["rdma"] == learned["rdma"]


def test_mixed_models_are_counted_and_not_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "snapshot", lambda root: {"gpus": [{"name": "A"}, {"name": "B"}]})
    assert learn.learn(tmp_path, tmp_path)["gpu"] == {"count": 2}


def test_a_file_that_is_there_is_not_replaced(tmp_path: Path) -> None:
    path = written(tmp_path, "mine")
    with pytest.raises(ValidationError, match="exists already"):
        learn.write(path, "yours")
    assert path.read_text() == "mine"
    with pytest.raises(ValidationError, match="cannot be written"):
        learn.write(tmp_path / "no" / "site.toml", "text")

"""Every rule with good, bad, garbage and missing input; the real checks."""

from __future__ import annotations

import importlib
import os
import resource
from math import inf
from pathlib import Path
from typing import Any

import pytest

from trackbed import folders
from trackbed.validate import GIB, MIB, Context, Result, result, runner
from trackbed.validate.catalogue import CHECKS
from trackbed.validate.data import dali
from trackbed.validate.machine import cgroup, host, storage
from trackbed.validate.machine.storage import Commit
from trackbed.validate.network import comm
from trackbed.validate.stack import versions
from validate_rules import RULES as FIRST
from validate_rules import alive, check, cpus, drift, row

# Each family may keep its table in a file of its own, tests/rules_FAMILY.py.
TABLES = sorted(path.stem for path in Path(__file__).parent.glob("rules_*.py"))
RULES = [*FIRST, *(rule for table in TABLES for rule in importlib.import_module(table).RULES)]


@pytest.mark.parametrize(("name", "measured", "status", "says"), RULES)
def test_rules(name: str, measured: Any, status: str, says: str) -> None:
    outcome = check(name).judge(measured)
    assert outcome.status == status, outcome
    assert says in outcome.observed
    assert outcome.status == "pass" or outcome.remedy
    assert result(check(name), outcome, host="h", source="fixture").source == "fixture"


def test_every_check_has_a_rule_tested_with_good_bad_and_unreadable_input() -> None:
    seen = {(name, status) for name, _, status, _ in RULES}
    for name in {entry.id for entry in CHECKS}:
        assert {(name, "pass"), (name, "error")} <= seen
        assert {(name, "fail"), (name, "warn")} & seen


@pytest.mark.parametrize(
    ("version", "requirement", "met"),
    [
        ("7.36.2", "<8.0.0,>=6.31.1", True),
        ("6.31.1", ">=6.31.1", True),
        ("8", "<8.0.0", False),
        ("8.0", "<=8", True),
        ("8.1", "<=8", False),
        ("5.9", ">5.9", False),
        ("5.9.1", ">5.9", True),
        ("5.29.0", "!=5.29", False),
        ("5.29.0", "==5.29", True),
        ("10.0", ">9", True),
        ("", ">1", False),
        ("7.0rc1", ">1", False),
        ("7.0", "", False),
    ],
)
def test_requirements(version: str, requirement: str, met: bool) -> None:
    assert versions.meets(version, requirement) is met


def test_remedies_say_the_number_or_the_package_to_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRACKBED_RELEASE", raising=False)
    assert "OMP_NUM_THREADS=3" in host.judge_cpus(cpus(reported=8, affinity=8, cpuset=8, quota=6.5)).remedy
    assert "ulimit -n 524288" in host.judge_open_files({"soft": 1024, "hard": 524288}).remedy
    assert "uv pip install part==1.0" in versions.judge_drift(drift(row("drift"))).remedy
    assert str(os.getuid()) in storage.judge_commit(Commit(folder="f", step="write", error="EACCES")).remedy
    monkeypatch.setenv("TRACKBED_RELEASE", "26.11")
    installs = "pip install 'part==1.0', or start a fresh container"
    assert versions.judge_drift(drift(row("drift"), row("drift"))).remedy == installs
    declared = drift(row("drift", note="the image declares PART=9"))
    assert "with no version set by -e" in versions.judge_drift(declared).remedy


@pytest.mark.parametrize(
    ("module", "error", "gone"),
    [
        ("torch", "ModuleNotFoundError: No module named 'torch'", True),
        ("google.protobuf", "ModuleNotFoundError: No module named 'google'", True),
        ("google.protobuf", "ModuleNotFoundError: No module named 'google.protobuf'", True),
        ("torch", "ModuleNotFoundError: No module named 'torchgen'", False),
        ("torch", "ModuleNotFoundError: No module named 'torch.lost'", False),
        ("torch", "ImportError: libm.so: cannot open shared object file", False),
    ],
)
def test_a_module_that_is_not_installed_is_told_from_one_that_lacks_something(
    module: str, error: str, gone: bool
) -> None:
    assert versions.gone(module, error) is gone


def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **modules: str) -> Context:
    """A release of modules that exist only here: TOML for each one, and its source."""
    tmp_path.mkdir()
    versions._loaded.cache_clear()
    versions._drift.cache_clear()
    text = 'name = "x"\nsummary = "x"\nbase_image = "x"\n'
    for name, source in modules.items():
        (tmp_path / f"trackbed_{name}.py").write_text(source)
        text += f'[components.{name}]\ntitle = "x"\nversion = "1.0"\nrule = "exact"\n' \
            f'probe = "import:trackbed_{name}"\n'  # fmt: skip
    (tmp_path / "x.toml").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delenv("TRACKBED_RELEASE", raising=False)
    return Context(output=tmp_path, release=str(tmp_path / "x.toml"))


def test_one_of_drift_and_imports_speaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version that moved speaks, also for what breaks by it; with all versions right, the import that breaks does."""
    breaks = "import trackbed_one\nraise TypeError('needs another one')"
    here = parts(tmp_path / "a", monkeypatch, one="__version__ = '2.0'", two=breaks)
    drifted = versions.judge_drift(versions.measure_drift(here))
    imported = versions.judge_imports(versions.measure_imports(here))
    assert (drifted.status, drifted.observed) == ("fail", "one: 2.0 is loaded, the release wants 1.0")
    assert (imported.status, "trackbed_two, in order: TypeError" in imported.observed) == ("skip", True)
    here = parts(tmp_path / "b", monkeypatch, one="__version__ = '1.0'", two=breaks)
    drifted = versions.judge_drift(versions.measure_drift(here))
    imported = versions.judge_imports(versions.measure_imports(here))
    assert (drifted.status, drifted.observed) == ("skip", "two: the import breaks")
    assert (imported.status, "trackbed_two, in order: TypeError" in imported.observed) == ("fail", True)


# --- measuring ---


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return root


def test_limits_of_version_2_count_every_group_above(tmp_path: Path) -> None:
    base = "sys/fs/cgroup/job"
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/job/rank\n",
            "proc/self/mountinfo": "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
            f"{base}/cpu.max": "150000 100000\n",
            f"{base}/memory.max": f"{6 * GIB}\n",
            f"{base}/rank/cpu.max": "max 100000\n",
            f"{base}/rank/memory.max": "max\n",
            f"{base}/rank/memory.events": "low 0\noom 4\noom_kill 3\n",
            f"{base}/rank/cpuset.cpus.effective": "0-2,8\n",
        },
    )
    assert cgroup.limits(root) == cgroup.Limits(cpu_quota=1.5, cpuset=4, memory=6 * GIB, oom_kills=3)


def test_limits_of_version_1_in_a_container_are_read_below_the_mounts_own_root(tmp_path: Path) -> None:
    mounts = [
        "1 0 0:1 /docker/abc /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu,cpuacct",
        "2 0 0:2 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory",
        "3 0 0:3 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw",
    ]
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc/in\n1:name=systemd:/x\n0::/\n",
            "proc/self/mountinfo": "\n".join(mounts),
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/in/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/in/memory.oom_control": "under_oom 0\noom_kill 1\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{2 * GIB}\n",
            "sys/fs/cgroup/unified/memory.pressure": "some avg10=0.00\n",
        },
    )
    assert cgroup.limits(root) == cgroup.Limits(cpu_quota=0.5, cpuset=None, memory=2 * GIB, oom_kills=1)


@pytest.mark.parametrize("text", ["", "garbage", "0::\n:::\n", "5:cpu:/a\n"])
def test_limits_that_cannot_be_read_are_no_limits(tmp_path: Path, text: str) -> None:
    root = tree(tmp_path, {"proc/self/cgroup": text, "proc/self/mountinfo": f"1 0 - cgroup2\n{text}\n - \n"})
    assert cgroup.limits(root) == cgroup.Limits(cpu_quota=inf, cpuset=None, memory=inf, oom_kills=0)


@pytest.mark.parametrize(("text", "count"), [("0-3,8", 5), ("0", 1), ("", None), ("3-1", None), ("a-b", None)])
def test_cpu_lists(text: str, count: int | None) -> None:
    assert cgroup.count_cpus(text) == count


def test_a_quota_reaches_the_number_to_use(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/\n",
            "proc/self/mountinfo": "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
            "sys/fs/cgroup/cpu.max": "50000 100000\n",
        },
    )
    outcome = host.judge_cpus(host.measure_cpus(Context(output=tmp_path, ranks=2), root))
    assert outcome.status == "warn"
    assert outcome.observed.startswith("0.5 usable")


def test_shared_memory_and_rdma_are_looked_for_where_they_are(tmp_path: Path) -> None:
    context = Context(output=tmp_path)
    assert host.measure_shared_memory(context, tmp_path / "none") is None
    (tmp_path / "mlx5_0").mkdir()
    assert host.measure_locked_memory(context, tmp_path)["devices"] == ["mlx5_0"]
    assert host.measure_locked_memory(context, tmp_path / "none")["devices"] == []


def test_a_commit_leaves_no_trace_and_makes_the_folder_for_itself(tmp_path: Path) -> None:
    commit = storage.measure_commit(Context(output=tmp_path / "new" / "runs"))
    assert storage.judge_commit(commit).status == "pass"
    assert list(tmp_path.iterdir()) == []


def test_a_commit_where_there_is_a_file_fails_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    outcome = storage.judge_commit(storage.measure_commit(Context(output=tmp_path / "file" / "runs")))
    assert outcome.status == "fail"
    assert "cannot create the folder" in outcome.observed
    assert "ENOTDIR" in outcome.observed


def test_a_commit_that_does_not_fit_fails_by_name_and_cleans_up(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10 * MIB, hard))
    try:
        commit = storage.measure_commit(Context(output=tmp_path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (commit.step, commit.error) == ("write", "EFBIG")
    assert list(tmp_path.iterdir()) == []


def test_bytes_that_changed_on_disk_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = folders.sha256

    def spoil(path: Path) -> str:
        with path.open("r+b") as file:
            file.seek(5 * MIB)
            file.write(b"\0" * 16)
        return real(path)

    monkeypatch.setattr(folders, "sha256", spoil)
    assert storage.judge_commit(storage.measure_commit(Context(output=tmp_path))).status == "fail"


def test_a_dali_step_that_does_other_work_than_the_reference_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dali, "_normalise", lambda pixels: data_reference(pixels)[:, :, ::-1])
    outcome = dali.judge_dali(dali.measure_dali(Context(output=tmp_path)))
    assert outcome.status == "fail"
    assert "normalise" in outcome.remedy


data_reference = dali._normalise


def test_mpi_without_mpirun_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comm, "program_path", lambda: str(tmp_path))
    outcome = comm.judge_mpi(comm.measure_mpi(Context(output=tmp_path)))
    assert (outcome.status, outcome.observed) == ("fail", "there is no mpirun")


def test_mpi_without_mpi4py_fails_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken_mpi4py(tmp_path, monkeypatch, "raise ImportError('libmpi.so.40 is gone')")
    outcome = comm.judge_mpi(comm.measure_mpi(Context(output=tmp_path)))
    assert outcome.status == "fail"
    assert "ImportError: libmpi.so.40 is gone" in outcome.observed


def test_mpi_ranks_that_hang_are_ended_with_mpirun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken_mpi4py(
        tmp_path,
        monkeypatch,
        f"import os, time\nopen({str(tmp_path)!r} + f'/{{os.getpid()}}.pid', 'w').close()\ntime.sleep(600)",
    )
    outcome = comm.judge_mpi(comm.measure_mpi(Context(output=tmp_path), seconds=6))
    assert "did not end within 6 s" in outcome.observed
    ranks = [int(path.stem) for path in tmp_path.glob("*.pid")]
    assert len(ranks) == 2
    assert not any(map(alive, ranks))


def test_an_mpi_check_inside_a_job_does_not_join_that_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("OMPI_MCA_btl", "self,tcp")
    environment = comm.mpi_environment()
    assert "SLURM_JOB_ID" not in environment
    assert environment["OMPI_MCA_btl"] == "self,tcp"
    assert environment["OMPI_MCA_pml"] == "ob1"


def broken_mpi4py(folder: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    """A package of that name ahead of the real one, for the ranks to import."""
    monkeypatch.setattr(comm, "environment", lambda: {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{SOURCES}"})
    tree(folder, {"mpi4py/__init__.py": source})


SOURCES = Path(runner.__file__).parents[2]


# --- the whole catalogue, for real ---


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> list[Result]:
    seen: list[Result] = []
    results = runner.run(Context(output=tmp_path_factory.mktemp("runs") / "runs"), on_result=seen.append)
    assert seen == results
    return results


def test_every_check_answers_for_real(real: list[Result]) -> None:
    assert sorted(done.id for done in real) == sorted(check.id for check in CHECKS if "node" in check.levels)
    assert [done for done in real if done.status == "error"] == []
    assert {done.source for done in real} == {"real"}


def test_the_pinned_stack_passes_its_own_checks(real: list[Result]) -> None:
    assert [done for done in real if done.status in ("fail", "error")] == []
    always = {"stack.drift", "stack.imports", "data.dali-decode", "comm.gloo-all-reduce", "comm.mpi-all-reduce"}
    always |= {"monitor.tensorboard-roundtrip", "storage.commit", "deepspeed.stale-lock", "host.memory-limit"}
    assert [done for done in real if done.id in always and done.status != "pass"] == []
    assert [done for done in real if done.status == "skip" and not done.observed] == []


def test_an_interface_for_gloo_that_does_not_exist_fails_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nowhere0")
    chosen = {"comm.gloo-all-reduce", "network.host-name"}
    done = {each.id: each.status for each in runner.stream(Context(output=tmp_path), only=chosen)}
    assert done == {"network.host-name": "fail", "comm.gloo-all-reduce": "skip"}

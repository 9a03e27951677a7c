"""Measuring for container.* and limits.*: really where this machine has it, recorded trees elsewhere; and secrets."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from math import inf
from pathlib import Path
from typing import Any

import pytest

from trackbed import release
from trackbed.validate import Context, Outcome, result
from trackbed.validate.machine import cgroup, container, host, kernel, limits, seccomp, writable
from trackbed.validate.machine.mounts import mount_of
from trackbed.validate.redact import redact
from trackbed.validate.stack import packages
from validate_rules import check

OVERLAY = "100 58 0:41 / / rw - overlay overlay rw,lowerdir=/l\n"
MOUNTED = (
    OVERLAY
    + "134 102 0:57 / /dev/shm rw - tmpfs shm rw\n140 100 0:99 / /var/my\\040runs rw,relatime - ext4 /dev/a rw\n"
)
PRIVILEGED = "CapBnd:\t0000003fffffffff\n"
CONFINED = "CapBnd:\t00000000a80425fb\n"


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return root


def context(folder: Path, **changes: Any) -> Context:
    return Context(output=folder, **changes)


# --- what this process runs in ---


@pytest.mark.parametrize(
    ("files", "environment", "engine"),
    [
        ({".dockerenv": ""}, {}, "Docker"),
        ({"run/.containerenv": ""}, {}, "Podman"),
        ({".singularity.d/x": ""}, {}, "Apptainer"),
        ({}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "Kubernetes"),
        ({"proc/1/cgroup": "0::/kubepods/pod1\n"}, {}, "a container"),
        ({"proc/self/mountinfo": OVERLAY}, {}, "a container"),
        ({"proc/self/mountinfo": "1 0 8:1 / / rw - btrfs /dev/a rw\n"}, {}, ""),
        ({"proc/1/cgroup": "0::/init.scope\n"}, {}, ""),
        # A virtual machine made from an image, and a container that shares its host's processes.
        ({".dockerenv": "", "proc/2/comm": "kthreadd\n"}, {}, ""),
        ({".dockerenv": "", "proc/2/comm": "kthreadd\n", "proc/self/mountinfo": OVERLAY}, {}, "Docker"),
    ],
)
def test_engines_are_known_by_their_marks(
    tmp_path: Path, files: dict[str, str], environment: dict[str, str], engine: str
) -> None:
    assert container.engine(tree(tmp_path, files), environment) == engine


@pytest.mark.parametrize(
    ("kinds", "version"), [(("cgroup2",), "2"), (("cgroup",), "1"), (("cgroup", "cgroup2"), "1"), ((), "")]
)
def test_the_version_of_control_groups(tmp_path: Path, kinds: tuple[str, ...], version: str) -> None:
    lines = "".join(f"{index} 0 0:1 / /sys/fs/cgroup/{index} rw - {kind} c rw\n" for index, kind in enumerate(kinds))
    root = tree(tmp_path, {"proc/self/mountinfo": lines})
    found = container.measure_runtime(context(tmp_path), root, {"SLURM_JOB_ID": "7", "KUBERNETES_SERVICE_HOST": "x"})
    assert (found["cgroup"], found["orchestrator"]) == (version, "Kubernetes and Slurm")


def status(name: str, parent: int, *, caught: str = "0", blocked: str = "0") -> str:
    return f"Name:\t{name}\nPPid:\t{parent}\nSigBlk:\t{blocked}\nSigCgt:\t{caught}\n"


def test_the_processes_between_pid_1_and_us(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            ".dockerenv": "",
            "proc/1/status": status("docker-init", 0),
            "proc/1/cmdline": "/sbin/docker-init\0--\0run\0",
            "proc/5/status": status("bash", 1),
            "proc/5/cmdline": "bash\0run.sh\0",
            "proc/6/status": status("python", 5, caught="0000000000014002"),
            "proc/6/cmdline": "python\0-m\0trackbed\0",
            "proc/9/status": status("server", 1, blocked="0000000000004000"),
            "proc/9/cmdline": "server\0",
        },
    )
    found = container.measure_stop_signal(context(tmp_path), root, pid=6)
    seen = {one["pid"]: (one["command"], one["handles"], one["chained"]) for one in found["processes"]}
    assert seen == {
        1: ("/sbin/docker-init -- run", True, True),
        5: ("bash run.sh", False, True),
        9: ("server", True, False),
    }
    assert "`bash run.sh` (PID 5)" in container.judge_stop_signal(found).observed


def test_a_real_process_that_handles_sigterm_is_seen_to(tmp_path: Path) -> None:
    code = "import signal, sys; {}; print(flush=True); sys.stdin.read()"
    for handler, handles in (("signal.signal(15, print)", True), ("0", False)):
        with subprocess.Popen(
            [sys.executable, "-c", code.format(handler)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as child:
            assert child.stdout is not None
            child.stdout.readline()
            seen = container._process(Path("/"), child.pid)
            assert (seen["handles"], seen["terminal"]) == (handles, False)
            assert handler in seen["command"]


@pytest.mark.parametrize(
    ("files", "privileged", "shared"),
    [
        ({"proc/1/status": PRIVILEGED}, True, False),
        ({"proc/1/status": CONFINED}, False, False),
        ({"proc/1/status": CONFINED, "proc/2/comm": "kthreadd\n", "proc/self/mountinfo": OVERLAY}, False, True),
    ],
)
def test_what_a_container_may_do(tmp_path: Path, files: dict[str, str], privileged: bool, shared: bool) -> None:
    root = tree(tmp_path, {".dockerenv": "", **files})
    found = container.measure_privileges(context(tmp_path), root)
    assert found == {"container": True, "privileged": privileged, "host_processes": shared, "socket": ""}


def test_an_engines_socket_is_found(tmp_path: Path) -> None:
    root = tree(tmp_path, {".dockerenv": "", "run/docker.sock": "", "proc/1/status": CONFINED})
    assert container.measure_privileges(context(tmp_path), root)["socket"].endswith("run/docker.sock")


def test_the_mount_a_folder_is_on(tmp_path: Path) -> None:
    root = tree(tmp_path, {"proc/self/mountinfo": MOUNTED + "garbage\n", ".dockerenv": ""})
    kinds = {str(path): mount_of(Path(path), root) for path in ("/var/my runs/a", "/var/my", "/dev/shm")}
    assert [mount.kind for mount in kinds.values() if mount] == ["ext4", "overlay", "tmpfs"]
    assert mount_of(Path("/a"), tmp_path / "none") is None
    for folder, status in (("/var/my runs/run1", "pass"), ("/var/lib/runs", "warn"), ("/dev/shm/runs", "warn")):
        found = container.measure_output_volume(context(Path(folder)), root)
        assert container.judge_output_volume(found).status == status


# --- calls that an engine may refuse ---


def test_a_copy_from_a_child_is_really_made_and_leaves_no_child() -> None:
    assert seccomp._copy_from_child() in ("", "EPERM")
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_a_copy_that_is_refused_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(seccomp, "_copy_from_child", lambda: "EPERM")
    found = seccomp.measure_process_copy(context(tmp_path), {"OMPI_MCA_smsc": "cma,xpmem"})
    assert (found["error"], found["asked"]) == ("EPERM", "OMPI_MCA_smsc")
    assert seccomp.measure_process_copy(context(tmp_path), {"OMPI_MCA_smsc": "^cma"})["asked"] == ""


def test_numa_nodes_are_counted_and_the_call_really_made(tmp_path: Path) -> None:
    for name in ("node0", "node12", "power", "online"):
        (tmp_path / name).mkdir()
    found = seccomp.measure_memory_binding(context(tmp_path), tmp_path)
    assert found["nodes"] == 2
    assert found["error"] in ("", "EPERM", "ENOSYS", None)


# --- folders that libraries write to ---


def test_a_temporary_folder_is_really_written_to(tmp_path: Path) -> None:
    found = writable.measure_temporary(context(tmp_path), {"TMPDIR": str(tmp_path)})
    assert (found["error"], found["folder"]) == ("", str(tmp_path))
    assert found["free"] > 0
    assert list(tmp_path.iterdir()) == []
    missing = writable.measure_temporary(context(tmp_path), {"TMPDIR": str(tmp_path / "none")})
    assert writable.judge_temporary(missing).status == "fail"


def test_a_temporary_folder_that_is_full_is_named(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        found = writable.measure_temporary(context(tmp_path), {"TMPDIR": str(tmp_path)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert found["error"] == "EFBIG"


def test_caches_are_where_variables_and_the_home_say(tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path), "TRITON_CACHE_DIR": str(tmp_path / "t"), "USER": "me", "TMPDIR": "/tmp"}
    found = writable.measure_caches(context(tmp_path), environment)
    folders = {one["name"]: one for one in found["folders"]}
    assert folders["TORCH_EXTENSIONS_DIR"]["folder"] == str(tmp_path / ".cache/torch_extensions")
    assert folders["TORCHINDUCTOR_CACHE_DIR"]["folder"] == "/tmp/torchinductor_me"
    assert [name for name, one in folders.items() if one["named"]] == ["HOME", "TRITON_CACHE_DIR"]
    torch_says = {**environment, "TORCHINDUCTOR_CACHE_DIR": "/tmp/torchinductor_me"}
    again = writable.measure_caches(context(tmp_path), torch_says)["folders"]
    assert [one["name"] for one in again if one["named"]] == ["HOME", "TRITON_CACHE_DIR"]
    assert all(one["executable"] and not one["error"] for one in folders.values())
    assert list(tmp_path.iterdir()) == []


def test_a_home_that_is_the_temporary_folder_is_checked_once(tmp_path: Path) -> None:
    names = [name for name, _ in writable._folders({"HOME": "/tmp"})]
    assert "HOME" not in names
    assert "HF_HOME" in names


@pytest.fixture
def noexec(tmp_path: Path) -> Iterator[Path]:
    """A file system mounted noexec, as Docker mounts --tmpfs."""
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "noexec,size=1m", "none", tmp_path], capture_output=True)
    if made.returncode:
        pytest.skip(f"mount needs root: {made.stderr.decode().strip()}")
    yield tmp_path
    subprocess.run(["umount", tmp_path], check=True)


def test_noexec_is_found_by_mapping_a_file_as_code(noexec: Path) -> None:
    assert writable._use(noexec) == ("", False)
    (noexec / "full").write_bytes(bytes(1 << 20))
    assert writable._use(noexec)[0] == ""


def test_a_folder_that_refuses_a_file_is_named() -> None:
    assert writable._use(Path("/proc")) == ("ENOENT", False) or writable._use(Path("/proc"))[1] is False


def test_file_times_are_held_against_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = writable.measure_file_times(context(tmp_path / "new" / "runs"))
    assert abs(found["skew"]) < 1
    assert list(tmp_path.iterdir()) == []
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 3600)
    late = writable.judge_file_times(writable.measure_file_times(context(tmp_path)))
    assert late.status == "warn"
    assert "behind" in late.observed
    monkeypatch.setattr(time, "time", lambda: real() - 3600)
    assert "ahead" in writable.judge_file_times(writable.measure_file_times(context(tmp_path))).observed


# --- packages ---


def distribution(folder: Path, name: str, version: str, *requires: str) -> metadata.Distribution:
    lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {line}" for line in requires)]
    where = folder / f"{name}-{version}.dist-info"
    tree(where, {"METADATA": "\n".join(lines) + "\n"})
    return metadata.Distribution.at(where)


def test_packages_of_two_cudas_are_found_by_their_names(tmp_path: Path) -> None:
    made = [
        distribution(tmp_path, "torch", "2.13.0", "nvidia-nccl-cu13==2.29; platform_system == 'Linux'", "numpy>=1"),
        distribution(tmp_path, "nvidia-nccl-cu13", "2.29"),
        distribution(tmp_path, "nvidia_cudnn_cu12", "9.1"),
        distribution(tmp_path, "nvidia-cublas", "13.1.0"),
        distribution(tmp_path, "nvidia-dali-cuda120", "1.0"),
        distribution(tmp_path, "numpy", "2.0"),
    ]
    found = packages.measure_packages(context(tmp_path), made)
    assert found["cuda"] == {"12": ["nvidia-cudnn-cu12"], "13": ["nvidia-cublas", "nvidia-nccl-cu13"]}
    assert (found["torch"], found["broken"], found["count"]) == ("13", [], 6)
    assert packages.judge_packages(found).remedy.startswith("uv pip uninstall nvidia-cudnn-cu12;")


def test_a_requirement_broken_by_a_package_that_the_release_pins_is_left_to_drift(tmp_path: Path) -> None:
    pinned = release.load().components["protobuf"].version
    needs = distribution(tmp_path, "needs", "1", f"protobuf=={pinned}", "free<2")
    made = [needs, distribution(tmp_path, "protobuf", "5.29.5"), distribution(tmp_path, "free", "1")]
    found = packages.measure_packages(context(tmp_path), made)
    assert (found["broken"], found["moved"]) == ([], ["protobuf"])
    assert packages.judge_packages(found).status == "skip"
    made[2] = distribution(tmp_path, "free", "2")
    found = packages.measure_packages(context(tmp_path), made)
    assert (found["broken"], found["moved"]) == (["needs 1 needs free<2, but 2 is installed"], ["protobuf"])


def test_a_pinned_package_as_pinned_explains_nothing(tmp_path: Path) -> None:
    made = [
        distribution(tmp_path, "needs", "1", "protobuf<1"),
        distribution(tmp_path, "protobuf", release.load().components["protobuf"].version),
    ]
    assert len(packages.measure_packages(context(tmp_path), made)["broken"]) == 1


def test_requirements_that_nothing_meets_are_found_as_pip_finds_them(tmp_path: Path) -> None:
    made = [
        distribution(
            tmp_path, "Some.Part", "1", "free<2", "lost", "extra-only; extra == 'x'", "gone; python_version < '3'", "?"
        ),
        distribution(tmp_path, "free", "2.0rc1"),
    ]
    broken = packages.measure_packages(context(tmp_path), made)["broken"]
    assert broken == [
        "Some.Part 1 needs free<2, but 2.0rc1 is installed",
        "Some.Part 1 needs lost, which is not installed",
    ]


# --- limits ---


def test_processes_are_counted_where_the_least_are_left(tmp_path: Path) -> None:
    base = "sys/fs/cgroup"
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/pod/rank\n",
            "proc/self/mountinfo": "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
            f"{base}/pod/pids.max": "1000\n",
            f"{base}/pod/pids.current": "990\n",
            f"{base}/pod/rank/pids.max": "500\n",
            f"{base}/pod/rank/pids.current": "10\n",
            f"{base}/pod/rank/cpu.max": "max 100000\n",
            f"{base}/pod/rank/cpu.stat": "usage_usec 7\nnr_periods 200\nnr_throttled 20\nthrottled_usec 9\n",
        },
    )
    found = limits.measure_processes(context(tmp_path), root)
    assert (found["allowed"], found["running"]) == (1000, 990)
    assert found["user_running"] >= 1
    assert limits.measure_throttling(context(tmp_path), root) == {"periods": 200, "throttled": 20}


def test_processes_of_version_1_and_without_a_limit(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "8:pids:/docker/a\n1:cpu:/docker/a\n",
        "proc/self/mountinfo": "1 0 0:1 /docker/a /p ro - cgroup c rw,pids\n"
        "2 0 0:2 /docker/a /c ro - cgroup c rw,cpu\n",
        "p/pids.max": "max\n",
        "p/pids.current": "3\n",
        "c/cpu.cfs_quota_us": "50000\n",
        "c/cpu.stat": "nr_periods 40\nnr_throttled 30\n",
    }
    root = tree(tmp_path, files)
    assert cgroup.processes(root) == (inf, 3)
    assert cgroup.throttling(root) == (40, 30)
    assert cgroup.processes(tmp_path / "none") == (inf, 0)
    assert cgroup.throttling(tmp_path / "none") == (0, 0)


def test_swap_is_what_the_machine_counts(tmp_path: Path) -> None:
    text = "MemTotal:  1000 kB\nSwapTotal:  500 kB\nSwapFree:  100 kB\nHugePages_Total: 0\n"
    root = tree(tmp_path, {"proc/meminfo": text, "proc/sys/vm/swappiness": "60\n"})
    expected = {"memory": 1024000, "used": 409600, "swappiness": "60"}
    assert limits.measure_swap(context(tmp_path), root) == expected
    assert limits.judge_swap(limits.measure_swap(context(tmp_path), tmp_path / "none")).status == "error"


def test_the_largest_number_of_threads_asked_for_counts(tmp_path: Path) -> None:
    environment = {"OMP_NUM_THREADS": "4,2", "MKL_NUM_THREADS": "9", "OPENBLAS_NUM_THREADS": "many"}
    found = limits.measure_threads(context(tmp_path, ranks=3), tmp_path, environment)
    assert (found["variable"], found["threads"], found["ranks"]) == ("MKL_NUM_THREADS", 9, 3)
    assert found["cpus"] == len(os.sched_getaffinity(0))


STUCK = """
import os, sys
print(flush=True)
os.posix_spawn("/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)])
"""


def test_a_process_that_waits_in_the_kernel_is_really_found(tmp_path: Path) -> None:
    """The parent of a vfork sleeps where no signal but SIGKILL reaches it, until its child has opened the pipe."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    child = subprocess.Popen([sys.executable, "-c", STUCK, pipe], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    try:
        deadline = time.monotonic() + 10
        while not any(pid == child.pid for pid, _, _ in kernel._sleeping_in_kernel()):
            assert time.monotonic() < deadline
        stuck = kernel.measure_stuck(context(tmp_path), seconds=0.1)["stuck"]
        assert [name for name in stuck if f"(PID {child.pid}," in name]
    finally:
        pipe.open("w").close()
        child.wait()
        child.stdout.close()
    assert not [
        name for name in kernel.measure_stuck(context(tmp_path), seconds=0.1)["stuck"] if str(child.pid) in name
    ]


@pytest.mark.parametrize(
    ("pattern", "beside"), [("core", True), ("|/usr/share/apport %p", False), ("{}/elsewhere/core.%p", False)]
)
def test_where_core_dumps_go(tmp_path: Path, pattern: str, beside: bool) -> None:
    root = tree(tmp_path / "root", {"proc/sys/kernel/core_pattern": pattern.format(tmp_path) + "\n"})
    found = kernel.measure_core_dumps(context(tmp_path / "runs"), root, here=tmp_path)
    assert found["beside_runs"] is beside
    (tmp_path / "elsewhere").mkdir()
    again = kernel.measure_core_dumps(context(tmp_path / "runs"), root, here=tmp_path)
    assert again["beside_runs"] is (not pattern.startswith("|"))


def test_the_clock_is_read_from_the_kernel(tmp_path: Path) -> None:
    folder = str(kernel.CLOCKS)
    files = {
        f"{folder}/current_clocksource": "hpet\n",
        f"{folder}/available_clocksource": "tsc hpet\n",
        "proc/cpuinfo": "processor: 0\nflags : fpu hypervisor sse\n",
    }
    root = tree(tmp_path, files)
    assert kernel.measure_clock_source(context(tmp_path), root) == {
        "name": "hpet",
        "available": ["tsc", "hpet"],
        "virtual": True,
    }
    assert kernel.measure_clock_source(context(tmp_path), tmp_path / "none")["name"] == ""


def test_adjtimex_is_really_asked(tmp_path: Path) -> None:
    found = kernel.measure_clock_sync(context(tmp_path), {"SLURM_NNODES": "4"})
    assert found["error"] in ("", "EPERM")
    assert (found["nodes"], type(found["synchronized"])) == (4, bool)
    assert ctypes.sizeof(kernel._Timex) >= 208


def test_rdma_devices_of_a_container_are_seen_by_their_files(tmp_path: Path) -> None:
    (tmp_path / "uverbs0").touch()
    found = host.measure_locked_memory(context(tmp_path), tmp_path / "none", tmp_path)
    assert found["devices"] == ["uverbs0"]


# --- secrets ---

SECRETS = {
    "HF_TOKEN": "not-a-real-token-1",
    "AWS_SECRET_ACCESS_KEY": "abcdefgh12345678",
    "WANDB_API_KEY": "short",
    "TOKENIZERS_PARALLELISM": "a-long-value",
    "PWD": "/work/something",
    "GOOGLE_APPLICATION_CREDENTIALS": "/etc/key.json",
}


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("said not-a-real-token-1 twice: not-a-real-token-1", "said [redacted] twice: [redacted]"),
        ("AWS abcdefgh12345678.", "AWS [redacted]."),
        ("short a-long-value /work/something /etc/key.json", "short a-long-value /work/something /etc/key.json"),
        ("DB_PASSWORD=hunter2hunter2 PATH=/usr/bin TOKEN=abc", "DB_PASSWORD=[redacted] PATH=/usr/bin TOKEN=abc"),
        ("AWS_SECRET_ACCESS_KEY=/wJalrXUtnFEMIK7 end", "AWS_SECRET_ACCESS_KEY=[redacted] end"),
        ("HF_TOKEN_PATH=/etc/hostname", "HF_TOKEN_PATH=/etc/hostname"),
        ("notebook --password hunter2hunter2 --port 8888", "notebook --password [redacted] --port 8888"),
        ("serve --api-key=abcdefgh12 --token-file /etc/passwd", "serve --api-key=[redacted] --token-file /etc/passwd"),
        ("https://me:pass@host/x", "https://[redacted]@host/x"),
        ("Authorization: Bearer abcdef123456", "Authorization: Bearer [redacted]"),
        ("key " + "AKIA" + "ABCDEFGHIJKLMNOP" + " end", "key [redacted] end"),
        ("hf_" + "a1" * 12, "[redacted]"),
        ("OMP_NUM_THREADS=4 mpirun -n 2", "OMP_NUM_THREADS=4 mpirun -n 2"),
    ],
)
def test_secrets_are_taken_out(text: str, left: str) -> None:
    assert redact(text, SECRETS) == left


def test_no_text_of_a_result_carries_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "a-secret-of-this-test")
    text = "x a-secret-of-this-test y"
    outcome = Outcome(status="fail", observed=text, expected=text, evidence=text, remedy=text)
    done = result(check("host.cpus"), outcome, host="h")
    assert "a-secret-of-this-test" not in str(done.to_dict())
    assert done.remedy == "x [redacted] y"

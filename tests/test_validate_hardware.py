"""Measuring for the hardware checks: recorded trees, stand-ins for NVML and tools, and what is real everywhere."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rules_cuda
import rules_fabric
import rules_gpu
import rules_libraries
from conftest import ROOT
from hardware_fixtures import fixture, snapshot, tree, write
from trackbed.validate import Check, Context, runner
from trackbed.validate.catalogue import CHECKS
from trackbed.validate.hardware import (
    cuda,
    cuda_container,
    cuda_libraries,
    fabric,
    fabric_pci,
    gdrcopy,
    gpu,
    gpu_decode,
    gpu_events,
    kernel_log,
    nccl_runs,
    nvml,
    rdma,
    rdma_links,
    shared,
    tensorrt,
)
from trackbed.validate.hardware.shared import Ran

FAMILIES = (cuda, gpu, fabric, rdma, nccl_runs, gdrcopy, tensorrt)
MINE: dict[str, Check] = {check.id: check for family in FAMILIES for check in family.CHECKS}
SKIPS = [*rules_cuda.SKIPS, *rules_gpu.SKIPS, *rules_fabric.SKIPS, *rules_libraries.SKIPS]


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(output=tmp_path / "runs")


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No variable of a machine that has a GPU, and no answer kept from another test."""
    for name in ("TRACKBED_KERNEL_LOG", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "TRACKBED_NCCL_LOG",
                 "NCCL_DEBUG_FILE", "TRACKBED_NCCL_TESTS", "TRACKBED_TENSORRT_PLANS", "NVIDIA_REQUIRE_CUDA",
                 "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", *cuda_container.DEBUG_VARIABLES):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    nvml._probe.cache_clear()
    yield
    nvml._probe.cache_clear()


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A machine with two GPUs and a driver, as a tree of files."""
    return tree("fabric/pci.tree", tmp_path / "node")


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Puts a shell script of that name ahead on PATH."""

    def make(name: str, body: str) -> Path:
        path = write(tmp_path / "bin" / name, f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
        for module in (fabric, gpu_events, nccl_runs, gdrcopy, tensorrt):
            monkeypatch.setattr(module, "program_path", lambda: str(tmp_path / "bin"))
        return path

    return make


# --- skips ---


@pytest.mark.parametrize(("name", "measured", "says"), SKIPS)
def test_what_is_not_there_is_skipped_with_its_reason(name: str, measured: Any, says: str) -> None:
    outcome = MINE[name].judge(measured)
    assert outcome.status == "skip", outcome
    assert says in outcome.observed


@pytest.mark.parametrize("name", sorted(set(MINE) - {"cuda.environment"}))
def test_every_hardware_check_passes_on_why_there_is_nothing(name: str) -> None:
    if name == "cuda.visible-devices":
        return  # it judges the absence itself
    outcome = MINE[name].judge(shared.absent("no such thing here"))
    assert (outcome.status, outcome.observed) == ("skip", "no such thing here")


def test_every_hardware_check_says_what_it_is_for() -> None:
    for check in MINE.values():
        assert check in CHECKS
        assert check.why
        assert check.rule
        assert check.child in ("hardware", "hardware-deep", "torch")
        assert "image" not in check.levels or check.id.startswith("tensorrt.")


def test_without_a_gpu_each_skips_for_real_and_in_little_time(context: Context) -> None:
    if not shared.missing():
        pytest.skip("this machine has a GPU: the checks judge it instead")
    cheap = {check.id for check in MINE.values() if check.child == "hardware" and "node" in check.levels}
    assert len(cheap) > 30
    before = os.times()
    results = list(runner.stream(context, only=cheap))
    after = os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    assert sorted(done.id for done in results) == sorted(cheap)
    assert {done.status for done in results if done.id != "cuda.environment"} == {"skip"}
    # The processor's time, child's start and catalogue included: a busy machine does not count.
    assert spent < 2.0
    # What the checks themselves take, without that start.
    assert sum(done.duration_ms for done in results) < 1000


# --- driver ---


@pytest.mark.parametrize(
    ("name", "version", "flavour"),
    [
        ("version-open.txt", "580.95.05", "open"),
        ("version-proprietary.txt", "535.104.05", "proprietary"),
        ("README.md", "", ""),
    ],
)
def test_the_driver_says_version_and_flavour(tmp_path: Path, name: str, version: str, flavour: str) -> None:
    write(tmp_path / "proc/driver/nvidia/version", fixture(f"cuda/{name}"))
    assert shared.driver(tmp_path) == {"version": version, "flavour": flavour}


def test_why_no_gpu_can_be_used(tmp_path: Path, node: Path) -> None:
    assert shared.missing(tmp_path) == shared.NO_DRIVER
    write(tmp_path / "proc/driver/nvidia/version", fixture("cuda/version-open.txt"))
    assert shared.missing(tmp_path) == shared.NO_DEVICE
    assert shared.missing(node) == ""
    assert shared.missing(write(tmp_path / "wsl/dev/dxg", "").parents[1]) == ""


def test_the_driver_is_held_against_the_release(context: Context, node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "libcuda", lambda root: {"cuda": "13.0", "path": "/usr/lib/libcuda.so.1", "code": 0})
    monkeypatch.setenv("NVIDIA_REQUIRE_CUDA", "cuda>=13.1")
    measured = cuda.measure_driver(Context(output=context.output, release="26.11"), node)
    assert measured["driver"] == "580.95.05"
    assert cuda.judge_driver(measured).status == "fail"
    monkeypatch.setenv("NVIDIA_DISABLE_REQUIRE", "1")
    assert cuda.judge_driver(cuda.measure_driver(context, node)).status == "pass"
    monkeypatch.setattr(nvml, "libcuda", lambda root: {"cuda": "13.0", "path": "/usr/local/cuda/compat/l", "code": 0})
    assert cuda.measure_driver(context, node)["compat"] is True


def test_the_drivers_library_is_found_by_the_version_in_its_name(context: Context, node: Path) -> None:
    write(node / "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.105.08", "")
    (node / "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.580.105.08")
    measured = cuda.measure_driver_library(context, node)
    assert measured == {"kernel": "580.95.05", "libraries": ["580.105.08"]}
    assert cuda.judge_driver_library(measured).status == "fail"


def test_nouveau_is_seen_among_the_modules(context: Context, node: Path) -> None:
    write(node / "proc/modules", "nouveau 2113536 1 - Live 0x0\nnvidia_uvm 1 0 - Live 0x0\n")
    measured = cuda_container.measure_kernel_module(context, node)
    assert (measured["nouveau"], measured["flavour"]) == (True, "open")
    assert cuda_container.judge_kernel_module(measured).status == "fail"


def test_a_debuggers_variable_warns_for_real(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    monkeypatch.setenv("CUDA_PROFILE", "0")
    (done,) = runner.stream(context, only={"cuda.environment"})
    assert (done.status, done.observed) == ("warn", "CUDA_LAUNCH_BLOCKING=1")
    assert done.remedy == "unset CUDA_LAUNCH_BLOCKING"
    monkeypatch.delenv("CUDA_LAUNCH_BLOCKING")
    assert cuda_container.judge_environment(cuda_container.measure_environment(context)).status == "pass"


def test_devices_and_what_was_asked_of_the_runtime(
    context: Context, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NVIDIA_DRIVER_CAPABILITIES", "utility")
    assert cuda_container.judge_visible_devices(cuda_container.measure_visible_devices(context, node)).status == "fail"
    shutil.rmtree(node / "dev")
    monkeypatch.setenv("TRACKBED_VARIANT", "gpu")
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", "void")
    outcome = cuda_container.judge_visible_devices(cuda_container.measure_visible_devices(context, node))
    assert outcome.status == "warn"
    assert "void" in outcome.observed


# --- NVML ---


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"error {value}")
        self.value = value


def fake_nvml(**changes: Any) -> Any:
    """A module that answers as NVML does for one GPU; a number in place of an answer is the error it gives."""
    answers: dict[str, Any] = {
        "nvmlInit": None, "nvmlDeviceGetCount": 1, "nvmlDeviceGetHandleByIndex": "gpu",
        "nvmlSystemGetCudaDriverVersion_v2": 13000, "nvmlSystemGetDriverVersion": b"580.95.05",
        "nvmlDeviceGetName": "NVIDIA L4", "nvmlDeviceGetUUID": b"GPU-1",
        "nvmlDeviceGetPciInfo": SimpleNamespace(busId=b"00000000:1B:00.0"),
        "nvmlDeviceGetTotalEccErrors": 7, "nvmlDeviceGetMemoryErrorCounter": 5,
        "nvmlDeviceGetRemappedRows": (1, 2, 0, 1),
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=10, total=20),
        "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=7)],
        "nvmlDeviceGetCurrentClocksEventReasons": 4, "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=3),
        "nvmlDeviceGetTemperature": 40, "nvmlDeviceGetTemperatureThreshold": 90,
        "nvmlDeviceGetEnforcedPowerLimit": 70_000, "nvmlDeviceGetPowerManagementDefaultLimit": 72_000,
        "nvmlDeviceGetVbiosVersion": "95.1", "nvmlDeviceGetInforomImageVersion": "G1",
        "nvmlDeviceGetGspFirmwareVersion": "580", "nvmlDeviceGetMigMode": (1, 1), "nvmlDeviceGetComputeMode": 0,
        "nvmlDeviceGetPersistenceMode": 1, "nvmlDeviceGetCurrPcieLinkGeneration": 3,
        "nvmlDeviceGetMaxPcieLinkGeneration": 4, "nvmlDeviceGetCurrPcieLinkWidth": 8,
        "nvmlDeviceGetMaxPcieLinkWidth": 16, "nvmlDeviceGetNvLinkState": 1, "nvmlDeviceGetNvLinkErrorCounter": 2,
        "nvmlDeviceGetFieldValues": [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=2))],
        "nvmlDeviceGetGpuFabricInfo": None,
    }  # fmt: skip
    module = SimpleNamespace(
        NVMLError=NVMLError, nvmlMemory_v2=2, NVML_MEMORY_LOCATION_SRAM=7, NVML_NVLINK_MAX_LINKS=4,
        NVML_TEMPERATURE_GPU=0, NVML_TEMPERATURE_THRESHOLD_SLOWDOWN=1, NVML_FI_DEV_GET_GPU_RECOVERY_ACTION=230,
        c_nvmlGpuFabricInfo_t=FabricInfo,
    )  # fmt: skip
    for name, answer in {**answers, **changes}.items():
        setattr(module, name, _answer(answer))
    return module


class FabricInfo(ctypes.Structure):
    _fields_ = (("clusterUuid", ctypes.c_char * 16), ("status", ctypes.c_uint), ("state", ctypes.c_ubyte))


def _answer(answer: Any) -> Callable[..., Any]:
    def said(*arguments: Any, **more: Any) -> Any:
        if isinstance(answer, NVMLError):
            raise answer
        return answer(*arguments) if callable(answer) else answer

    return said


def test_nvml_is_read_into_plain_values() -> None:
    found = nvml.read_nvml(fake_nvml())
    assert json.loads(json.dumps(found)) == found
    assert (found["driver"], found["cuda"]) == ("580.95.05", "13.0")
    (card,) = found["gpus"]
    assert card["pci"] == "00000000:1b:00.0"
    assert card["ecc"] == {"uncorrected": 7, "corrected": 7, "corrected_sram": 5}
    assert card["rows"] == {"corrected": 1, "uncorrected": 2, "pending": 0, "failure": 1}
    assert card["power"] == {"limit": 70.0, "default": 72.0}
    assert card["links"] == {"up": 4, "all": 4, "errors": {"replay": 8, "recovery": 8, "crc": 8}}
    assert card["recovery"] == 2
    assert (card["mig"], card["lost"], card["processes"]) == (1, False, [7])
    # The recorded snapshot has the same shape.
    assert set(card) == set(snapshot()["gpus"][0])
    assert {name: set(value) for name, value in card.items() if isinstance(value, dict)} == {
        name: set(value) for name, value in snapshot()["gpus"][0].items() if isinstance(value, dict)
    }


def test_what_a_gpu_does_not_report_is_none_and_a_lost_one_is_lost() -> None:
    unsupported, lost = NVMLError(3), NVMLError(15)
    found = nvml.read_nvml(
        fake_nvml(
            nvmlDeviceGetTotalEccErrors=unsupported,
            nvmlDeviceGetTemperature=lost,
            nvmlDeviceGetNvLinkState=unsupported,
            nvmlDeviceGetFieldValues=[SimpleNamespace(nvmlReturn=3)],
        )
    )
    (card,) = found["gpus"]
    assert (card["ecc"], card["temperature"], card["lost"], card["recovery"]) == (None, None, True, None)
    assert card["links"] == {"up": 0, "all": 0, "errors": {"replay": 0, "recovery": 0, "crc": 0}}


def test_an_nvml_that_does_not_start_says_why() -> None:
    assert nvml.read_nvml(fake_nvml(nvmlInit=NVMLError(999))) == {"error": "error 999", "code": 999}


def test_an_nvidia_ml_py_without_a_function_reports_none() -> None:
    module = fake_nvml()
    del module.nvmlDeviceGetCurrentClocksEventReasons
    assert nvml.read_nvml(module)["gpus"][0]["reasons"] is None


def test_the_child_asks_the_real_nvml_and_libcuda(monkeypatch: pytest.MonkeyPatch, node: Path) -> None:
    if not shared.missing():
        pytest.skip("this machine has a GPU: NVML is there")
    found = nvml.snapshot(node)
    assert "Not Found" in found["error"]
    assert "libcuda.so.1" in nvml.libcuda(node)["error"]
    assert cuda_container.judge_nvml(found).status == "fail"


def test_a_driver_that_hangs_is_late_in_both(node: Path, monkeypatch: pytest.MonkeyPatch, context: Context) -> None:
    hang = ["sh", "-c", 'echo \'{"nvml": {"gpus": []}}\'; exec sleep 600']
    monkeypatch.setattr(nvml, "run", lambda command, seconds: shared.run(hang, 0.5))
    assert nvml.snapshot(node) == {"gpus": []}
    assert nvml.libcuda(node) == {"late": nvml.SECONDS}
    assert cuda.judge_libcuda(cuda.measure_libcuda(context, node)).status == "fail"


def test_garbage_from_the_child_is_no_answer() -> None:
    assert nvml.parse("noise\n{broken") == {"nvml": {"late": nvml.SECONDS}, "cuda": {"late": nvml.SECONDS}}


def test_ranks_and_expectations_reach_the_gpu_rules(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "snapshot", lambda root: {"gpus": []})
    measured = gpu.measure(Context(output=node, ranks=7, expect={"gpu": {"count": 2}}), node)
    assert measured == {"gpus": [], "ranks": 7, "expect": {"gpu": {"count": 2}}}


# --- programs ---


def test_a_program_that_does_not_end_is_ended(tmp_path: Path) -> None:
    done = shared.run(["sh", "-c", "echo begun; exec sleep 600"], 0.3)
    assert (done.code, done.output, done.error) == (None, "begun\n", "late")
    assert shared.run(["sh", "-c", "echo no >&2; exit 7"], 10) == Ran(code=7, output="no\n")
    assert shared.run([str(tmp_path / "none")], 10).error.endswith("No such file or directory")


def test_dcgm_is_called_when_it_is_there(context: Context, node: Path, program: Callable[[str, str], Path]) -> None:
    program("other", "true")
    assert "not installed" in gpu_events.measure_dcgm(context, node)["absent"]
    program("dcgmi", f"test \"$*\" = 'diag -r 1 -j' && cat {ROOT}/tests/fixtures/gpu/dcgm-fail.json; exit 226")
    assert gpu_events.judge_dcgm(gpu_events.measure_dcgm(context, node)).status == "fail"
    program("dcgmi", "exec sleep 600")
    assert gpu_events.measure_dcgm(context, node, seconds=0.3) == {"error": "dcgmi: late"}


def test_nvbandwidth_is_called_when_it_is_there(
    context: Context, node: Path, program: Callable[[str, str], Path]
) -> None:
    program("other", "true")
    assert "not installed" in fabric.measure_bandwidth(context, node)["absent"]
    program("nvbandwidth", f"echo running; cat {ROOT}/tests/fixtures/fabric/nvbandwidth.json")
    measured = fabric.measure_bandwidth(context, node)
    assert measured["measured"] == {
        "host_to_device_memcpy_ce": pytest.approx(55.65),
        "device_to_host_memcpy_ce": 56.0,
        "device_to_device_memcpy_read_ce": 387.0,
    }


def test_nccl_tests_are_called_or_their_report_is_read(
    context: Context, node: Path, program: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    program("other", "true")
    monkeypatch.setattr(nvml, "snapshot", lambda root: {"gpus": [{}, {}]})
    assert "not installed" in nccl_runs.measure_bandwidth(context, node)["absent"]
    body = f'while [ "$1" != -J ]; do last="$1"; shift; done; cp {ROOT}/tests/fixtures/nccl/all_reduce.json "$2"'
    program("all_reduce_perf", body.replace("cp ", "/bin/cp "))
    assert nccl_runs.measure_bandwidth(context, node)["measured"] == {"all_reduce_perf": 244.6}
    program("all_reduce_perf", "echo 'Test NCCL failure'; exit 3")
    assert "Test NCCL failure" in nccl_runs.measure_bandwidth(context, node)["error"]
    monkeypatch.setenv("TRACKBED_NCCL_TESTS", str(ROOT / "tests/fixtures/nccl/wrong.json"))
    assert nccl_runs.judge_bandwidth(nccl_runs.measure_bandwidth(context, node)).status == "fail"
    monkeypatch.setenv("TRACKBED_NCCL_TESTS", "none.json")
    assert nccl_runs.measure_bandwidth(context, node) == {"absent": "there is no none.json"}


def test_a_report_of_nccl_tests_keeps_no_environment() -> None:
    text = fixture("nccl/all_reduce.json").replace('"env": []', '"env": ["HF_TOKEN=hf_secret"]')
    assert "secret" not in json.dumps(nccl_runs.tests(text))


def test_gdrcopys_self_test_under_a_deadline(context: Context, node: Path, program: Callable[[str, str], Path]) -> None:
    program("other", "true")
    assert "not installed" in gdrcopy.measure_sanity(context, node)["absent"]
    program("sanity", "echo 'Total: 3, Passed: 3, Failed: 0, Waived: 0'")
    assert gdrcopy.judge_sanity(gdrcopy.measure_sanity(context, node)).status == "pass"
    program("gdrcopy_sanity", "exec sleep 600")
    assert gdrcopy.measure_sanity(context, node, seconds=0.3) == {"late": 0.3}


def test_plans_are_asked_of_trtexec(
    context: Context, program: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKBED_TENSORRT_PLANS", os.pathsep.join(["a.plan", "b.plan"]))
    program("other", "true")
    assert tensorrt.measure_plans(context) == {"absent": "no trtexec here"}
    program("trtexec", f'[ "$1" = --loadEngine=a.plan ] && /bin/cat {ROOT}/tests/fixtures/tensorrt/trtexec.txt')
    measured = tensorrt.measure_plans(context)
    assert measured["plans"] == {"a.plan": "10.3.0.26", "b.plan": ""}
    assert tensorrt.judge_plans(measured).status == "fail"


def test_imex_and_the_fabric_manager_are_asked(
    context: Context, node: Path, program: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = {"state": 3, "status": 0, "domain": True}
    monkeypatch.setattr(nvml, "snapshot", lambda root: {"gpus": [{"fabric": done}, {"fabric": None}]})
    program("nvidia-imex-ctl", "echo READY")
    program("nv-fabricmanager", "echo 'Fabric Manager version is : 580.95.05'")
    write(node / "dev/nvidia-caps-imex-channels/channel0", "")
    assert fabric.measure_imex(context, node) == {"domain": True, "channels": 1, "state": "READY"}
    for name in ("dev/nvidia-nvswitch0", "dev/nvidia-nvswitchctl", "proc/812/comm", "proc/1/comm"):
        write(node / name, "systemd\n" if name == "proc/1/comm" else "nv-fabricmanage\n")
    measured = fabric.measure_manager(context, node)
    assert measured["states"] == [done, None]
    expected = (1, True, True, "580.95.05")
    assert (measured["switches"], measured["running"], measured["visible"], measured["version"]) == expected
    assert fabric.judge_manager(measured).status == "pass"


# --- the kernel log ---


def test_the_age_of_a_line_comes_from_the_uptime() -> None:
    lines = kernel_log.parse(["[ 100.5] a", "<6>[ 200.0] b", "Nov 30 10:00:00 node kernel: c", "[ 300.0] d"], 200.0)
    assert [(line.age, line.text) for line in lines] == [
        (99.5, "a"), (0.0, "b"), (None, "Nov 30 10:00:00 node kernel: c"), (0.0, "d"),
    ]  # fmt: skip
    assert kernel_log.newest(lines, 99.5) == ["a", "b", lines[2].text, "d"]
    assert kernel_log.newest(lines, 99.4) == ["b", lines[2].text, "d"]
    assert [line.age for line in kernel_log.parse(["[ 1.0] a"], None)] == [None]


def test_only_new_faults_count(context: Context, node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKBED_KERNEL_LOG", str(ROOT / "tests/fixtures/gpu/dmesg-xid79.txt"))
    write(node / "proc/uptime", "9950.00 1.00\n")
    outcome = gpu_events.judge_xid(gpu_events.measure_xid(context, node))
    assert outcome.status == "fail"
    assert "0000:43:00" not in outcome.observed  # its line is older than two hours
    write(node / "proc/uptime", "99999.00 1.00\n")
    assert gpu_events.judge_xid(gpu_events.measure_xid(context, node)).observed == "no Xid"
    monkeypatch.setenv("TRACKBED_KERNEL_LOG", str(node / "none"))
    assert "CAP_SYSLOG" in gpu_events.measure_xid(context, node)["absent"]


def test_the_kernels_own_log_is_read_where_it_may_be() -> None:
    lines = kernel_log.read()
    if lines is None:
        assert subprocess.run(["dmesg"], capture_output=True, check=False).returncode != 0
    else:
        assert all(line.age is None or line.age >= 0 for line in lines)


# --- PCIe ---


def config(control: int, *, before: bool = True) -> bytes:
    """A bridge's configuration space with Access Control Services, behind another capability or first."""
    space = bytearray(4096)
    start = 0x148 if before else 0x100
    if before:
        struct.pack_into("<I", space, 0x100, (start << 20) | (1 << 16) | 0x0001)
    struct.pack_into("<IHH", space, start, (1 << 16) | 0x000D, 0x5F, control)
    return bytes(space)


@pytest.mark.parametrize(
    ("space", "redirected"),
    [
        (config(0x1D), True),
        (config(0x04, before=False), True),
        (config(0x08), True),
        (config(0x11), False),
        (config(0x00), False),
        (config(0x1D)[:64], False),
        (config(0x1D)[:0x14A], False),
        (b"", False),
        (b"\xff" * 4096, False),
    ],
)
def test_access_control_is_read_from_configuration_space(space: bytes, redirected: bool) -> None:
    assert fabric_pci.redirects(space) is redirected


def test_capabilities_that_go_round_in_a_circle_end() -> None:
    space = bytearray(4096)
    struct.pack_into("<I", space, 0x100, (0x100 << 20) | 0x0001)
    assert fabric_pci.redirects(bytes(space)) is False


def test_the_way_between_gpus_is_read_from_sysfs(context: Context, node: Path) -> None:
    measured = fabric_pci.measure_acs(context, node)
    assert measured == {"gpus": 2, "virtual": False, "iommu": 1, "translating": False, "bridges": []}
    (node / "sys/bus/pci/devices/0000:1a:00.0/config").write_bytes(config(0x1D))
    write(node / "sys/kernel/iommu_groups/7/type", "DMA-FQ\n")
    measured = fabric_pci.measure_acs(context, node)
    assert (measured["translating"], measured["bridges"]) == (True, ["0000:1a:00.0"])
    write(node / "proc/cpuinfo", "flags : fpu hypervisor\n")
    assert fabric_pci.measure_acs(context, node)["virtual"] is True


def test_the_processor_of_gpus_and_nics_is_read_from_sysfs(context: Context, node: Path) -> None:
    measured = fabric_pci.measure_topology(context, node)
    assert measured["gpus"] == {"0000:1b:00.0": "0", "0000:a3:00.0": "1"}
    assert fabric_pci.judge_topology(measured).status == "pass"
    shutil.rmtree(node / "sys/class/infiniband/mlx5_1")
    assert fabric_pci.judge_topology(fabric_pci.measure_topology(context, node)).status == "warn"


# --- RDMA ---


def test_an_infiniband_node_is_read_from_sysfs(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tree("rdma/ib.tree", tmp_path)
    write(root / "proc/uptime", "7000.0 1.0\n")
    monkeypatch.setenv("TRACKBED_KERNEL_LOG", str(ROOT / "tests/fixtures/rdma/kern.log"))
    for measure, judge, says in (
        (rdma.measure_devices, rdma.judge_devices, "2 RDMA devices"),
        (rdma.measure_ports, rdma.judge_ports, "1 of 2 ports active at 400 Gb/s"),
        (rdma_links.measure_partitions, rdma_links.judge_partitions, "1 ports agree"),
        (rdma_links.measure_flaps, rdma_links.judge_flaps, "1 ports, 2 times down"),
    ):
        outcome = judge(measure(context, root))
        assert (outcome.status, outcome.observed) == ("pass", f"{says}{' in 24 hours' if 'times' in says else ''}")


def test_a_roce_node_is_read_from_sysfs(context: Context, tmp_path: Path) -> None:
    root = tree("rdma/roce.tree", tmp_path)
    measured = rdma_links.measure_partitions(context, root)
    assert measured["mlx5_0/1"]["mtu"] == "9000"
    assert rdma_links.judge_partitions(measured).status == "pass"
    assert rdma.judge_devices(rdma.measure_devices(context, root)).status == "warn"
    write(root / "sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN\n")
    assert rdma_links.measure_partitions(context, root) == {"absent": "no RDMA port is in use"}


def test_counters_that_grow_are_seen(context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tree("rdma/ib.tree", tmp_path)
    counter = root / "sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error"
    monkeypatch.setattr(rdma_links.time, "sleep", lambda seconds: counter.write_text("9\n"))
    outcome = rdma_links.judge_errors(rdma_links.measure_errors(context, root))
    assert (outcome.status, outcome.observed) == ("warn", "mlx5_0/1 symbol_error +9")
    assert rdma_links.measure_errors(context, tmp_path / "none") == {"absent": shared.NO_RDMA}


def test_a_loaded_peermem_is_no_proof(context: Context, node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "libcuda", lambda root: {"code": 0, "dma_buf": False})
    write(node / "proc/modules", "nvidia_peermem 16384 0 - Live 0x0\n")
    assert rdma.judge_gpudirect(rdma.measure_gpudirect(context, node)).observed.endswith(
        "not registered with the RDMA core"
    )
    write(node / "sys/kernel/mm/memory_peers/nv_mem/version", "1.1\n")
    assert "only nvidia_peermem" in rdma.judge_gpudirect(rdma.measure_gpudirect(context, node)).observed
    monkeypatch.setattr(nvml, "libcuda", lambda root: {"code": 0, "dma_buf": True})
    assert rdma.judge_gpudirect(rdma.measure_gpudirect(context, node)).status == "pass"
    shutil.rmtree(node / "sys/class/infiniband")
    assert rdma.measure_gpudirect(context, node) == {"absent": shared.NO_RDMA}


# --- libraries ---


def in_child(source: str, **environment: str) -> Any:
    """What a fresh interpreter prints as JSON: a library path counts only from a process's start."""
    path = {"PYTHONPATH": str(ROOT / "platform"), **environment}
    done = subprocess.run(
        [sys.executable, "-c", source], env={**os.environ, **path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


MEASURE = (
    "import json, pathlib\n"
    "from trackbed.validate import Context\nfrom trackbed.validate.hardware import cuda_libraries as libraries\n"
    "found = libraries.measure_loaded_libraries(Context(output=pathlib.Path('.')))\n"
    "print(json.dumps([found, vars(libraries.judge_loaded_libraries(found))]))"
)


@pytest.fixture(scope="module")
def untouched() -> tuple[dict[str, Any], dict[str, Any]]:
    """What is measured and judged with no LD_LIBRARY_PATH: importing torch takes seconds, so once."""
    found, outcome = in_child(MEASURE, LD_LIBRARY_PATH="")
    return found, outcome


def test_the_environments_own_libraries_are_loaded_for_real(untouched: tuple[dict[str, Any], dict[str, Any]]) -> None:
    found, outcome = untouched
    assert outcome["status"] == "pass", outcome
    assert any("libstdc++" in path for path in found["loaded"])


def test_a_library_ahead_of_the_environments_own_fails_for_real(
    tmp_path: Path, untouched: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    """The remedy takes the variable away, which is what `untouched` is: it passes."""
    own = untouched[0]["own"].get("libgomp.so.1")
    if own is None:
        pytest.skip("this torch brings no libgomp of its own")
    shutil.copy(own, tmp_path / "libgomp.so.1")
    _, outcome = in_child(MEASURE, LD_LIBRARY_PATH=str(tmp_path))
    said = f"{tmp_path}/libgomp.so.1 is loaded in place of the environment's own"
    assert (outcome["status"], outcome["observed"]) == ("fail", said)
    assert outcome["evidence"] == own
    assert "unset LD_LIBRARY_PATH" in outcome["remedy"]
    assert untouched[1]["status"] == "pass"


def test_a_standard_library_of_c_plus_plus_from_elsewhere_warns_for_real(
    tmp_path: Path, untouched: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    system = next(path for path in untouched[0]["loaded"] if "libstdc++" in path)
    shutil.copy(system, tmp_path / "libstdc++.so.6")
    _, outcome = in_child(MEASURE, LD_LIBRARY_PATH=str(tmp_path))
    assert outcome["status"] == "warn"
    assert f"{tmp_path}/libstdc++.so.6 is loaded from outside" in outcome["observed"]


def test_a_folder_that_would_shadow_a_wheels_library_is_named(tmp_path: Path) -> None:
    own = {"libnccl.so.2": str(write(tmp_path / "own/libnccl.so.2", "a"))}
    write(tmp_path / "other/libnccl.so.2", "b")
    (tmp_path / "same").mkdir()
    (tmp_path / "same/libnccl.so.2").symlink_to(own["libnccl.so.2"])
    folders = [str(tmp_path / name) for name in ("other", "same", "none")]
    assert cuda_libraries.shadowing(folders, own) == [f"{tmp_path}/other/libnccl.so.2"]


def test_the_wheels_libraries_are_found_where_wheels_put_them(tmp_path: Path) -> None:
    for name in (
        "torch/lib/libgomp.so.1",
        "nvidia/nccl/lib/libnccl.so.2",
        "a.libs/libgomp-1a2b.so.1",
        "x/libcudnn.so.9",
    ):
        write(tmp_path / name, "")
    own = cuda_libraries.own_libraries(tmp_path)
    assert sorted(own) == ["libgomp-1a2b.so.1", "libgomp.so.1", "libnccl.so.2"]


def test_torchs_cuda_is_read_without_importing_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    origin = write(tmp_path / "torch/__init__.py", "raise SystemExit('imported')")
    version = write(tmp_path / "torch/version.py", "cuda: Optional[str] = '13.0'\n")
    find = SimpleNamespace(find_spec=lambda name: SimpleNamespace(origin=str(origin)))
    monkeypatch.setattr(cuda_libraries.importlib, "util", find)
    assert cuda_libraries.torch_cuda() == "13.0"
    version.write_text("cuda: Optional[str] = None\n", "utf-8")
    assert cuda_libraries.torch_cuda() == ""
    monkeypatch.setattr(find, "find_spec", lambda name: None)
    assert cuda_libraries.torch_cuda() is None


def test_the_compiler_of_cuda_home_is_asked(context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_libraries, "torch_cuda", lambda: "13.0")
    nvcc = write(tmp_path / "cuda/bin/nvcc", "#!/bin/sh\necho 'Cuda compilation tools, release 12.1, V12.1.105'\n")
    nvcc.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    measured = cuda_libraries.measure_toolkit(context)
    assert (measured["nvcc"], measured["home_exists"]) == ("12.1", True)
    assert cuda_libraries.judge_toolkit(measured).status == "fail"
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "gone"))
    assert "does not exist" in cuda_libraries.judge_toolkit(cuda_libraries.measure_toolkit(context)).observed


def test_nccls_log_is_the_newest_that_its_variable_names(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_DEBUG_FILE", str(tmp_path / "nccl-%h-%p.log"))
    assert "there is no NCCL log" in nccl_runs.measure_log(context, tmp_path)["absent"]
    for index, name in enumerate(("ib.log", "nogdr.log")):
        path = write(tmp_path / f"nccl-node1-{index}.log", fixture(f"nccl/{name}"))
        os.utime(path, (index, index))
    tree("rdma/ib.tree", tmp_path)
    measured = nccl_runs.measure_log(context, tmp_path)
    assert measured["disabled"] == ["HCA 0 'mlx5_0'"]
    assert measured["routes"] == {"NET/IB/0": 1}
    assert nccl_runs.judge_log(measured).status == "warn"
    assert nccl_runs.parse_log(fixture("nccl/ib.log"))["routes"] == {"NET/IB/0/GDRDMA": 2}


def test_gdrcopys_driver_is_read_where_the_kernel_shows_it(
    context: Context, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gdrcopy, "library", lambda context: {"version": "2.5", "error": ""})
    monkeypatch.setattr(nvml, "libcuda", lambda root: {"cuda": "13.0"})
    write(node / "proc/modules", "gdrdrv 24576 0 - Live 0x0\n")
    write(node / "proc/devices", "Character devices:\n  1 mem\n236 gdrdrv\n")
    write(node / "sys/module/gdrdrv/version", "2.5.1\n")
    measured = gdrcopy.measure_driver(context, node)
    assert (measured["loaded"], measured["major"], measured["node"]) == (True, 236, None)
    write(node / "dev/gdrdrv", "no device")
    assert gdrcopy.measure_driver(context, node)["node"] == -1
    assert gdrcopy._major(Path("/dev/null")) == 1
    assert gdrcopy.judge_match(gdrcopy.measure_match(context, node)).status == "pass"
    monkeypatch.setattr(gdrcopy, "library", lambda context: shared.absent("not installed"))
    assert gdrcopy.measure_driver(context, node) == {"absent": "not installed"}


def test_a_declared_gdrcopy_that_is_not_there_fails(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    if gdrcopy.library(context).get("absent") is None:
        pytest.skip("this machine has GDRCopy")
    monkeypatch.setenv("GDRCOPY_VERSION", "2.5.1")
    assert gdrcopy.judge_library(gdrcopy.library(context)).status == "fail"


def test_gdrcopys_own_version_function_is_called(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library of that name, compiled here, that says 2.5 as the real one does."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler on this machine")
    source = write(tmp_path / "gdr.c", "void gdr_runtime_get_version(int *a, int *b) { *a = 2; *b = 5; }\n")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", tmp_path / "libgdrapi.so.2", source], check=True)
    source_code = (
        "import json, pathlib\nfrom trackbed.validate import Context\nfrom trackbed.validate.hardware import gdrcopy\n"
        "found = gdrcopy.library(Context(output=pathlib.Path('.'), release='26.11'))\n"
        "print(json.dumps([found, gdrcopy.judge_library(found).status]))"
    )
    found, status = in_child(source_code, LD_LIBRARY_PATH=str(tmp_path))
    assert (found["version"], status) == ("2.5", "pass")


def test_a_tensorrt_that_kills_its_process_is_a_failure(tmp_path: Path) -> None:
    """The rule that nothing of TensorRT is loaded in the checks' own process."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler on this machine")
    source = write(tmp_path / "trt.c", "#include <stdlib.h>\nint getInferLibVersion(void) { abort(); }\n")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", tmp_path / "libnvinfer.so.11", source], check=True)
    source_code = (
        "import json, pathlib\nfrom trackbed.validate import Context\nfrom trackbed.validate.hardware import tensorrt\n"
        "found = tensorrt.measure_library(Context(output=pathlib.Path('.'), release='26.11'))\n"
        "print(json.dumps([found, vars(tensorrt.judge_library(found))]))"
    )
    _, outcome = in_child(source_code, LD_LIBRARY_PATH=str(tmp_path))
    assert outcome["status"] == "fail"
    assert "SIGABRT" in outcome["observed"]


def test_torch_tensorrt_is_imported_in_a_child(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tensorrt.measure_torch(context) == {"absent": "Torch-TensorRT is not installed"}
    write(tmp_path / "torch_tensorrt/__init__.py", "raise OSError('libtorchtrt.so: undefined symbol: _ZN3c10')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(tensorrt, "_installed", {"torch-tensorrt": "2.12.0", "torch": "2.13.0"}.__getitem__)
    outcome = tensorrt.judge_torch(tensorrt.measure_torch(context))
    assert outcome.status == "fail"
    assert "undefined symbol" in outcome.observed


def test_a_picture_is_decoded_the_same_by_two_calls_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU's half is out of reach here: the CPU stands in for it, and a changed picture must be seen."""
    real = gpu_decode.decode
    monkeypatch.setattr(gpu_decode, "decode", lambda encoded, device: real(encoded, "cpu"))
    assert gpu_decode.difference(video=False) == {"largest": 0.0, "video_error": ""}
    monkeypatch.setattr(gpu_decode, "decode", lambda encoded, device: real(encoded, "cpu") // (1 + (device == "mixed")))
    assert gpu_events.judge_dali(gpu_decode.difference(video=False)).status == "fail"
    assert "libnone" in gpu_decode.load_error("libnone.so.1")
    assert gpu_decode.load_error("libc.so.6") == ""

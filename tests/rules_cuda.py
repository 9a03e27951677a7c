"""The rules' table of cuda.*: check, what was measured, status, what it says."""

from __future__ import annotations

import re
from typing import Any

from hardware_fixtures import fixture, snapshot
from trackbed.validate.hardware.cuda_libraries import loaded

OWN = {
    "libnccl.so.2": "/opt/env/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2",
    "libcudnn.so.9": "/opt/env/lib/python3.11/site-packages/nvidia/cudnn/lib/libcudnn.so.9",
}


def driver(**changes: Any) -> dict[str, Any]:
    base = {
        "driver": "580.95.05",
        "minimum": "580",
        "cuda": "13.0",
        "driver_cuda": "13.0",
        "compat": False,
        "require": "",
    }
    return {**base, **changes}


def start(**changes: Any) -> dict[str, Any]:
    path = "/usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05"
    return {"path": path, "code": 0, "cuda": "13.0", "dma_buf": True, "driver": "580.95.05", **changes}


def visible(**changes: Any) -> dict[str, Any]:
    base = {"visible": "", "capabilities": "", "devices": 2, "driver": "580.95.05", "variant": "gpu", "expect": {}}
    return {**base, **changes}


def module(**changes: Any) -> dict[str, Any]:
    return {"nouveau": False, "version": "580.95.05", "flavour": "open", "expect": {}, **changes}


def built(*architectures: str, capabilities: Any = ((9, 0),)) -> dict[str, Any]:
    return {"capabilities": [list(each) for each in capabilities], "architectures": list(architectures)}


def toolkit(**changes: Any) -> dict[str, Any]:
    return {"torch": "13.0", "home": "", "home_exists": True, "nvcc": "13.0", **changes}


def libraries(maps: str = "cuda/maps-gpu.txt", **changes: Any) -> dict[str, Any]:
    base = {"loaded": loaded(fixture(maps)), "own": OWN, "prefixes": ["/opt/env"], "shadowing": []}
    return {**base, **changes}


def cudnn(**changes: Any) -> dict[str, Any]:
    return {"compiled": "9.20.0", "runtime": "9.20.0", "pin": "9.20.0.48", **changes}


EXPECT = {"gpu": {"count": 2}}
ARCHITECTURES = ("sm_80", "sm_86", "sm_90", "compute_90")
RULES: list[tuple[str, Any, str, str]] = [
    ("cuda.driver", driver(), "pass", "driver 580.95.05"),
    ("cuda.driver", driver(driver="580"), "pass", "580"),
    ("cuda.driver", driver(driver="579.99"), "fail", "too old"),
    ("cuda.driver", driver(driver="535.104.05", minimum="580", cuda="12.9"), "warn", "within the major version"),
    ("cuda.driver", driver(driver="525.60.13", cuda="12.1.1", minimum="530.30.02"), "warn", "525.60.13 is older"),
    ("cuda.driver", driver(driver="525.60.12", cuda="12.1.1", minimum="530.30.02"), "fail", "525.60.12 is too old"),
    ("cuda.driver", driver(driver="535.104.05", compat=True), "warn", "compat library"),
    ("cuda.driver", driver(driver="590.1", cuda="99.0", minimum="600"), "fail", "too old"),
    ("cuda.driver", driver(require="cuda>=12.8 brand=tesla,driver>=535,driver<536"), "pass", "580"),
    ("cuda.driver", driver(require="cuda>=13.1"), "fail", "cuda>=13.1"),
    ("cuda.driver", driver(require="cuda<13.0 driver<580"), "fail", "cuda<13.0"),
    ("cuda.driver", driver(require="driver>=580.95.05,cuda=13.0"), "pass", "580"),
    ("cuda.driver", driver(require="driver<=580.95.05"), "pass", "580"),
    ("cuda.driver", driver(require="driver>580.95.05"), "fail", "driver>580.95.05"),
    ("cuda.driver", driver(require="brand=tesla"), "fail", "brand=tesla"),
    (
        "cuda.driver",
        driver(driver="535.104.05", require="cuda>=13.0", driver_cuda="12.2", compat=True),
        "warn",
        "compat",
    ),
    ("cuda.driver", driver(driver="new"), "error", "makes no sense"),
    ("cuda.driver", driver(minimum=None), "error", "makes no sense"),
    ("cuda.driver", driver(cuda=""), "error", "makes no sense"),
    ("cuda.driver", None, "error", "could not be read"),
    ("cuda.libcuda", start(), "pass", "libcuda.so.580.95.05 starts"),
    (
        "cuda.libcuda",
        start(path="/usr/local/cuda/compat/libcuda.so.575.1", code=803),
        "fail",
        "Error 803: system has uns",
    ),
    ("cuda.libcuda", start(code=804), "fail", "forward compatibility was attempted on non supported HW"),
    ("cuda.libcuda", start(code=100), "fail", "no CUDA-capable device is detected"),
    ("cuda.libcuda", start(code=999), "fail", "Error 999: unknown error"),
    ("cuda.libcuda", start(code=46), "fail", "Error 46"),
    ("cuda.libcuda", {"late": 10.0, "driver": "580"}, "fail", "did not answer within 10.0 s"),
    ("cuda.libcuda", {"error": "libcuda.so.1: cannot open shared object file", "driver": ""}, "fail", "cannot open"),
    ("cuda.libcuda", start(code="zero"), "error", "makes no sense"),
    ("cuda.libcuda", start(code=True), "error", "makes no sense"),
    ("cuda.libcuda", start(path=""), "error", "makes no sense"),
    ("cuda.libcuda", None, "error", "could not be read"),
    ("cuda.driver-library", {"kernel": "580.95.05", "libraries": ["580.95.05"]}, "pass", "both are 580.95.05"),
    ("cuda.driver-library", {"kernel": "580.95.05", "libraries": ["580.105.08"]}, "fail", "version mismatch"),
    (
        "cuda.driver-library",
        {"kernel": "580.95.05", "libraries": ["580.105.08", "580.95.05"]},
        "fail",
        "580.105.08, 580",
    ),
    ("cuda.driver-library", {"kernel": "580.95.05", "libraries": "580.95.05"}, "error", "makes no sense"),
    ("cuda.driver-library", {"libraries": []}, "error", "makes no sense"),
    ("cuda.driver-library", None, "error", "could not be read"),
    ("cuda.nvml", snapshot(), "pass", "NVML of driver 580.95.05 starts"),
    ("cuda.nvml", {"error": "Unknown Error", "code": 999}, "fail", "Failed to initialize NVML: Unknown Error"),
    ("cuda.nvml", {"error": None}, "error", "makes no sense"),
    ("cuda.nvml", {"gpus": "two"}, "error", "makes no sense"),
    ("cuda.nvml", None, "error", "could not be read"),
    ("cuda.visible-devices", visible(), "pass", "2 GPU devices"),
    ("cuda.visible-devices", visible(capabilities="all"), "pass", "2 GPU devices"),
    ("cuda.visible-devices", visible(capabilities="compute,utility"), "pass", "2 GPU devices"),
    ("cuda.visible-devices", visible(capabilities="utility"), "fail", "lacks compute"),
    ("cuda.visible-devices", visible(capabilities="compute,video"), "fail", "lacks utility"),
    (
        "cuda.visible-devices",
        visible(devices=0, visible="void", expect=EXPECT),
        "fail",
        "VISIBLE_DEVICES=void, and this site has 2",
    ),
    ("cuda.visible-devices", visible(devices=0, visible="none", expect=EXPECT), "fail", "VISIBLE_DEVICES=none"),
    ("cuda.visible-devices", visible(devices=0, visible="none"), "warn", "NVIDIA_VISIBLE_DEVICES=none: it would train"),
    ("cuda.visible-devices", visible(devices=0), "warn", "no /dev/nvidia*: it would train on CPUs"),
    ("cuda.visible-devices", visible(devices=0, expect=EXPECT), "warn", "no /dev/nvidia*"),
    ("cuda.visible-devices", visible(devices=0, visible="none", expect={"gpu": {"count": 1}}), "fail", "has 1 GPUs"),
    ("cuda.visible-devices", visible(devices=-1), "error", "makes no sense"),
    ("cuda.visible-devices", visible(devices="two"), "error", "makes no sense"),
    ("cuda.visible-devices", visible(visible=None), "error", "makes no sense"),
    ("cuda.visible-devices", visible(expect={"gpu": {"count": "two"}}), "error", "makes no sense"),
    ("cuda.visible-devices", None, "error", "could not be read"),
    ("cuda.environment", {}, "pass", "none is set"),
    ("cuda.environment", {"CUDA_LAUNCH_BLOCKING": "1"}, "warn", "CUDA_LAUNCH_BLOCKING=1"),
    (
        "cuda.environment",
        {"CUDA_INJECTION64_PATH": "/opt/a.so", "CUDA_PROFILE": "1"},
        "warn",
        "/opt/a.so, CUDA_PROFILE=1",
    ),
    ("cuda.environment", {"HOME": "/root"}, "error", "makes no sense"),
    ("cuda.environment", "CUDA_PROFILE=1", "error", "makes no sense"),
    ("cuda.environment", None, "error", "could not be read"),
    ("cuda.kernel-module", module(), "pass", "open kernel module 580.95.05"),
    ("cuda.kernel-module", module(flavour="proprietary"), "pass", "proprietary kernel module"),
    ("cuda.kernel-module", module(nouveau=True), "fail", "nouveau is loaded"),
    ("cuda.kernel-module", module(nouveau=True, version="", flavour="", expect=EXPECT), "fail", "nouveau is loaded"),
    ("cuda.kernel-module", module(nouveau="yes"), "error", "makes no sense"),
    ("cuda.kernel-module", module(flavour="closed"), "error", "makes no sense"),
    ("cuda.kernel-module", module(version=None), "error", "makes no sense"),
    ("cuda.kernel-module", None, "error", "could not be read"),
    ("cuda.architecture", built(*ARCHITECTURES), "pass", "sm_90"),
    ("cuda.architecture", built("sm_80", capabilities=[(8, 6)]), "pass", "sm_86"),
    ("cuda.architecture", built("sm_86", capabilities=[(8, 0)]), "fail", "sm_80 is not compatible"),
    ("cuda.architecture", built(*ARCHITECTURES, capabilities=[(9, 0), (12, 0)]), "warn", "sm_120 only by PTX"),
    ("cuda.architecture", built("sm_80", "sm_90", capabilities=[(12, 0)]), "fail", "no kernel image is available"),
    ("cuda.architecture", built("sm_90a", capabilities=[(9, 0)]), "pass", "sm_90"),
    ("cuda.architecture", built("sm_100a", capabilities=[(10, 3)]), "fail", "sm_103"),
    ("cuda.architecture", built("sm_100f", capabilities=[(10, 3)]), "pass", "sm_103"),
    ("cuda.architecture", built("compute_120", capabilities=[(9, 0)]), "fail", "sm_90"),
    ("cuda.architecture", built("compute_90", capabilities=[(9, 0)]), "warn", "sm_90 only by PTX"),
    ("cuda.architecture", built("sm_x", "9.0", capabilities=[(9, 0)]), "fail", "sm_90"),
    ("cuda.architecture", built(), "error", "makes no sense"),
    ("cuda.architecture", {"capabilities": [], "architectures": ["sm_90"]}, "error", "makes no sense"),
    ("cuda.architecture", {"capabilities": ["nine"], "architectures": ["sm_90"]}, "error", "makes no sense"),
    ("cuda.architecture", None, "error", "could not be read"),
    ("cuda.toolkit", toolkit(), "pass", "nvcc 13.0"),
    ("cuda.toolkit", toolkit(nvcc="13.2"), "warn", "nvcc 13.2"),
    ("cuda.toolkit", toolkit(nvcc="12.1", torch="11.8"), "fail", "nvcc 12.1, torch is built with CUDA 11.8"),
    (
        "cuda.toolkit",
        toolkit(home="/opt/cuda", home_exists=False, nvcc=""),
        "fail",
        "CUDA_HOME=/opt/cuda does not exist",
    ),
    ("cuda.toolkit", toolkit(home="/opt/cuda"), "pass", "nvcc 13.0"),
    ("cuda.toolkit", toolkit(home_exists=False), "pass", "nvcc 13.0"),
    ("cuda.toolkit", toolkit(torch=None), "error", "makes no sense"),
    ("cuda.toolkit", toolkit(nvcc="new"), "error", "makes no sense"),
    ("cuda.toolkit", toolkit(nvcc=None), "error", "makes no sense"),
    ("cuda.toolkit", None, "error", "could not be read"),
    ("cuda.loaded-libraries", libraries(), "pass", "3 watched libraries"),
    (
        "cuda.loaded-libraries",
        libraries("cuda/maps-shadowed.txt"),
        "fail",
        "/opt/hpcx/nccl/lib/libnccl.so.2.18.3 is loaded in p",
    ),
    ("cuda.loaded-libraries", libraries("cuda/maps-shadowed.txt", own={}), "warn", "from outside the environment"),
    (
        "cuda.loaded-libraries",
        libraries(shadowing=["/opt/hpcx/libnccl.so.2"]),
        "warn",
        "is ahead of the environment's own",
    ),
    ("cuda.loaded-libraries", libraries(loaded=[]), "error", "makes no sense"),
    ("cuda.loaded-libraries", libraries(own=None), "error", "makes no sense"),
    ("cuda.loaded-libraries", libraries(prefixes=[]), "error", "makes no sense"),
    ("cuda.loaded-libraries", None, "error", "could not be read"),
    ("cuda.cudnn", cudnn(), "pass", "cuDNN 9.20.0"),
    ("cuda.cudnn", cudnn(runtime="9.21.1"), "warn", "9.21.1 is loaded"),
    ("cuda.cudnn", cudnn(compiled="9.13.0", runtime="9.10.2", pin="9.13.0"), "fail", "against 9.13.0, found 9.10.2"),
    ("cuda.cudnn", cudnn(runtime="10.0.0"), "fail", "found 10.0.0"),
    ("cuda.cudnn", cudnn(runtime="None"), "error", "makes no sense"),
    ("cuda.cudnn", cudnn(pin=""), "error", "makes no sense"),
    ("cuda.cudnn", None, "error", "could not be read"),
]
SKIPS: list[tuple[str, Any, str]] = [
    ("cuda.libcuda", start(code=802), "fabric.manager says why"),
    ("cuda.driver-library", {"kernel": "580.95.05", "libraries": []}, "libnvidia-ml tells no version"),
    ("cuda.driver-library", {"kernel": "", "libraries": ["580.95.05"]}, "the kernel module tells no version"),
    ("cuda.nvml", {"late": 10.0}, "gpu.answers says so"),
    ("cuda.nvml", {"error": "Driver/library version mismatch", "code": 18}, "cuda.driver-library says so"),
    ("cuda.visible-devices", visible(devices=0, driver="", variant="cpu"), "no NVIDIA driver"),
    ("cuda.visible-devices", visible(devices=0, variant="cpu"), "CPU image"),
    ("cuda.visible-devices", visible(devices=0, driver=""), "no NVIDIA driver"),
    ("cuda.kernel-module", module(version="", flavour=""), "no NVIDIA driver"),
    ("cuda.kernel-module", module(nouveau=True, version="", flavour=""), "nouveau drives"),
    ("cuda.toolkit", toolkit(nvcc=""), "no nvcc"),
]

# A skip needs no remedy, which test_rules asks of a row; as texts the mutation test sees them too.
TEXTS: list[tuple[str, Any, str, str]] = [
    *((name, measured, "status", "skip") for name, measured, _ in SKIPS),
    *((name, measured, "observed", re.escape(says)) for name, measured, says in SKIPS),
    ("cuda.libcuda", start(), "evidence", "kernel driver 580.95.05"),
    ("cuda.libcuda", start(driver=""), "evidence", "kernel driver unknown"),
]

"""What the driver says, read once: NVML by nvidia-ml-py, and libcuda's own start, in a child with a deadline.

    snapshot()["gpus"][0]["ecc"]        # NVML; plain values, so that a recorded one can stand in
    libcuda()["code"]                   # which libcuda.so.1 is found, and what cuInit says

`python -m trackbed.validate.hardware.nvml` is the child; it writes {"nvml": ...}, then {"cuda": ...}, a JSON line each.
A value that a GPU does not report is None.
"""

from __future__ import annotations

import ctypes
import functools
import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trackbed.validate.hardware.shared import absent, missing, run

SECONDS = 10.0
LOST = 15  # NVML_ERROR_GPU_IS_LOST
CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED = 124


def snapshot(root: Path = Path("/")) -> dict[str, Any]:
    """NVML's view: {"absent"}, {"late"}, {"error", "code"}, or driver, cuda, seconds and one dictionary a GPU."""
    return _probe(root)["nvml"]


def libcuda(root: Path = Path("/")) -> dict[str, Any]:
    """{"absent"}, {"late"}, {"error"}, or the path, cuInit's code, the CUDA version and dma-buf support."""
    return _probe(root)["cuda"]


@functools.cache
def _probe(root: Path) -> dict[str, dict[str, Any]]:
    why = missing(root)
    if why:
        return {"nvml": absent(why), "cuda": absent(why)}
    return parse(run([sys.executable, "-m", "trackbed.validate.hardware.nvml"], SECONDS).output)


def parse(output: str) -> dict[str, dict[str, Any]]:
    """The child's lines; a part that it did not come to is late."""
    found: dict[str, dict[str, Any]] = {"nvml": {"late": SECONDS}, "cuda": {"late": SECONDS}}
    for line in output.splitlines():
        if line.startswith(('{"nvml"', '{"cuda"')):
            found.update(json.loads(line))
    return found


def read_nvml(nvml: Any) -> dict[str, Any]:
    """Ask NVML; `nvml` is the module pynvml, or one that stands in for it."""
    started = time.monotonic()
    try:
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    except nvml.NVMLError as error:
        return {"error": str(error), "code": error.value}
    version = nvml.nvmlSystemGetCudaDriverVersion_v2()
    gpus = [{"index": index, **_gpu(nvml, handle)} for index, handle in enumerate(handles)]
    return {
        "driver": _text(nvml.nvmlSystemGetDriverVersion()),
        "cuda": f"{version // 1000}.{version % 1000 // 10}",
        "gpus": gpus,
        "seconds": round(time.monotonic() - started, 3),
    }


def _gpu(nvml: Any, handle: Any) -> dict[str, Any]:
    values: dict[str, Any] = {"lost": False}
    for name, read in FIELDS.items():
        try:
            values[name] = read(nvml, handle)
        except nvml.NVMLError as error:
            values[name] = None
            values["lost"] = values["lost"] or error.value == LOST
        except AttributeError:  # an nvidia-ml-py older than the question
            values[name] = None
    return values


def _ecc(nvml: Any, handle: Any) -> dict[str, int]:
    """Errors since the driver was loaded; corrected ones of the SRAM apart, where the GPU tells them apart."""
    corrected, uncorrected = (nvml.nvmlDeviceGetTotalEccErrors(handle, kind, 0) for kind in (0, 1))
    try:
        sram = nvml.nvmlDeviceGetMemoryErrorCounter(handle, 0, 0, nvml.NVML_MEMORY_LOCATION_SRAM)
    except nvml.NVMLError:
        sram = 0
    return {"uncorrected": uncorrected, "corrected": corrected, "corrected_sram": sram}


def _rows(nvml: Any, handle: Any) -> dict[str, int]:
    return dict(
        zip(("corrected", "uncorrected", "pending", "failure"), nvml.nvmlDeviceGetRemappedRows(handle), strict=True)
    )


def _memory(nvml: Any, handle: Any) -> dict[str, int]:
    """Version 2 keeps apart what the driver reserves for itself."""
    found = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    return {"used": found.used, "total": found.total}


def _pcie(nvml: Any, handle: Any) -> dict[str, int]:
    return {
        "gen": nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle),
        "gen_max": nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle),
        "width": nvml.nvmlDeviceGetCurrPcieLinkWidth(handle),
        "width_max": nvml.nvmlDeviceGetMaxPcieLinkWidth(handle),
    }


def _links(nvml: Any, handle: Any) -> dict[str, Any]:
    """NVLinks that are up, all there are, and error counts summed over them."""
    up, errors = [], {"replay": 0, "recovery": 0, "crc": 0}
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            up.append(bool(nvml.nvmlDeviceGetNvLinkState(handle, link)))
        except nvml.NVMLError:
            break
        for kind, name in enumerate(errors):
            try:
                errors[name] += nvml.nvmlDeviceGetNvLinkErrorCounter(handle, link, kind)
            except nvml.NVMLError:
                continue
    return {"up": sum(up), "all": len(up), "errors": errors}


def _fabric(nvml: Any, handle: Any) -> dict[str, Any]:
    info = nvml.c_nvmlGpuFabricInfo_t()
    nvml.nvmlDeviceGetGpuFabricInfo(handle, ctypes.byref(info))
    return {"state": info.state, "status": info.status, "domain": any(bytearray(info.clusterUuid))}


def _recovery(nvml: Any, handle: Any) -> int | None:
    (field,) = nvml.nvmlDeviceGetFieldValues(handle, [nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    return int(field.value.uiVal) if field.nvmlReturn == 0 else None


def _power(nvml: Any, handle: Any) -> dict[str, float]:
    """Watts."""
    limits = (nvml.nvmlDeviceGetEnforcedPowerLimit(handle), nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle))
    return {"limit": limits[0] / 1000, "default": limits[1] / 1000}


FIELDS: dict[str, Callable[[Any, Any], Any]] = {
    "name": lambda nvml, gpu: _text(nvml.nvmlDeviceGetName(gpu)),
    "uuid": lambda nvml, gpu: _text(nvml.nvmlDeviceGetUUID(gpu)),
    "pci": lambda nvml, gpu: _text(nvml.nvmlDeviceGetPciInfo(gpu).busId).lower(),
    "ecc": _ecc,
    "rows": _rows,
    "memory": _memory,
    "processes": lambda nvml, gpu: [each.pid for each in nvml.nvmlDeviceGetComputeRunningProcesses(gpu)],
    "reasons": lambda nvml, gpu: nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu),
    "busy": lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu,
    "temperature": lambda nvml, gpu: {
        "now": nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
        "slowdown": nvml.nvmlDeviceGetTemperatureThreshold(gpu, nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN),
    },
    "power": _power,
    "vbios": lambda nvml, gpu: _text(nvml.nvmlDeviceGetVbiosVersion(gpu)),
    "inforom": lambda nvml, gpu: _text(nvml.nvmlDeviceGetInforomImageVersion(gpu)),
    "gsp": lambda nvml, gpu: _text(nvml.nvmlDeviceGetGspFirmwareVersion(gpu)),
    "recovery": _recovery,
    "mig": lambda nvml, gpu: nvml.nvmlDeviceGetMigMode(gpu)[0],
    "compute_mode": lambda nvml, gpu: nvml.nvmlDeviceGetComputeMode(gpu),
    "persistence": lambda nvml, gpu: nvml.nvmlDeviceGetPersistenceMode(gpu),
    "pcie": _pcie,
    "links": _links,
    "fabric": _fabric,
}


def read_libcuda() -> dict[str, Any]:
    """Start CUDA as any program does: by the first libcuda.so.1 that the loader finds."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return {"error": str(error)}
    match = re.search(r"\S*/libcuda\.so\S*", Path("/proc/self/maps").read_text("utf-8"))
    code, version, device, dma_buf = library.cuInit(0), ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    library.cuDriverGetVersion(ctypes.byref(version))
    if code == 0 and library.cuDeviceGet(ctypes.byref(device), 0) == 0:
        library.cuDeviceGetAttribute(ctypes.byref(dma_buf), CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, device)
    cuda = f"{version.value // 1000}.{version.value % 1000 // 10}"
    return {"path": match[0] if match else "", "code": code, "cuda": cuda, "dma_buf": bool(dma_buf.value)}


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _child() -> None:
    import pynvml

    readers: tuple[tuple[str, Callable[[], Any]], ...] = (("nvml", lambda: read_nvml(pynvml)), ("cuda", read_libcuda))
    for name, read in readers:
        sys.stdout.write(json.dumps({name: read()}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _child()

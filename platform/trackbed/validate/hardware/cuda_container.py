"""cuda.*, the part of the container: what its runtime gave it, and what is set in it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trackbed.release.drift import variant
from trackbed.validate import Context, Outcome, skip, unreadable
from trackbed.validate.hardware import nvml
from trackbed.validate.hardware.shared import GPU_FLAG, NO_DRIVER, cheap, driver, expected, modules, names, not_here

# Left over from profiling and debugging: each slows every kernel down, or lets another library into the process.
DEBUG_VARIABLES = (
    "NSIGHT_CUDA_DEBUGGER",
    "CUDA_INJECTION32_PATH",
    "CUDA_INJECTION64_PATH",
    "CUDA_AUTO_BOOST",
    "CUDA_ENABLE_COREDUMP_ON_EXCEPTION",
    "CUDA_COREDUMP_FILE",
    "CUDA_DEVICE_WAITS_ON_EXCEPTION",
    "CUDA_PROFILE",
    "COMPUTE_PROFILE",
    "OPENCL_PROFILE",
    "CUDA_LAUNCH_BLOCKING",
)


def measure_nvml(context: Context, root: Path = Path("/")) -> dict[str, Any]:
    """NVML's own start, where there are devices."""
    return nvml.snapshot(root)


def judge_nvml(value: Any) -> Outcome:
    """Devices in /dev and no answer: the container lost its right to them."""
    if outcome := not_here("NVML's start", value):
        return outcome
    wanted = "NVML starts where there is /dev/nvidia*"
    if "late" in value:
        return skip("NVML did not answer; gpu.answers says so")
    said = value.get("error")
    if said is None and isinstance(value.get("gpus"), list):
        return Outcome(status="pass", observed=f"NVML of driver {value.get('driver')} starts", expected=wanted)
    if not isinstance(said, str):
        return unreadable("NVML's start", dict(value))
    if "mismatch" in said:
        return skip("Driver/library version mismatch; cuda.driver-library says so")
    return Outcome(
        status="fail",
        observed=f"Failed to initialize NVML: {said}",
        expected=wanted,
        remedy="recreate the container; to keep it from happening after systemctl daemon-reload: CDI "
        "(nvidia-ctk cdi generate), or nvidia-ctk system create-dev-char-symlinks --create-all, or "
        "native.cgroupdriver=cgroupfs in daemon.json",
    )


def measure_visible_devices(context: Context, root: Path = Path("/")) -> dict[str, Any]:
    """What was asked of the container runtime, and what came."""
    version = driver(root)["version"]
    return {
        "visible": os.environ.get("NVIDIA_VISIBLE_DEVICES", ""),
        "capabilities": os.environ.get("NVIDIA_DRIVER_CAPABILITIES", ""),
        "devices": len(names(root / "dev", "nvidia[0-9]*")),
        "driver": version,
        # Looks through every package: only where the answer matters.
        "variant": variant() if version else "",
        "expect": dict(context.expect),
    }


def judge_visible_devices(value: Any) -> Outcome:
    """A GPU image that starts without GPUs trains on CPUs and says nothing."""
    if outcome := not_here("the GPUs of this container", value):
        return outcome
    visible, devices, wants = value.get("visible"), value.get("devices"), (expected(value, "gpu") or {}).get("count", 0)
    if not isinstance(visible, str) or not isinstance(devices, int) or not isinstance(wants, int) or devices < 0:
        return unreadable("the GPUs of this container", dict(value))
    if devices:
        return _capabilities(str(value.get("capabilities") or ""), devices)
    said = f"NVIDIA_VISIBLE_DEVICES={visible}" if visible in ("void", "none") else "no /dev/nvidia*"
    if wants > 0 and visible in ("void", "none"):
        observed = f"{said}, and this site has {wants} GPUs"
        return Outcome(status="fail", observed=observed, expected=f"{wants} GPUs", remedy=GPU_FLAG)
    if value.get("driver") and value.get("variant") == "gpu":
        observed = f"the GPU image on a host with driver {value['driver']}, and {said}: it would train on CPUs"
        return Outcome(status="warn", observed=observed, expected="GPUs in the container", remedy=GPU_FLAG)
    return skip(NO_DRIVER if not value.get("driver") else "the CPU image needs no GPU")


def _capabilities(said: str, devices: int) -> Outcome:
    """An empty variable is a machine, or a runtime that gives all."""
    has = set(filter(None, said.split(",")))
    needs = ["compute", "utility"]
    lacks = [] if not has or "all" in has else [name for name in needs if name not in has]
    wanted = f"NVIDIA_DRIVER_CAPABILITIES with {','.join(needs)}"
    if not lacks:
        return Outcome(status="pass", observed=f"{devices} GPU devices", expected=wanted)
    remedy = f"-e NVIDIA_DRIVER_CAPABILITIES={','.join(needs)}; compose: capabilities [gpu, {', '.join(needs)}]"
    observed = f"NVIDIA_DRIVER_CAPABILITIES={said} lacks {', '.join(lacks)}"
    return Outcome(status="fail", observed=observed, expected=wanted, remedy=remedy)


def measure_environment(context: Context) -> dict[str, str]:
    """The debugging variables that are set."""
    return {name: os.environ[name] for name in DEBUG_VARIABLES if os.environ.get(name, "0") != "0"}


def judge_environment(value: Any) -> Outcome:
    """Only their presence counts; none of them belongs in a training job."""
    if not isinstance(value, Mapping) or set(map(str, value)) - set(DEBUG_VARIABLES):
        return unreadable("the environment", value)
    wanted = "no variable of a profiler or debugger"
    if not value:
        return Outcome(status="pass", observed="none is set", expected=wanted)
    observed = ", ".join(f"{name}={value[name]}" for name in value)
    return Outcome(status="warn", observed=observed, expected=wanted, remedy=f"unset {' '.join(value)}")


def measure_kernel_module(context: Context, root: Path = Path("/")) -> dict[str, Any]:
    """Which kernel module drives the GPU."""
    return {
        "nouveau": "nouveau" in modules(root),
        **driver(root),
        "expect": dict(context.expect),
    }


def judge_kernel_module(value: Any) -> Outcome:
    """nouveau holds the GPU, and NVIDIA's module cannot take it."""
    if outcome := not_here("the kernel's modules", value):
        return outcome
    nouveau, flavour, version = value.get("nouveau"), value.get("flavour"), value.get("version")
    if not isinstance(nouveau, bool) or flavour not in ("", "open", "proprietary") or not isinstance(version, str):
        return unreadable("the kernel's modules", dict(value))
    wanted = "NVIDIA's kernel module, and nouveau not loaded"
    if nouveau and (version or expected(value, "gpu")):
        remedy = "blacklist nouveau (options nouveau modeset=0), rebuild the initramfs, reboot the host"
        return Outcome(status="fail", observed="nouveau is loaded", expected=wanted, remedy=remedy)
    if not version:
        return skip("nouveau drives the GPU of this machine: no CUDA" if nouveau else NO_DRIVER)
    return Outcome(status="pass", observed=f"{flavour} kernel module {version}", expected=wanted)


CHECKS = (
    cheap(
        id="cuda.nvml",
        title="NVML inside the container",
        measure=measure_nvml,
        judge=judge_nvml,
        why="After systemctl daemon-reload on the host, a running container loses its GPUs: `Failed to initialize "
        "NVML: Unknown Error`.",
        rule="Fails when NVML does not start although there is /dev/nvidia*.",
    ),
    cheap(
        id="cuda.visible-devices",
        title="GPUs given to this container",
        measure=measure_visible_devices,
        judge=judge_visible_devices,
        why="Without --gpus the GPU image trains on CPUs and says nothing; without the capability utility there is no "
        "NVML: `NVML Shared Library Not Found`.",
        rule="Fails when the site expects GPUs and NVIDIA_VISIBLE_DEVICES asks for none, or compute or utility is "
        "missing from the capabilities; warns when the GPU image runs without GPUs on a host that has a driver.",
    ),
    cheap(
        id="cuda.environment",
        title="variables of profilers and debuggers",
        measure=measure_environment,
        judge=judge_environment,
        proof="real",
        why="Forgotten after a debugging session, they serialise every kernel (CUDA_LAUNCH_BLOCKING) or load a "
        "profiler into every rank; nothing says so, the job is only slow.",
        rule="Warns when one of them is set to anything but 0.",
    ),
    cheap(
        id="cuda.kernel-module",
        title="the kernel module that drives the GPU",
        measure=measure_kernel_module,
        judge=judge_kernel_module,
        why="With nouveau loaded, NVIDIA's module finds its GPU taken: `No devices were found`.",
        rule="Fails when nouveau is loaded beside NVIDIA's module or where the site has GPUs.",
    ),
)

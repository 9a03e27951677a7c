"""cuda.*, the part in the environment: torch, its toolkit and the libraries that are really loaded."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from trackbed.release.probe import command_version, program_path
from trackbed.validate import Context, Outcome, skip, unreadable
from trackbed.validate.hardware.shared import absent, cheap, missing, not_here, numbers
from trackbed.validate.stack.versions import release_of

CPU_BUILD = "torch is a CPU build"
# What torch loads and what another installation most often brings in its place.
WATCHED = ("libnccl", "libcudnn", "libcublas", "libcudart", "libnvrtc", "libgomp", "libiomp5", "libstdc++")
SYSTEM = ("/lib/", "/lib64/", "/usr/lib/", "/usr/lib64/", "/usr/local/cuda")
SONAME = re.compile(r"lib[\w+.-]+?\.so(?:\.\d+)?")


def torch_cuda() -> str | None:
    """The CUDA that torch is built with, without importing it; empty for a CPU build, None without torch."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.origin:
        return None
    text = (Path(spec.origin).parent / "version.py").read_text("utf-8")
    match = re.search(r"^cuda\b[^=]*=\s*['\"]([\d.]+)['\"]", text, re.MULTILINE)
    return match[1] if match else ""


def _no_cuda_torch() -> str:
    """Why there is nothing of CUDA in torch here; empty where there is."""
    built = torch_cuda()
    return "torch is not installed" if built is None else "" if built else CPU_BUILD


def measure_architecture(context: Context, root: Path = Path("/")) -> dict[str, Any]:
    """Each GPU's compute capability, and what torch has kernels for."""
    why = _no_cuda_torch() or missing(root)
    if why:
        return absent(why)
    import torch

    found = [torch.cuda.get_device_capability(index) for index in range(torch.cuda.device_count())]
    return {"capabilities": [list(each) for each in found], "architectures": torch.cuda.get_arch_list()}


def judge_architecture(value: Any) -> Outcome:
    """Binary code runs on its own major version; PTX is compiled for any newer one, at the first kernel of each run."""
    if outcome := not_here("the GPUs' architecture", value):
        return outcome
    devices, has = value.get("capabilities"), value.get("architectures")
    if not isinstance(devices, list) or not devices or not isinstance(has, list) or not has:
        return unreadable("the GPUs' architecture", dict(value))
    try:
        found = {(int(major), int(minor)) for major, minor in devices}
    except (TypeError, ValueError):
        return unreadable("the GPUs' architecture", dict(value))
    how = {each: _code(each, has) for each in sorted(found)}
    wanted, evidence = "kernels for every GPU here", f"torch has {', '.join(map(str, has))}"
    remedy = "use a release whose torch has them; for your own ops set TORCH_CUDA_ARCH_LIST and build again"
    named = {kind: ", ".join(f"sm_{a}{b}" for (a, b), by in how.items() if by == kind) for kind in ("", "ptx")}
    if named[""]:
        observed = f"{named['']} is not compatible with this torch: no kernel image is available"
        return Outcome(status="fail", observed=observed, expected=wanted, evidence=evidence, remedy=remedy)
    if named["ptx"]:
        observed = f"{named['ptx']} only by PTX: every run compiles its kernels first"
        return Outcome(status="warn", observed=observed, expected=wanted, evidence=evidence, remedy=remedy)
    observed = ", ".join(f"sm_{a}{b}" for a, b in how)
    return Outcome(status="pass", observed=observed, expected=wanted, evidence=evidence)


def _code(device: tuple[int, int], has: Iterable[object]) -> str:
    """How torch would run on a device: "binary", "ptx", or not at all."""
    ways = set()
    for name in map(str, has):
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", name)
        if match is None:
            continue
        kind, built = match[1], (int(match[2]), int(match[3]))
        if kind == "sm" and built[0] == device[0] and (built == device if match[4] == "a" else built <= device):
            ways.add("binary")
        elif kind == "compute" and not match[4] and built <= device:
            ways.add("ptx")
    return "binary" if "binary" in ways else "ptx" if ways else ""


def measure_toolkit(context: Context) -> dict[str, Any]:
    """The compiler that would build an op for CUDA, beside the CUDA of torch."""
    why = _no_cuda_torch()
    if why:
        return absent(why)
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or ""
    compiler = Path(home, "bin/nvcc") if home else Path(shutil.which("nvcc", path=program_path()) or "")
    found = command_version(f"{compiler} --version").version if compiler.is_file() else ""
    return {"torch": torch_cuda(), "home": home, "home_exists": Path(home).is_dir() if home else True, "nvcc": found}


def judge_toolkit(value: Any) -> Outcome:
    """DeepSpeed and torch build ops while a job starts, with this compiler."""
    if outcome := not_here("the CUDA toolkit", value):
        return outcome
    home, nvcc = value.get("home"), value.get("nvcc")
    if not isinstance(home, str) or not isinstance(nvcc, str):
        return unreadable("the CUDA toolkit", dict(value))
    try:
        built = numbers(value.get("torch"))[:2]
        found = numbers(nvcc)[:2] if nvcc else ()
    except ValueError:
        return unreadable("the CUDA toolkit", dict(value))
    wanted = f"nvcc of CUDA {value['torch']}, as torch"
    remedy = f"install the toolkit of CUDA {value['torch']} and point CUDA_HOME at it, or build the ops into the image"
    if home and value.get("home_exists") is not True:
        observed = f"CUDA_HOME={home} does not exist: unable to compile CUDA op(s)"
        return Outcome(status="fail", observed=observed, expected=wanted, remedy=f"unset CUDA_HOME; or {remedy}")
    if not nvcc:
        return skip("no nvcc: ops for CUDA that are not built yet cannot be built here", remedy)
    observed = f"nvcc {nvcc}, torch is built with CUDA {value['torch']}"
    status: Any = "fail" if found[0] != built[0] else "warn" if found != built else "pass"
    return Outcome(status=status, observed=observed, expected=wanted, remedy="" if status == "pass" else remedy)


def measure_loaded_libraries(context: Context, root: Path = Path("/")) -> dict[str, Any]:
    """After torch is imported: the watched libraries in this process, the environment's own, and LD_LIBRARY_PATH's."""
    import torch

    own = own_libraries(Path(torch.__file__).parents[1])
    folders = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if folder]
    return {
        "loaded": loaded((root / "proc/self/maps").read_text("utf-8", "replace")),
        "own": own,
        "prefixes": sorted({sys.prefix, sys.base_prefix, str(Path(torch.__file__).parents[1])}),
        "shadowing": shadowing(folders, own),
    }


def loaded(maps: str) -> list[str]:
    """Paths of the watched libraries in a process's map."""
    paths = {line.split(maxsplit=5)[5] for line in maps.splitlines() if ".so" in line and len(line.split()) > 5}
    return sorted(path for path in paths if Path(path).name.startswith(WATCHED))


def own_libraries(packages: Path) -> dict[str, str]:
    """The watched libraries that the environment's wheels bring, by the name a loader asks for."""
    patterns = ("torch/lib/*.so*", "nvidia/*/lib/*.so*", "*.libs/*.so*")
    files = [path for pattern in patterns for path in packages.glob(pattern) if path.name.startswith(WATCHED)]
    return {_soname(path.name): str(path) for path in sorted(files)}


def shadowing(folders: Iterable[str], own: Mapping[str, str]) -> list[str]:
    """Files in LD_LIBRARY_PATH that a loader takes before the wheel's own of the same name."""
    found = [Path(folder, name) for folder in folders for name in own if Path(folder, name).exists()]
    return sorted(str(path) for path in found if str(path.resolve()) != str(Path(own[path.name]).resolve()))


def _soname(name: str) -> str:
    match = SONAME.match(name)
    return match[0] if match else name


def judge_loaded_libraries(value: Any) -> Outcome:
    """A library of another installation has other functions than the one that torch was built and tested with."""
    if outcome := not_here("the loaded libraries", value):
        return outcome
    paths, own, prefixes, ahead = (value.get(name) for name in ("loaded", "own", "prefixes", "shadowing"))
    lists = all(isinstance(each, list) for each in (paths, prefixes, ahead))
    if not lists or not isinstance(own, Mapping) or not paths or not prefixes:
        return unreadable("the loaded libraries", dict(value))
    inside = tuple(str(prefix).rstrip("/") + "/" for prefix in prefixes)
    foreign = [path for path in paths if not str(path).startswith(inside)]
    replaced = [path for path in foreign if _soname(Path(path).name) in own]
    strange = [path for path in foreign if path not in replaced and not str(path).startswith(SYSTEM)]
    wanted = "each from the environment where it has its own, else from the system"
    remedy = "unset LD_LIBRARY_PATH, or take that folder out of it; find who sets it: env, /etc/profile.d, modules"
    for status, found, how in (
        ("fail", replaced, "is loaded in place of the environment's own"),
        ("warn", strange, "is loaded from outside the environment and the system"),
        ("warn", ahead, "in LD_LIBRARY_PATH is ahead of the environment's own"),
    ):
        if found:
            observed = f"{', '.join(map(str, found))} {how}"
            evidence = ", ".join(str(own.get(_soname(Path(path).name), "")) for path in found)
            return Outcome(status=status, observed=observed, expected=wanted, evidence=evidence, remedy=remedy)  # type: ignore[arg-type]
    return Outcome(status="pass", observed=f"{len(paths)} watched libraries are the right ones", expected=wanted)


def measure_cudnn(context: Context) -> dict[str, Any]:
    """The cuDNN that torch was compiled with, the one it loads, and the release's."""
    why = _no_cuda_torch()
    if why:
        return absent(why)
    import torch

    part = release_of(context).components.get("cudnn")
    compiled = torch._C._cudnn.getCompileVersion()
    runtime = torch._C._cudnn.getRuntimeVersion()
    texts = [".".join(map(str, each)) for each in (compiled, runtime)]
    return {"compiled": texts[0], "runtime": texts[1], "pin": part.version if part else ""}


def judge_cudnn(value: Any) -> Outcome:
    """Newer within the major version is compatible; older is what torch refuses at the first convolution."""
    if outcome := not_here("cuDNN's version", value):
        return outcome
    try:
        compiled, runtime = numbers(value.get("compiled")), numbers(value.get("runtime"))
        pin = numbers(value.get("pin"))[: len(runtime)]
    except ValueError:
        return unreadable("cuDNN's version", dict(value))
    wanted = f"cuDNN {value['pin']}; never older than {value['compiled']}, which torch was compiled with"
    observed = f"cuDNN {value['runtime']} is loaded"
    remedy = "as cuda.loaded-libraries says; or reinstall the locked wheel: make setup"
    broken = runtime < compiled or runtime[0] != compiled[0]
    if broken:
        observed = f"cuDNN version incompatibility: compiled against {value['compiled']}, found {value['runtime']}"
    status: Any = "fail" if broken else "warn" if runtime != pin else "pass"
    return Outcome(status=status, observed=observed, expected=wanted, remedy="" if status == "pass" else remedy)


CHECKS = (
    cheap(
        id="cuda.architecture",
        title="torch's kernels for the GPUs here",
        measure=measure_architecture,
        judge=judge_architecture,
        child="torch",
        deadline=60,
        why="`CUDA error: no kernel image is available for execution on the device`, or `sm_120 is not compatible "
        "with the current PyTorch installation`, at the first kernel of the job.",
        rule="Fails when torch has neither binary code nor PTX for a GPU; warns when it has PTX only.",
    ),
    cheap(
        id="cuda.toolkit",
        title="the CUDA compiler against torch",
        measure=measure_toolkit,
        judge=judge_toolkit,
        why="`Installed CUDA version 12.1 does not match the version torch was compiled with 11.8, unable to compile "
        "cuda/cpp extensions`, or `CUDA_HOME does not exist, unable to compile CUDA op(s)`.",
        rule="Fails when CUDA_HOME does not exist or nvcc has another major version; warns on another minor.",
    ),
    cheap(
        id="cuda.loaded-libraries",
        title="libraries that torch really loads",
        measure=measure_loaded_libraries,
        judge=judge_loaded_libraries,
        child="torch",
        deadline=60,
        proof="mixed",
        why="A folder in LD_LIBRARY_PATH puts another NCCL, cuDNN or OpenMP into every rank: `undefined symbol: "
        "ncclCommRegister`, `cuDNN version incompatibility`, or other results without a word.",
        rule="Fails when one is loaded in place of the environment's own; warns when one comes from outside both the "
        "environment and the system, or is ahead in LD_LIBRARY_PATH.",
    ),
    cheap(
        id="cuda.cudnn",
        title="cuDNN against what torch was compiled with",
        measure=measure_cudnn,
        judge=judge_cudnn,
        child="torch",
        deadline=60,
        why="`cuDNN version incompatibility: PyTorch was compiled against (9, 13, 0) but found runtime version "
        "(9, 10, 2)`.",
        rule="Fails when the loaded cuDNN is older than the compiled one or of another major version; warns when it is "
        "not the release's.",
    ),
)

"""The rules' table of nccl.*, gdrcopy.* and tensorrt.*: check, what was measured, status, what it says."""

from __future__ import annotations

import re
from typing import Any

from hardware_fixtures import fixture
from trackbed.validate import baseline
from trackbed.validate.hardware.gdrcopy import sanity
from trackbed.validate.hardware.nccl_runs import parse_log, tests
from trackbed.validate.hardware.shared import Ran


def nccl_log(name: str, *, hcas: tuple[str, ...] = ("mlx5_0",), expect: Any = None) -> dict[str, Any]:
    return {"path": name, **parse_log(fixture(f"nccl/{name}")), "hcas": list(hcas), "expect": expect or {}}


def nccl_tests(name: str, site: dict[str, Any] | None = None) -> dict[str, Any]:
    return {**tests(fixture(f"nccl/{name}")), "baseline": site or {}}


def base(value: float, name: str = "all_reduce_perf") -> dict[str, Any]:
    row = {"value": value, "unit": "GB/s", "better": "higher", "noise": 0.0}
    return baseline.part({"figures": {f"deep.nccl/{name}": row}, "host": "node1"}, "deep.nccl")


def gdr(**changes: Any) -> dict[str, Any]:
    return {"version": "2.5", "error": "", "pin": "2.5.1", "reads": 2, **changes}


def gdrdrv(**changes: Any) -> dict[str, Any]:
    return {"loaded": True, "major": 236, "node": 236, "cuda": "13.0", "library": "2.5", **changes}


def gdr_tests(name: str, code: int) -> dict[str, Any]:
    return sanity(Ran(code=code, output=fixture(f"gdrcopy/{name}")), 120.0)


def trt(**changes: Any) -> dict[str, Any]:
    return {"library": "11.0.0", "error": "", "python": "11.0.0.114", "pin": "11.0.0.114", "reads": 3, **changes}


def pair(**changes: Any) -> dict[str, Any]:
    return {"torch_tensorrt": "2.13.0", "torch": "2.13.0+cu130", "error": "", **changes}


RULES: list[tuple[str, Any, str, str]] = [
    ("nccl.version", {"runtime": "2.29.7", "pin": "2.29.7"}, "pass", "NCCL 2.29.7"),
    ("nccl.version", {"runtime": "2.29.6", "pin": "2.29.7"}, "fail", "NCCL 2.29.6 is loaded"),
    ("nccl.version", {"runtime": "2.29.8", "pin": "2.29.7"}, "warn", "NCCL 2.29.8 is loaded"),
    ("nccl.version", {"runtime": "3.0.0", "pin": "2.29.7"}, "fail", "NCCL 3.0.0"),
    ("nccl.version", {"runtime": "2.28.2", "pin": "2.28.2"}, "pass", "2.28.2"),
    ("nccl.version", {"runtime": "2.28.3", "pin": "2.28.3"}, "warn", "a restart inside the process can hang"),
    ("nccl.version", {"runtime": "2.28.8", "pin": "2.28.8"}, "warn", "can hang"),
    ("nccl.version", {"runtime": "2.28.9", "pin": "2.28.9"}, "pass", "2.28.9"),
    ("nccl.version", {"runtime": "", "pin": "2.29.7"}, "error", "makes no sense"),
    ("nccl.version", {"runtime": "2.29.7"}, "error", "makes no sense"),
    ("nccl.version", None, "error", "could not be read"),
    ("nccl.log", nccl_log("ib.log"), "pass", "IB, 5 lines without a warning"),
    ("nccl.log", nccl_log("socket.log"), "fail", "NET/Socket although there is InfiniBand"),
    ("nccl.log", nccl_log("socket.log", hcas=(), expect={"rdma": {"rates_gbit_s": [400]}}), "fail", "NET/Socket"),
    ("nccl.log", nccl_log("socket.log", hcas=()), "pass", "Socket, 4 lines"),
    ("nccl.log", nccl_log("nogdr.log"), "warn", "GPU Direct RDMA Disabled for HCA 0 'mlx5_0'"),
    ("nccl.log", nccl_log("warnings.log", hcas=()), "warn", "1 warnings, the first: Call to ibv_reg_mr_iova2 failed"),
    ("nccl.log", {**nccl_log("ib.log"), **parse_log("nothing of NCCL's")}, "error", "makes no sense"),
    ("nccl.log", {**nccl_log("ib.log"), "networks": "IB"}, "error", "makes no sense"),
    ("nccl.log", {**nccl_log("ib.log"), "lines": 1}, "pass", "IB, 1 lines"),
    ("nccl.log", {**nccl_log("ib.log"), "lines": None}, "error", "makes no sense"),
    ("nccl.log", None, "error", "could not be read"),
    ("deep.nccl", nccl_tests("all_reduce.json"), "pass", "all_reduce_perf 245 GB/s"),
    ("deep.nccl", nccl_tests("all_reduce.json", base(250.0)), "pass", "all_reduce_perf 245 GB/s"),
    ("deep.nccl", nccl_tests("all_reduce.json", base(262.0)), "warn", "7 % less than 262 GB/s"),
    ("deep.nccl", nccl_tests("all_reduce.json", base(300.0)), "fail", "18 % less than 300 GB/s"),
    ("deep.nccl", nccl_tests("all_reduce.json", base(1.0, "other")), "fail", "other was not measured"),
    ("deep.nccl", nccl_tests("wrong.json"), "fail", "3 wrong elements"),
    ("deep.nccl", {"wrong": 1, "measured": {"a": 1}}, "fail", "1 wrong elements"),
    ("deep.nccl", tests("not JSON"), "fail", "no report of nccl-tests"),
    ("deep.nccl", tests('{"args": ["a"], "results": []}'), "fail", "no report of nccl-tests"),
    ("deep.nccl", {"wrong": "some", "measured": {"a": 1}}, "error", "makes no sense"),
    ("deep.nccl", {"wrong": 0, "measured": {"a": "fast"}, "baseline": {}}, "error", "makes no sense"),
    ("deep.nccl", {"wrong": 0, "measured": {"a": 1.0}}, "error", "makes no sense"),
    ("deep.nccl", None, "error", "could not be read"),
    ("gdrcopy.library", gdr(), "pass", "libgdrapi 2.5"),
    ("gdrcopy.library", gdr(version="2.4"), "fail", "libgdrapi 2.4"),
    ("gdrcopy.library", gdr(version="2.6"), "fail", "libgdrapi 2.6"),
    ("gdrcopy.library", gdr(version="2.3", pin="2.3", reads=0), "pass", "libgdrapi 2.3"),
    ("gdrcopy.library", gdr(error="OSError: libgdrapi.so.2: cannot open"), "fail", "cannot open"),
    ("gdrcopy.library", gdr(version=""), "error", "makes no sense"),
    ("gdrcopy.library", gdr(reads=None), "error", "makes no sense"),
    ("gdrcopy.library", None, "error", "could not be read"),
    ("gdrcopy.driver", gdrdrv(), "pass", "/dev/gdrdrv of major 236"),
    ("gdrcopy.driver", gdrdrv(node=235), "fail", "/dev/gdrdrv has major 235, the module has 236"),
    ("gdrcopy.driver", gdrdrv(node=235, major=None), "fail", "the module has None"),
    ("gdrcopy.driver", gdrdrv(node=None), "warn", "there is no /dev/gdrdrv"),
    ("gdrcopy.driver", gdrdrv(loaded=False, node=None, major=None), "warn", "is gdrdrv.ko loaded?"),
    ("gdrcopy.driver", gdrdrv(loaded=False, cuda="13.3", library="2.6"), "pass", "dma-buf of CUDA 13.3"),
    ("gdrcopy.driver", gdrdrv(loaded=False, cuda="13.2", library="2.6"), "warn", "gdrdrv.ko"),
    ("gdrcopy.driver", gdrdrv(loaded=False, cuda="13.3", library="2.5.9"), "warn", "gdrdrv.ko"),
    ("gdrcopy.driver", gdrdrv(loaded=False, cuda=None), "warn", "gdrdrv.ko"),
    ("gdrcopy.driver", gdrdrv(loaded="yes"), "error", "makes no sense"),
    ("gdrcopy.driver", gdrdrv(major="236"), "error", "makes no sense"),
    ("gdrcopy.driver", None, "error", "could not be read"),
    ("gdrcopy.match", {"module": "2.5.1", "library": "2.5"}, "pass", "gdrdrv 2.5.1, libgdrapi 2.5"),
    ("gdrcopy.match", {"module": "1.3", "library": "2.5"}, "fail", "gdrdrv 1.3"),
    ("gdrcopy.match", {"module": "", "library": "2.5"}, "error", "makes no sense"),
    ("gdrcopy.match", {"module": "2.5"}, "error", "makes no sense"),
    ("gdrcopy.match", None, "error", "could not be read"),
    ("gdrcopy.sanity", gdr_tests("pass.txt", 0), "pass", "28 tests passed"),
    ("gdrcopy.sanity", gdr_tests("fail.txt", 1), "fail", "2 tests failed, exit code 1"),
    ("gdrcopy.sanity", gdr_tests("fail.txt", 0), "fail", "2 tests failed, exit code 0"),
    ("gdrcopy.sanity", {"code": 0, "passed": 27, "failed": 0, "waived": 1}, "pass", "27 tests passed, 1 waived"),
    ("gdrcopy.sanity", {"code": 0, "passed": 1, "failed": 1}, "fail", "1 tests failed"),
    ("gdrcopy.sanity", {"code": 0, "passed": 1}, "pass", "1 tests passed"),
    ("gdrcopy.sanity", {"code": 1, "passed": 0}, "fail", "exit code 1"),
    ("gdrcopy.sanity", {"code": 0}, "pass", "all tests passed"),
    ("gdrcopy.sanity", {"code": -11, "output": ""}, "fail", "exit code -11"),
    ("gdrcopy.sanity", sanity(Ran(code=None, error="late"), 120.0), "fail", "did not end within 120 s"),
    ("gdrcopy.sanity", sanity(Ran(code=None, error="sanity: Permission denied"), 1.0), "fail", "Permission denied"),
    ("gdrcopy.sanity", {"code": "0"}, "error", "makes no sense"),
    ("gdrcopy.sanity", {"code": 0, "failed": "none"}, "error", "makes no sense"),
    ("gdrcopy.sanity", {}, "error", "makes no sense"),
    ("gdrcopy.sanity", None, "error", "could not be read"),
    ("tensorrt.library", trt(), "pass", "libnvinfer 11.0.0, tensorrt 11.0.0.114 in Python"),
    ("tensorrt.library", trt(python=""), "pass", "libnvinfer 11.0.0"),
    ("tensorrt.library", trt(library="10.9.0"), "fail", "libnvinfer 10.9.0"),
    ("tensorrt.library", trt(python="10.9.0.34"), "fail", "tensorrt 10.9.0.34 in Python"),
    ("tensorrt.library", trt(error="its import killed the interpreter (signal SIGSEGV)"), "fail", "SIGSEGV"),
    ("tensorrt.library", trt(library="11.0.0.114", reads=0), "pass", "libnvinfer 11.0.0.114"),
    ("tensorrt.library", trt(library="11.0.0.115", reads=0), "fail", "11.0.0.115"),
    ("tensorrt.library", trt(library=""), "error", "makes no sense"),
    ("tensorrt.library", trt(reads=None), "error", "makes no sense"),
    ("tensorrt.library", None, "error", "could not be read"),
    ("tensorrt.torch", pair(), "pass", "Torch-TensorRT 2.13.0 with torch 2.13.0+cu130"),
    ("tensorrt.torch", pair(torch_tensorrt="1.5.0.dev0", torch="2.1.0a0"), "pass", "1.5.0.dev0 with torch 2.1.0a0"),
    ("tensorrt.torch", pair(torch_tensorrt="1.4.0", torch="2.0.1"), "pass", "1.4.0"),
    ("tensorrt.torch", pair(torch="2.12.1"), "warn", "is not its pair"),
    ("tensorrt.torch", pair(error="OSError: libtorchtrt.so: undefined symbol: _ZN3c10"), "fail", "undefined symbol"),
    ("tensorrt.torch", pair(torch=""), "error", "makes no sense"),
    ("tensorrt.torch", {"torch": "2.13.0"}, "error", "makes no sense"),
    ("tensorrt.torch", None, "error", "could not be read"),
    ("tensorrt.plans", {"plans": {"m.plan": "11.0.0.114"}, "pin": "11.0.0.114"}, "pass", "1 plans of 11.0.0.114"),
    (
        "tensorrt.plans",
        {"plans": {"m.plan": "8.6.1.6"}, "pin": "8.6.1.2"},
        "fail",
        "m.plan is of 8.6.1.6: expecting library v",
    ),
    ("tensorrt.plans", {"plans": {"m.plan": ""}, "pin": "8.6.1.2"}, "fail", "m.plan is no plan that trtexec can read"),
    ("tensorrt.plans", {"plans": {"m.plan": "new"}, "pin": "8.6.1.2"}, "error", "makes no sense"),
    ("tensorrt.plans", {"plans": {}, "pin": "8.6.1.2"}, "error", "makes no sense"),
    ("tensorrt.plans", {"plans": ["m.plan"], "pin": "8.6.1.2"}, "error", "makes no sense"),
    ("tensorrt.plans", {"plans": {"m.plan": "8.6.1.2"}, "pin": ""}, "error", "makes no sense"),
    ("tensorrt.plans", None, "error", "could not be read"),
]
SKIPS: list[tuple[str, Any, str]] = [
    ("deep.nccl", nccl_tests("unchecked.json"), "did not check its results"),
    ("gdrcopy.sanity", gdr_tests("waived.txt", 0), "waived its tests"),
    ("gdrcopy.sanity", gdr_tests("waived.txt", 2), "waived its tests"),
]

# A skip needs no remedy, which test_rules asks of a row; as texts the mutation test sees them too.
TEXTS: list[tuple[str, Any, str, str]] = [
    *((name, measured, "status", "skip") for name, measured, _ in SKIPS),
    *((name, measured, "observed", re.escape(says)) for name, measured, says in SKIPS),
]

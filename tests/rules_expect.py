"""The rules of expect.*: what a site's file wants, what a node has, the status it must give, what it must say."""

from __future__ import annotations

from typing import Any

MODEL = "NVIDIA H100 80GB HBM3"


def held(wanted: Any, found: Any) -> dict[str, Any]:
    return {"file": True, "wanted": wanted, "found": found}


def amount(gib: Any, wanted: Any = 24) -> dict[str, Any]:
    return held({"minimum_gib": wanted}, {"gib": gib})


def gpus(seen: Any, models: Any, why: str = "", **wanted: Any) -> dict[str, Any]:
    return held({"count": 8, "model": MODEL, **wanted}, {"count": seen, "models": models, "why": why})


def driver(version: Any) -> dict[str, Any]:
    return held({"version": "580.65.06"}, {"version": version})


def rdma(rates: Any, down: dict[str, str] | None = None) -> dict[str, Any]:
    return held({"rates_gbit_s": [25, 400, 400]}, {"rates": rates, "down": down or {}})


def mount(found: Any, **wanted: Any) -> dict[str, Any]:
    return held([{"path": "/scratch", "file_system": "lustre", "minimum_free_gib": 500, **wanted}], {"/scratch": found})


def lustre(free: Any) -> dict[str, Any]:
    return {"file_system": "lustre", "free_gib": free}


NAMES = ("cpus", "memory", "shared-memory", "gpus", "driver", "rdma", "mounts")
NO_FILE = {"file": False, "wanted": None, "found": None}
SILENT = {"file": True, "wanted": None, "found": None}

RULES: list[tuple[str, Any, str, str]] = [
    *((f"expect.{name}", None, "error", "could not be read") for name in NAMES),
    *((f"expect.{name}", "garbage", "error", "makes no sense") for name in NAMES),
    *((f"expect.{name}", {"wanted": {}}, "error", "makes no sense") for name in NAMES),
    *((f"expect.{name}", held({}, None), "error", "makes no sense") for name in NAMES if name != "mounts"),
    *((f"expect.{name}", NO_FILE, "skip", "no expectation file") for name in NAMES),
    *((f"expect.{name}", SILENT, "skip", "does not say") for name in NAMES),
    ("expect.cpus", held({"count": 64}, {"count": 64}), "pass", "64 CPUs"),
    ("expect.cpus", held({"count": 64}, {"count": 63}), "fail", "63 CPUs, 64 expected"),
    ("expect.cpus", held({"count": 64}, {"count": 65}), "fail", "65 CPUs, 64 expected"),
    ("expect.cpus", held({"count": 64}, {"count": None}), "error", "makes no sense"),
    ("expect.cpus", held({"count": -1}, {"count": 64}), "error", "makes no sense"),
    *(
        rule
        for name in ("expect.memory", "expect.shared-memory")
        for rule in (
            (name, amount(24), "pass", "24 GiB"),
            (name, amount(24.1), "pass", "24.1 GiB"),
            (name, amount(23.9), "fail", "23.9 GiB, 24 GiB expected"),
            (name, amount(None), "fail", "0 GiB, 24 GiB expected"),
            (name, amount(2000, 2048), "fail", "2000 GiB, 2048 GiB expected"),
            (name, amount("24"), "error", "makes no sense"),
            (name, amount(24, None), "error", "makes no sense"),
        )
    ),
    ("expect.gpus", gpus(8, {MODEL: 8}), "pass", f"8 {MODEL}"),
    ("expect.gpus", gpus(7, {MODEL: 7}), "fail", "7 GPUs, 8 expected"),
    ("expect.gpus", gpus(9, {MODEL: 9}), "fail", "9 GPUs, 8 expected"),
    ("expect.gpus", gpus(0, {}, "no NVIDIA driver"), "fail", "0 GPUs (no NVIDIA driver), 8 expected"),
    ("expect.gpus", gpus(8, {MODEL: 7, "NVIDIA A100": 1}), "fail", f"1 are NVIDIA A100, {MODEL} expected"),
    ("expect.gpus", gpus(8, {"NVIDIA A100": 8}, model=None), "pass", "8 NVIDIA A100"),
    ("expect.gpus", gpus(0, {}, count=0), "pass", "no GPU"),
    ("expect.gpus", gpus("8", {MODEL: 8}), "error", "makes no sense"),
    ("expect.gpus", gpus(8, None), "error", "makes no sense"),
    ("expect.driver", driver("580.65.06"), "pass", "580.65.06"),
    ("expect.driver", driver("580.65.07"), "fail", "driver 580.65.07, 580.65.06 expected"),
    ("expect.driver", driver(""), "fail", "driver none, 580.65.06 expected"),
    (
        "expect.rdma",
        rdma({"mlx5_0/1": 400.0, "mlx5_1/1": 25.0, "mlx5_2/1": 400.0}),
        "pass",
        "2 of 400 Gb/s and 1 of 25",
    ),
    ("expect.rdma", rdma({"mlx5_0/1": 400.0, "mlx5_1/1": 25.0, "mlx5_2/1": 200.0}), "fail", "1 of 200 Gb/s"),
    (
        "expect.rdma",
        rdma({"mlx5_1/1": 25.0, "mlx5_2/1": 400.0}, {"mlx5_0/1": "1: DOWN"}),
        "fail",
        "mlx5_0/1 is 1: DOWN",
    ),
    ("expect.rdma", rdma({}), "fail", "active ports: none, 2 of 400 Gb/s and 1 of 25 Gb/s expected"),
    ("expect.rdma", rdma({"mlx5_0/1": "fast"}), "error", "makes no sense"),
    ("expect.rdma", rdma(None), "error", "makes no sense"),
    ("expect.mounts", mount(lustre(500)), "pass", "/scratch (lustre, 500 GiB free)"),
    ("expect.mounts", mount(lustre(499)), "fail", "/scratch has 499 GiB free, 500 GiB expected"),
    ("expect.mounts", mount(lustre(None)), "fail", "/scratch does not answer, 500 GiB expected"),
    ("expect.mounts", mount(None), "fail", "nothing is mounted at /scratch, lustre expected"),
    ("expect.mounts", mount({"file_system": "xfs", "free_gib": 900}), "fail", "/scratch is xfs, lustre expected"),
    ("expect.mounts", mount({"file_system": "xfs", "free_gib": 900}, file_system=None), "pass", "xfs"),
    ("expect.mounts", mount(lustre(None), minimum_free_gib=None), "pass", "/scratch (lustre)"),
    ("expect.mounts", mount(lustre("much")), "error", "makes no sense"),
    ("expect.mounts", held([{}], {}), "error", "makes no sense"),
    ("expect.memory", amount(99.6), "pass", "99.6 GiB"),
]
TEXTS: list[tuple[str, Any, str, str]] = [
    ("expect.gpus", gpus(8, {MODEL: 8}), "expected", f"^8 {MODEL}$"),
]

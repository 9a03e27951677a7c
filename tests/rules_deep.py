"""The rules of deep.*: figures with and without a baseline, the status it must give, what it must say."""

from __future__ import annotations

import math
from typing import Any

NAN = math.nan
IDS = (
    "all-reduce",
    "memory-bandwidth",
    "matrix-product",
    "gpu-memory-bandwidth",
    "gpu-matrix-product",
    "gpu-all-reduce",
    "image-decode",
    "checkpoint-write",
    "checkpoint-read",
    "small-reads",
)


def rates(*runs: Any, better: str = "higher", baseline: Any = None, **more: Any) -> dict[str, Any]:
    figures = {"rate": {"runs": list(runs), "unit": "GB/s", "better": better}}
    return {"figures": figures, "how": {}, "baseline": baseline or {}, **more}


def was(
    value: Any = 100.0, better: str = "higher", *, name: str = "rate", noise: float = 0.0, **more: Any
) -> dict[str, Any]:
    """What the baseline says of a check; limits of the figure's own are in `own`."""
    own = more.pop("own", {})
    row = {"value": value, "unit": "GB/s", "better": better, "noise": noise, **own}
    return {"figures": {name: row}, "of": "baseline of alpha", "warn_percent": 5.0, "fail_percent": 10.0, **more}


def skipped(baseline: Any = None) -> dict[str, Any]:
    return {"skip": "torch sees no GPU", "figures": {}, "baseline": baseline or {}}


RULES: list[tuple[str, Any, str, str]] = [
    *((f"deep.{name}", rates(1.0, 2.0, 9.0), "pass", "rate 2 GB/s; no baseline") for name in IDS),
    *(
        (f"deep.{name}", garbage, "error", text)
        for name in IDS
        for garbage, text in (
            (None, "could not be read"),
            ("garbage", "makes no sense"),
            ({}, "makes no sense"),
            (rates(), "makes no sense"),
        )
    ),
    *((f"deep.{name}", rates(89.0, baseline=was()), "fail", "rate 89 GB/s, 11 % less than 100 GB/s") for name in IDS),
    ("deep.matrix-product", {"baseline": {}}, "error", "makes no sense"),
    ("deep.matrix-product", rates(0.0), "error", "makes no sense"),
    ("deep.matrix-product", rates(-1.0), "error", "makes no sense"),
    ("deep.matrix-product", rates(NAN), "error", "makes no sense"),
    ("deep.matrix-product", rates("fast"), "error", "makes no sense"),
    ("deep.matrix-product", {"figures": {}, "baseline": {}}, "error", "makes no sense"),
    ("deep.matrix-product", rates(95.1, baseline=was()), "pass", "rate 95.1 GB/s"),
    ("deep.matrix-product", rates(95.0, baseline=was()), "warn", "5 % less than 100 GB/s"),
    ("deep.matrix-product", rates(90.1, baseline=was()), "warn", "10 % less"),
    ("deep.matrix-product", rates(90.0, baseline=was()), "fail", "10 % less"),
    ("deep.matrix-product", rates(150.0, baseline=was()), "pass", "rate 150 GB/s"),
    ("deep.matrix-product", rates(1.0, better="lower", baseline=was(1.0, "lower")), "pass", "rate 1 GB/s"),
    ("deep.matrix-product", rates(1.05, better="lower", baseline=was(1.0, "lower")), "warn", "5 % more than 1 GB/s"),
    ("deep.matrix-product", rates(1.2, better="lower", baseline=was(1.0, "lower")), "fail", "20 % more than 1 GB/s"),
    ("deep.matrix-product", rates(0.5, better="lower", baseline=was(1.0, "lower")), "pass", "rate 0.5 GB/s"),
    # Limits of the file, and of the figure, which win.
    ("deep.matrix-product", rates(89.0, baseline=was(warn_percent=12, fail_percent=20)), "pass", "rate 89"),
    ("deep.matrix-product", rates(85.0, baseline=was(warn_percent=12, fail_percent=20)), "warn", "15 % less"),
    ("deep.matrix-product", rates(85.0, baseline=was(own={"fail_percent": 15})), "fail", "15 % less"),
    ("deep.matrix-product", rates(85.0, baseline=was(own={"warn_percent": 20, "fail_percent": 30})), "pass", "rate 85"),
    ("deep.matrix-product", rates(99.0, baseline=was(warn_percent=0)), "warn", "1 % less"),
    ("deep.matrix-product", rates(100.0, baseline=was(warn_percent=0)), "pass", "rate 100"),
    ("deep.matrix-product", rates(85.0, baseline=was(warn_percent=30)), "fail", "15 % less"),
    ("deep.matrix-product", rates(85.0, baseline=was(warn_percent="few")), "error", "makes no sense"),
    ("deep.matrix-product", rates(95.0, baseline=was(warn_percent=None)), "error", "makes no sense"),
    ("deep.matrix-product", rates(99.0, baseline=was(fail_percent=None)), "error", "makes no sense"),
    ("deep.matrix-product", rates(999.4), "pass", "rate 999 GB/s"),
    ("deep.matrix-product", rates(999.5), "pass", "rate 1000 GB/s"),
    ("deep.matrix-product", rates(1000.6), "pass", "rate 1001 GB/s"),
    ("deep.matrix-product", rates(100.0, baseline=was(math.inf)), "error", "makes no sense"),
    ("deep.matrix-product", rates(85.0, baseline=was(fail_percent="many")), "error", "makes no sense"),
    # Noise: less than three standard errors of either median is no finding.
    ("deep.matrix-product", rates(85.0, baseline=was(noise=5.1)), "pass", "rate 85"),
    ("deep.matrix-product", rates(85.0, baseline=was(noise=5.0)), "fail", "15 % less than 100 GB/s (noise 5.0 %)"),
    ("deep.matrix-product", rates(70.0, 85.0, 100.0, baseline=was()), "pass", "rate 85"),
    # What the baseline has and this run has not.
    ("deep.matrix-product", rates(100.0, baseline=was(name="bfloat16")), "fail", "bfloat16 was not measured"),
    ("deep.matrix-product", rates(100.0, baseline={**was(), "figures": {}}), "pass", "rate 100 GB/s"),
    ("deep.matrix-product", rates(100.0, baseline=was("many")), "error", "makes no sense"),
    ("deep.matrix-product", rates(100.0, baseline=was(0)), "error", "makes no sense"),
    ("deep.matrix-product", rates(100.0, baseline=was(better="faster")), "error", "makes no sense"),
    ("deep.matrix-product", rates(100.0, baseline=was(noise="little")), "error", "makes no sense"),
    ("deep.matrix-product", rates(100.0, baseline={**was(), "figures": {"rate": 3}}), "error", "makes no sense"),
    ("deep.gpu-memory-bandwidth", skipped(), "skip", "torch sees no GPU"),
    ("deep.gpu-memory-bandwidth", skipped(was()), "fail", "torch sees no GPU"),
    ("deep.idle", {"busy": 20.0, "cpus": 2, "top": []}, "pass", "20 % busy"),
    ("deep.idle", {"busy": 20.1, "cpus": 2, "top": [[90.0, "python"]]}, "warn", "20 % busy"),
    ("deep.idle", {"busy": 0.0}, "pass", "0 % busy"),
    ("deep.idle", {"busy": "very"}, "error", "makes no sense"),
    ("deep.idle", {"busy": NAN}, "error", "makes no sense"),
    ("deep.idle", [], "error", "makes no sense"),
    ("deep.idle", None, "error", "could not be read"),
]
TEXTS: list[tuple[str, Any, str, str]] = [
    ("deep.image-decode", rates(2.0), "expected", "--save-baseline FILE"),
    ("deep.image-decode", rates(2.0), "evidence", '"rate": {"value": 2.0, "unit": "GB/s", "better": "higher"'),
    ("deep.image-decode", rates(100.0, baseline=was()), "expected", "^baseline of alpha: rate 100 GB/s$"),
    ("deep.image-decode", rates(100.0, baseline={**was(), "figures": {}}), "expected", "--save-baseline FILE"),
    ("deep.image-decode", rates(80.0, baseline=was()), "remedy", "warn_percent"),
    ("deep.gpu-memory-bandwidth", skipped(was()), "remedy", "idle machine"),
    ("deep.idle", {"busy": 99.0, "cpus": 2, "top": [[90.0, "cc1plus"]]}, "remedy", "--exclusive.*cc1plus 90 %"),
    ("deep.idle", {"busy": 99.0, "cpus": 2, "top": []}, "remedy", "not visible"),
    ("deep.idle", {"busy": 1.0, "cpus": 2, "top": []}, "remedy", "^$"),
]

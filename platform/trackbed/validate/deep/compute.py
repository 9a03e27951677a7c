"""Rates of memory, matrix products and decoding. Every measure repeats, and says how it was done."""

from __future__ import annotations

import io
import math
import os
import time
from collections.abc import Callable
from typing import Any

from trackbed.validate import MIB, Context
from trackbed.validate.machine import cgroup

# At least so many repeats, and more for as long as SECONDS: what takes a millisecond varies more.
REPEATS, MOST, SECONDS, WARM_UP = 7, 100, 1.0, 2
# Larger than caches, so that memory is what is measured.
MEMORY_BYTES = 192 * MIB
GPU_MEMORY_BYTES = 2048 * MIB
SIDE, GPU_SIDE = 1024, 8192
CPU_TYPES = ("float32", "bfloat16")
GPU_TYPES = ("float32", "bfloat16", "float16")
BATCH = 32
NO_GPU = "torch sees no GPU on this machine"


def rows(runs: dict[str, list[float]], unit: str, better: str = "higher") -> dict[str, Any]:
    """Runs of each figure in the form the judge reads."""
    return {name: {"runs": each, "unit": unit, "better": better} for name, each in runs.items()}


def repeat(work: Callable[[], object], amount: float, settle: Callable[[], object] = lambda: None) -> list[float]:
    """`amount` a second, of each repeat after some that are not counted; `settle` waits for what runs beside."""
    rates: list[float] = []
    for _ in range(WARM_UP):
        work()
    settle()
    end = time.perf_counter() + SECONDS
    while len(rates) < REPEATS or (time.perf_counter() < end and len(rates) < MOST):
        started = time.perf_counter()
        work()
        settle()
        rates.append(amount / (time.perf_counter() - started))
    return rates


def threads() -> int:
    """CPUs that this process may use, rounded down: more threads than that throttle each other."""
    limits = cgroup.limits()
    known = [len(os.sched_getaffinity(0)), limits.cpuset or math.inf, limits.cpu_quota]
    return max(1, int(min(known)))


def measure_memory(context: Context) -> dict[str, Any]:
    """GB/s read and written by a copy and a triad (a = b + s c) over arrays larger than the caches."""
    import torch

    count = threads()
    torch.set_num_threads(count)
    return _memory("cpu", MEMORY_BYTES) | {"how": {"threads": count, "bytes": MEMORY_BYTES}}


def measure_gpu_memory(context: Context) -> dict[str, Any]:
    """The same on each GPU."""
    import torch

    if not torch.cuda.is_available():
        return {"skip": NO_GPU}
    found: dict[str, Any] = {}
    for index in range(torch.cuda.device_count()):
        figures = _memory(f"cuda:{index}", GPU_MEMORY_BYTES)["figures"]
        found |= {f"gpu {index} {name}": row for name, row in figures.items()}
    return {"figures": found, "how": {"bytes": GPU_MEMORY_BYTES}}


def _memory(device: str, size: int) -> dict[str, Any]:
    import torch

    settle = torch.cuda.synchronize if device != "cpu" else lambda: None
    a, b, c = (torch.ones(size // 4, device=device) for _ in range(3))
    runs = {
        "copy": repeat(lambda: a.copy_(b), 2 * size / 1e9, settle),
        "triad": repeat(lambda: torch.add(b, c, alpha=3.0, out=a), 3 * size / 1e9, settle),
    }
    return {"figures": rows(runs, "GB/s")}


def measure_products(context: Context) -> dict[str, Any]:
    """TFLOP/s of a square matrix product by data type, with all CPUs that this process may use."""
    import torch

    count = threads()
    torch.set_num_threads(count)
    runs = {dtype: _product("cpu", SIDE, dtype) for dtype in CPU_TYPES}
    how = {"threads": count, "side": SIDE, "instructions": torch.backends.cpu.get_cpu_capability()}
    return {"figures": rows(runs, "TFLOP/s"), "how": how}


def measure_gpu_products(context: Context) -> dict[str, Any]:
    """TFLOP/s by data type of each GPU; float32 as torch computes it by default, without TF32."""
    import torch

    if not torch.cuda.is_available():
        return {"skip": NO_GPU}
    devices = range(torch.cuda.device_count())
    runs = {
        f"gpu {index} {dtype}": _product(f"cuda:{index}", GPU_SIDE, dtype) for index in devices for dtype in GPU_TYPES
    }
    return {"figures": rows(runs, "TFLOP/s"), "how": {"side": GPU_SIDE, "model": torch.cuda.get_device_name(0)}}


def _product(device: str, side: int, dtype: str) -> list[float]:
    import torch

    settle = torch.cuda.synchronize if device != "cpu" else lambda: None
    left, right = (torch.randn(side, side, device=device).to(getattr(torch, dtype)) for _ in range(2))
    return repeat(lambda: left @ right, 2 * side**3 / 1e12, settle)


def measure_decode(context: Context) -> dict[str, Any]:
    """Images a second that DALI decodes with one thread: JPEGs of 500 by 375 pixels, as photographs are."""
    import numpy as np
    from nvidia.dali import fn, pipeline_def, types

    encoded = np.frombuffer(photograph(), np.uint8)

    @pipeline_def(batch_size=BATCH, num_threads=1, device_id=None, prefetch_queue_depth=1)  # type: ignore[untyped-decorator]
    def decode() -> Any:
        files = fn.external_source(source=lambda: [encoded] * BATCH, dtype=types.UINT8, ndim=1)
        return fn.decoders.image(files, device="cpu", output_type=types.RGB)

    pipeline = decode()
    pipeline.build()
    # One batch is decoded ahead of the one that is asked for: in a long row that is one a turn.
    runs = repeat(pipeline.run, BATCH)
    return {"figures": rows({"images": runs}, "images/s"), "how": {"bytes": int(encoded.size), "batch": BATCH}}


def photograph(seed: int = 0) -> bytes:
    """A JPEG whose size and detail are a photograph's: slopes, edges and grain."""
    import numpy as np
    from PIL import Image

    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:375, 0:500]
    slopes = np.stack([x / 2, y / 1.5, (x + y) / 3.5], axis=-1) + 40 * ((x // 50 + y // 50) % 2)[..., None]
    pixels = np.clip(slopes + random.normal(0, 12, slopes.shape), 0, 255).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=85)
    return buffer.getvalue()

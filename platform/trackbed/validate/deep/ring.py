"""All-reduce among ranks of this machine, by message size: gloo between two processes, NCCL between all GPUs."""

from __future__ import annotations

import json
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from trackbed.validate import MIB, Context
from trackbed.validate.deep.compute import NO_GPU, rows
from trackbed.validate.job.ring import rate, size_name
from trackbed.validate.network.addresses import gloo_fault

RANKS = 2
# Small messages vary more, and cost nothing.
REPEATS, SMALL_REPEATS, SMALL = 7, 50, MIB
GLOO_SIZES = (64 * 1024, MIB, 16 * MIB, 64 * MIB)
NCCL_SIZES = (MIB, 64 * MIB, 1024 * MIB)


def measure_gloo(context: Context) -> dict[str, Any]:
    """GB/s (bus bandwidth) of two ranks on this machine."""
    if fault := gloo_fault():
        return {"skip": f"{fault}: network.host-name"}
    return _ranks("gloo", RANKS, GLOO_SIZES, "fork")


def measure_nccl(context: Context) -> dict[str, Any]:
    """GB/s (bus bandwidth) of a rank a GPU."""
    import torch

    if not torch.cuda.is_available():
        return {"skip": NO_GPU}
    count = torch.cuda.device_count()
    if count < 2:
        return {"skip": "one GPU: it has no other to sum with"}
    # CUDA does not survive a fork.
    return _ranks("nccl", count, NCCL_SIZES, "spawn")


def _ranks(backend: str, count: int, sizes: tuple[int, ...], method: str) -> dict[str, Any]:
    from torch.multiprocessing.spawn import start_processes

    with tempfile.TemporaryDirectory(prefix="trackbed-") as folder:
        start_processes(rank, (count, backend, sizes, folder), count, start_method=method)  # type: ignore[no-untyped-call]
        runs = json.loads(Path(folder, "runs.json").read_text("utf-8"))
    return {"figures": rows(runs, "GB/s"), "how": {"ranks": count, "backend": backend}}


def rank(here: int, count: int, backend: str, sizes: tuple[int, ...], folder: str) -> None:
    """One rank; the first writes what it measured."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    device = torch.device("cuda", here) if backend == "nccl" else torch.device("cpu")
    limit = timedelta(seconds=60)
    dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=here, world_size=count, timeout=limit)
    runs = {size_name(size): [rate(size, each, count) for each in _times(size, device)] for size in sizes}
    if here == 0:
        Path(folder, "runs.json").write_text(json.dumps(runs), "utf-8")
    dist.destroy_process_group()


def _times(size: int, device: Any) -> list[float]:
    import torch
    import torch.distributed as dist

    values, times = torch.ones(size // 4, device=device), []
    for _ in range(1 + (SMALL_REPEATS if size <= SMALL else REPEATS)):
        dist.barrier()
        started = time.perf_counter()
        dist.all_reduce(values)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - started)
    return times[1:]

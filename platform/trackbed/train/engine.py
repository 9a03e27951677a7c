"""DeepSpeed, set up for one rank: process group, ZeRO, optimizer, learning rate."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from trackbed.errors import Problem, RunError
from trackbed.job import Job


@dataclass(frozen=True)
class Ranks:
    """Where this process stands among the others. The only reader of torchrun's variables."""

    rank: int
    local_rank: int
    world: int

    @classmethod
    def from_environment(cls) -> Ranks:
        get = os.environ.get
        return cls(int(get("RANK", "0")), int(get("LOCAL_RANK", "0")), int(get("WORLD_SIZE", "1")))


def check_world(ranks: Ranks, job: Job) -> None:
    """RunError when the world is not the one that the job asked for."""
    if ranks.world != job.resources.ranks:
        raise RunError(
            Problem(
                id="comm.world-size",
                what=f"{ranks.world} ranks were started, the job asks for {job.resources.ranks}",
                remedy="start it with `trackbed submit`, or with torchrun --nproc-per-node = resources.ranks",
            )
        )


def connect(ranks: Ranks, job: Job) -> torch.device:
    """Join the process group."""
    import deepspeed

    gpu = torch.cuda.is_available()
    if not gpu:
        _forget_compiled_operations()
    device = torch.device("cuda", ranks.local_rank) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    timeout = timedelta(minutes=job.resources.timeout_minutes)
    # DeepSpeed makes further groups without a timeout of their own; they take this default instead of 30 minutes.
    dist.distributed_c10d.default_pg_timeout = timeout
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("MASTER_PORT", "0")
    deepspeed.init_distributed("nccl" if gpu else "gloo", timeout=timeout, verbose=False)
    return device


def build(module: nn.Module, job: Job) -> Any:
    """The DeepSpeed engine around a module: AdamW, linear warm-up and cosine decay, clipping, ZeRO."""
    import deepspeed

    train = job.train
    groups = _parameter_groups(module, train.weight_decay)
    # fused: one pass over memory for each step instead of a dozen, on CPUs as well.
    optimizer = torch.optim.AdamW(groups, lr=train.learning_rate, betas=(0.9, 0.95), fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: learning_rate_factor(step, train.warmup_steps, train.steps)
    )
    engine, _, _, _ = deepspeed.initialize(
        model=module, optimizer=optimizer, lr_scheduler=schedule, config=job.deepspeed()
    )
    return engine


def agree_buffers(engine: Any) -> None:
    """Give all ranks rank 0's running statistics (of batch norms); collective.

    DeepSpeed saves only rank 0's: without this an evaluation would differ by rank, and a resumed run from one that
    was never cut.
    """
    for buffer in engine.module.buffers():
        dist.broadcast(buffer, src=0)


def learning_rate_factor(step: int, warmup: int, steps: int) -> float:
    """Share of the highest learning rate at a step counted from 0: a line up, then a cosine that would reach 0 after
    the last step. The first step is not wasted on a rate of 0."""
    if step < warmup:
        return (step + 1) / (warmup + 1)
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def _parameter_groups(model: Any, weight_decay: float) -> list[dict[str, Any]]:
    """Weight decay on matrices only, as is usual: not on norms and biases."""
    named = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        {"params": [p for p in named if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in named if p.ndim < 2], "weight_decay": 0.0},
    ]


def _forget_compiled_operations() -> None:
    """Keep DeepSpeed from compiling its shared-memory operation at every start on a CPU.

    Training never calls it. Compiling it takes a minute and a compiler, and a run killed meanwhile leaves a lock on
    which every later run waits for ever.
    """
    import deepspeed.ops

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False

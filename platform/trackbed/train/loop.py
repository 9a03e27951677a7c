"""The training loop of one rank, top to bottom. `trackbed train JOB.yaml` is its command line."""

from __future__ import annotations

import ctypes
import json
import math
import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from trackbed import folders, hub
from trackbed import monitor as metrics
from trackbed.errors import Problem, RunError
from trackbed.job import Job
from trackbed.monitor.writer import Writer, peak_memory_gib
from trackbed.train import checkpoint, engine, tasks
from trackbed.train.checkpoint import Position
from trackbed.train.engine import Ranks
from trackbed.train.task import Answer, Measured, Step

Say = Callable[[str], None]


class Trainer:
    """One rank of one attempt: everything is made in the constructor, `run` goes through the steps."""

    def __init__(self, job: Job, folder: Path, say: Say) -> None:
        self.job, self.folder = job, folder
        self.ranks = Ranks.from_environment()
        engine.check_world(self.ranks, job)
        self.say: Say = say if self.ranks.rank == 0 else lambda text: None
        self.stop = StopSignal()
        # Held until this process ends: two attempts must never write one folder.
        self.lock = folders.lock(folder) if self.ranks.rank == 0 else None
        torch.manual_seed(job.train.seed)
        self.task = tasks.make(job, self.ranks, folder)
        self.device = engine.connect(self.ranks, job)
        self.engine = engine.build(self.task.module, job)
        position = checkpoint.restore(self.engine, folder / "checkpoints", self.say)
        self.start = position.step if position else 0
        if position:
            self.task.pipeline.restore(position.data)
        self.writer = Writer(folder, self.start, self.say) if self.ranks.rank == 0 else None

    def run(self) -> None:
        """Train to the end of the job, or to a stop signal; a committed checkpoint is left either way."""
        self._begin()
        clock = Clock()
        for step in range(self.start, self.job.train.steps):
            self._step(step, clock)
            done = step + 1
            if self.stop.asked_of_any:
                self._leave(done)
            if done % self.job.evaluate.every == 0 and done < self.job.train.steps:
                self._evaluate(done)
            if done % self.job.checkpoint.every == 0 or done == self.job.train.steps:
                self._save(done)
        self._finish(clock)
        self.task.pipeline.close()

    def _begin(self) -> None:
        self._write_texts()
        if self.start == 0:
            before = self._evaluate(0)
            self._keep("before", before)
        else:
            self.say(f"resumed from step {self.start}")

    def _step(self, step: int, clock: Clock) -> None:
        clock.start()
        data = next(self.task.pipeline)
        clock.data_ready()
        loss = self._forward_backward(data)
        mean = self._agree(loss, step) / data.supervised_everywhere
        # get_last_lr is the rate this update is made with; the scheduler moves on inside step().
        rate = float(self.engine.optimizer.param_groups[0]["lr"])
        self.engine.step()
        self._must_have_updated(step)
        clock.finish(sum(self.task.size(batch) for batch in data.batches), data.supervised_everywhere, self.ranks.world)
        if self.writer:
            self._report(step + 1, mean, rate, clock)

    def _forward_backward(self, data: Step) -> torch.Tensor:
        """Gradients of the mean loss over the supervised tokens of all ranks; returns this rank's sum of losses."""
        # DeepSpeed divides by the number of passes and of ranks; each rank's share of the tokens differs.
        scale = self.ranks.world * len(data.batches) / data.supervised_everywhere
        total = torch.zeros((), device=self.device)
        for index, batch in enumerate(data.batches):
            self.engine.set_gradient_accumulation_boundary(index == len(data.batches) - 1)
            loss = self.engine(**self.task.tensors(batch, self.device))
            self.engine.backward(loss * scale)
            total += loss.detach()
        return total

    def _agree(self, loss: torch.Tensor, step: int) -> float:
        """Add up the loss over ranks, and let all of them know whether any was asked to stop."""
        sums = torch.stack([loss.double(), torch.tensor(float(self.stop.asked), device=self.device).double()])
        dist.all_reduce(sums)
        self.stop.asked_of_any = bool(sums[1] > 0)
        if not math.isfinite(float(sums[0])):
            raise RunError(
                Problem(
                    id="train.loss-not-finite",
                    what=f"the loss of step {step + 1} is not finite; the update was not applied",
                    remedy="lower train.learning_rate or use precision fp32; the last checkpoint is good",
                )
            )
        return float(sums[0])

    def _must_have_updated(self, step: int) -> None:
        """DeepSpeed leaves out an update whose gradient overflows and says nothing; without ZeRO it even applies it.

        Here either ends the run, before such weights could reach a checkpoint.
        """
        norm = self.engine.get_global_grad_norm()
        if self.engine.skipped_steps or (norm is not None and not math.isfinite(norm)):
            raise RunError(
                Problem(
                    id="train.gradient-not-finite",
                    what=f"the gradient of step {step + 1} is not finite",
                    remedy="lower train.learning_rate or use precision fp32; the last checkpoint is good",
                )
            )

    def _report(self, step: int, loss: float, rate: float, clock: Clock) -> None:
        assert self.writer
        values = {
            metrics.LOSS: loss,
            metrics.LEARNING_RATE: rate,
            metrics.GRADIENT_NORM: float(self.engine.get_global_grad_norm() or 0.0),
            metrics.MEMORY: peak_memory_gib(),
        }
        self.writer.numbers(step, {**values, **clock.values(self.task.unit)})
        self.say(
            f"step {step}/{self.job.train.steps}  loss {loss:.3f}  rate {rate:.1e}  "
            f"{clock.tokens / clock.seconds:.0f} {self.task.unit}/s"
        )

    def _evaluate(self, step: int) -> Measured:
        engine.agree_buffers(self.engine)
        measured = self.task.measure(self.engine)
        if self.writer:
            values = {metrics.HELD_OUT_LOSS: measured.loss, metrics.held_out(self.task.right): measured.right}
            self.writer.numbers(step, values)
            self.writer.text(step, "answers", answers_table(measured.answers))
            self.writer.flush()
        self.say(
            f"held-out loss {measured.loss:.3f}  {self.task.right} {measured.right:.1%}  "
            f"({measured.samples} samples, after {step} steps)"
        )
        return measured

    def _save(self, step: int) -> None:
        engine.agree_buffers(self.engine)
        position = Position(step, self.task.pipeline.state())
        path = checkpoint.save(self.engine, self.folder / "checkpoints", position, self.job.checkpoint.keep)
        self.say(f"checkpoint {path.name} committed")

    def _leave(self, step: int) -> None:
        self._save(step)
        raise RunError(
            Problem(
                id="run.interrupted",
                what=f"the run was asked to stop and stopped after step {step}, with a committed checkpoint",
                remedy=f"trackbed submit --resume {self.folder}",
            )
        )

    def _finish(self, clock: Clock) -> None:
        after = self._evaluate(self.job.train.steps)
        self._keep("after", after)
        self._export()
        if self.writer:
            self._keep_summary(clock)
            self.writer.close()
        dist.barrier()

    def _export(self) -> None:
        """The trained model as a folder that transformers loads."""
        if self.ranks.rank != 0:
            return
        partial, final = self.folder / ".model.partial", self.folder / "model"
        shutil.rmtree(partial, ignore_errors=True)
        self.task.export(self.engine, partial)
        hub.make_readable(partial)
        shutil.rmtree(final, ignore_errors=True)
        os.replace(partial, final)

    def _keep(self, name: str, measured: Measured) -> None:
        if self.ranks.rank == 0:
            write_json(self.folder / f"{name}.json", asdict(measured))

    def _keep_summary(self, clock: Clock) -> None:
        parts = {name: json.loads((self.folder / f"{name}.json").read_text("utf-8")) for name in ("before", "after")}
        speed = {"per_second": clock.mean_per_second, "data_wait_share": clock.data_wait_share}
        names = {"unit": self.task.unit, "right": self.task.right, "note": self.task.note}
        write_json(self.folder / "summary.json", {**parts, **speed, **names, "steps": self.job.train.steps})

    def _write_texts(self) -> None:
        if not self.writer:
            return
        for name in ("job.yaml", "plan.json", "validation.json"):
            path = self.folder / name
            if path.exists():
                body = "".join(f"    {line}\n" for line in path.read_text("utf-8").splitlines())
                self.writer.text(self.start, f"run/{path.stem}", body)


@dataclass
class Clock:
    """Where the time of the steps goes; seconds from a clock that never jumps."""

    seconds: float = 1.0
    waited: float = 0.0
    tokens: float = 0.0
    supervised: float = 0.0
    total_seconds: float = 0.0
    total_waited: float = 0.0
    total_tokens: float = 0.0
    _started: float = 0.0

    def start(self) -> None:
        self._started = time.monotonic()

    def data_ready(self) -> None:
        self.waited = time.monotonic() - self._started

    def finish(self, tokens: int, supervised_everywhere: int, world: int) -> None:
        """Close a step. tokens is this rank's, without padding; ranks take about equal shares."""
        self.seconds = time.monotonic() - self._started
        self.tokens, self.supervised = tokens * world, supervised_everywhere
        self.total_seconds += self.seconds
        self.total_waited += self.waited
        self.total_tokens += self.tokens

    def values(self, unit: str) -> dict[str, float]:
        return {
            metrics.STEP_SECONDS: self.seconds,
            metrics.speed(unit): self.tokens / self.seconds,
            metrics.speed(f"supervised_{unit}"): self.supervised / self.seconds,
            metrics.DATA_WAIT: self.waited / self.seconds,
        }

    @property
    def mean_per_second(self) -> float:
        return self.total_tokens / self.total_seconds if self.total_seconds else 0.0

    @property
    def data_wait_share(self) -> float:
        return self.total_waited / self.total_seconds if self.total_seconds else 0.0


class StopSignal:
    """SIGTERM and SIGINT are remembered and acted upon at the end of a step, by all ranks at the same one."""

    def __init__(self) -> None:
        self.asked = False
        self.asked_of_any = False
        signal.signal(signal.SIGTERM, self._remember)
        signal.signal(signal.SIGINT, self._remember)
        # A rank whose torchrun was killed is told as well, and does not live on holding a GPU.
        parent_death_signal = 1
        ctypes.CDLL(None).prctl(parent_death_signal, signal.SIGTERM)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.asked = True


def answers_table(answers: list[Answer]) -> str:
    """Markdown for TensorBoard's Text tab."""
    rows = [
        f"| {a.question} | `{a.wanted}` | `{a.given}` | {'yes' if a.given == a.wanted else 'no'} |" for a in answers
    ]
    return "\n".join(["| question | right answer | model's answer | exact |", "|---|---|---|---|", *rows])


def write_json(path: Path, value: Any) -> None:
    folders.replace(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")

"""What a job would do, worked out before it runs: data counted, memory added up, the command written out."""

from __future__ import annotations

import ctypes
import json
import math
import shlex
import signal
import struct
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trackbed import hub
from trackbed.errors import DataError, ModelError, Problem
from trackbed.job import ChatJob, Job, data_path
from trackbed.submit.run import Run

BYTES = {"bf16": 2, "fp32": 4}


@dataclass(frozen=True)
class Plan:
    """Figures of a run that has not begun. Memory is an estimate, in GiB a rank, without activations."""

    run: str
    model: str
    model_note: str
    parameters: int
    ranks: int
    steps: int
    rows_per_step: int
    epochs: float
    data: dict[str, Any]
    state_gib_per_rank: float
    checkpoint_gib: float
    deepspeed: dict[str, Any]
    command: list[str]
    environment: dict[str, str]
    profile: str = ""
    profile_note: str = ""
    """Why a run that should be profiled is not."""

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2)

    def shell(self) -> str:
        """The command as a person would type it."""
        words = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " ".join([*words, shlex.join(self.command)])


def work_out(job: Job, run: Run, job_file: Path, overrides: tuple[str, ...]) -> Plan:
    """Everything that can be known before ranks start. Raises the error that would otherwise end the run."""
    home = hub.resolve(job.model.name) if isinstance(job, ChatJob) else None
    data_path(job.data.train), data_path(job.data.heldout)
    data = _count_data(job_file, overrides)
    parameters = count_parameters(home) if home else data["train"]["parameters"]
    rows = job.train.rows_per_rank * job.train.accumulate * job.resources.ranks
    width = BYTES[job.model.precision]
    return Plan(
        run=str(run.folder),
        model=str(home or job.model.title),
        model_note=hub.describe(home) if home else "random weights",
        parameters=parameters,
        ranks=job.resources.ranks,
        steps=job.train.steps,
        rows_per_step=rows,
        epochs=round(job.train.steps * rows / data["train"]["rows"], 3),
        data=data,
        state_gib_per_rank=round(parameters * state_bytes(job) / 2**30, 4),
        checkpoint_gib=round(parameters * (width + 12) / 2**30, 4),
        deepspeed=job.deepspeed(),
        command=command(job, run),
        environment=environment(),
    )


def command(job: Job, run: Run) -> list[str]:
    """torchrun, one agent on this machine, as many ranks as the job asks for."""
    # A rank that is asked to stop first commits a checkpoint; torchrun's own patience is 30 s.
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(job.resources.ranks)]
    launch += ["--shutdown-timeout", "300", "-m", "trackbed", "train", str(run.job)]
    return [sys.executable, *launch]


def environment() -> dict[str, str]:
    """Set for every rank, on top of the submitter's own environment."""
    return {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}


def state_bytes(job: Job) -> float:
    """Bytes a parameter costs one rank: weights, gradients, and the optimizer's fp32 copy and two moments."""
    width, ranks, stage = BYTES[job.model.precision], job.resources.ranks, job.train.zero_stage
    master = 4 if job.model.precision == "bf16" or stage else 0
    optimizer = (8 + master) / (ranks if stage >= 1 else 1)
    return width + width / (ranks if stage >= 2 else 1) + optimizer


def count_parameters(model: Path) -> int:
    """Parameters in a folder's safetensors files, from their headers alone."""
    return sum(_count_in(path) for path in sorted(model.glob("*.safetensors")))


def _count_in(path: Path) -> int:
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(min(length, path.stat().st_size)))
    except (ValueError, struct.error) as error:
        what = "the weights are no safetensors file, or are cut off"
        raise ModelError(
            Problem(id="model.bad-weights", where=str(path), what=what, remedy="fetch them again")
        ) from error
    return sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")


def _count_data(job_file: Path, overrides: tuple[str, ...]) -> dict[str, Any]:
    """Prepare the data in a process of its own: its libraries are heavy and must not burden the submitter.

    Its progress goes to this one's standard error.
    """
    flags = [word for override in overrides for word in ("--set", override)]
    command = [sys.executable, "-m", "trackbed", "data", "check", str(job_file), "--json", *flags]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, preexec_fn=end_with_parent)
    if done.returncode == 0:
        return dict(json.loads(done.stdout))
    try:
        problems = [Problem(**problem) for problem in json.loads(done.stdout)["problems"]]
    except (ValueError, KeyError, TypeError):
        what = f"the data check ended with exit code {done.returncode}; what it said is above"
        problems = [Problem(id="data.check-crashed", what=what)]
    raise DataError(problems)


def end_with_parent() -> None:
    """For a new process: it is asked to stop when the submitter dies, however it dies."""
    parent_death_signal = 1
    ctypes.CDLL(None).prctl(parent_death_signal, signal.SIGTERM)

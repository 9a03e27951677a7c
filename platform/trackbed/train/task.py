"""What the loop asks of a kind of job: a model that gives a summed loss, a stream of steps, a measure, a result."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from trackbed.data.pipeline import Pipeline


class Step(Protocol):
    """One rank's forward passes in an optimizer step."""

    @property
    def batches(self) -> list[Any]: ...

    @property
    def supervised_everywhere(self) -> int:
        """What the loss is the mean over: supervised tokens, or samples, of all ranks together."""
        ...


@dataclass(frozen=True)
class Answer:
    """What the model said to a held-out question, and what was right."""

    question: str
    wanted: str
    given: str


@dataclass(frozen=True)
class Measured:
    """Held-out loss (nats a supervised token or sample), a share of right answers, and some of them (rank 0)."""

    loss: float
    right: float
    samples: int
    answers: list[Answer]


class Task(Protocol):
    """One kind of job, on one rank."""

    @property
    def unit(self) -> str:
        """What speed is counted in: tokens, images, sounds."""
        ...

    @property
    def right(self) -> str:
        """What `Measured.right` is called: exact match, accuracy."""
        ...

    @property
    def module(self) -> nn.Module:
        """Called with a batch's tensors; returns the summed loss, a scalar, fp32."""
        ...

    @property
    def pipeline(self) -> Pipeline[Step]: ...

    @property
    def note(self) -> str:
        """What is to be said wherever results are shown; empty when nothing is."""
        ...

    def size(self, batch: Any) -> int:
        """How much a batch holds in the task's unit, without padding."""
        ...

    def tensors(self, batch: Any, device: torch.device) -> dict[str, torch.Tensor]:
        """A batch as the arguments of the module."""
        ...

    def measure(self, engine: Any) -> Measured:
        """Evaluate the engine's weights; collective."""
        ...

    def export(self, engine: Any, folder: Path) -> None:
        """Save the trained model as transformers loads it. Rank 0 only."""
        ...

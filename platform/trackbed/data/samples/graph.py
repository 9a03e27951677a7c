"""The DALI half of a pipeline: a batch of samples in, torch tensors out, and the culprit named when DALI fails.

DALI gets its samples through external sources, one batch at a time, so it has no order and no epoch to forget. Its
outputs become torch tensors through DLPack without a copy; each owns its memory: a batch that is kept stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from nvidia.dali import Pipeline as DaliPipeline
from torch.utils.dlpack import from_dlpack

# What DALI says of an operator that failed, and only then.
DEAD = "Critical error in pipeline"

Array = npt.NDArray[Any]
Drawn = npt.NDArray[np.float64]


class Work(Protocol):
    """What is done with a sample: first in a worker thread, then with its batch in DALI."""

    @property
    def names(self) -> Sequence[str]:
        """Of the external sources of the graph; `sample` gives one array for each."""
        ...

    @property
    def draws(self) -> int:
        """Random numbers that a sample takes."""
        ...

    @property
    def settings(self) -> str:
        """Everything that changes what comes out."""
        ...

    def sample(self, data: bytes, drawn: Drawn) -> tuple[Array, ...]:
        """What DALI is given of a sample; drawn: float64 [draws] in [0, 1). ValueError when it cannot be decoded."""
        ...

    def blank(self) -> tuple[Array, ...]:
        """What DALI is given in the place of a sample that is not there."""
        ...

    def graph(self) -> Sequence[Any]:
        """DALI's nodes: the inputs, and the labels where they are made of the sample."""
        ...

    def fault(self, data: bytes) -> str:
        """What is wrong with an encoded sample, as far as its structure says; "" when nothing is."""
        ...


class Undecodable(Exception):
    """The rows of a batch that DALI cannot decode, and what it says of each."""

    def __init__(self, faults: dict[int, str]) -> None:
        super().__init__(str(faults))
        self.faults = faults


class Graph:
    """A DALI pipeline for batches of `rows`, on the CPU (device None) or on a GPU."""

    def __init__(self, work: Work, *, rows: int, workers: int, device: int | None = None) -> None:
        self._work, self._rows, self._workers, self._device = work, rows, workers, device
        self._pipe: Any = self._build(rows)

    def run(self, rows: Sequence[tuple[Array, ...]]) -> list[torch.Tensor]:
        """One tensor for every output, [rows, ...]. Undecodable names rows at fault: run again without them."""
        try:
            return self._run(self._pipe, rows)
        except RuntimeError as error:
            # DALI says neither which sample it was nor does it go on: its pipeline is dead.
            self._pipe = None
            faults = self._culprits(rows)
            self._pipe = self._build(self._rows)
            if not faults:
                raise
            raise Undecodable(faults) from error

    def close(self) -> None:
        self._pipe = None

    def _run(self, pipe: Any, rows: Sequence[tuple[Array, ...]]) -> list[torch.Tensor]:
        fed = {name: [row[index] for row in rows] for index, name in enumerate(self._work.names)}
        return [from_dlpack(output.as_tensor()) for output in pipe.run(**fed)]

    def _culprits(self, rows: Sequence[tuple[Array, ...]]) -> dict[int, str]:
        faults: dict[int, str] = {}
        pipe = self._build(1)
        # Where a blank fails too, it is not the samples: that error is raised as it is.
        self._run(pipe, [self._work.blank()])
        for index, row in enumerate(rows):
            try:
                self._run(pipe, [row])
            except RuntimeError as error:
                if DEAD not in str(error):
                    raise
                faults[index] = _reason(error)
                pipe = self._build(1)
        return faults

    def _build(self, rows: int) -> Any:
        # One batch at a time: how far ahead is read is the loader's decision.
        pipe = DaliPipeline(
            batch_size=rows, num_threads=self._workers, device_id=self._device, prefetch_queue_depth=1, seed=0
        )
        with pipe:
            pipe.set_outputs(*self._work.graph())
        pipe.build()
        return pipe


def _reason(error: RuntimeError) -> str:
    """What DALI says between its own place in the code and the end of its pipeline; often it does not say why."""
    told = str(error).partition("encountered:")[2].strip().splitlines()
    why = told[0].strip() if told and not told[0].startswith("Failed to decode sample") else ""
    return f"DALI cannot decode it: {why}" if why else "DALI cannot decode it"

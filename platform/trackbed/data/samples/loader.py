"""One rank's batches of images, sounds or tokens: order and cursor are ours, pixels and sound are DALI's.

Threads read and decode the samples of the next `ahead` steps; one thread more hands them to DALI, in order. What comes
out depends on (data, seed, step, rank) alone, so that any number of workers gives the same batches, bit for bit, and to
resume is to begin at another step: nothing is replayed.
"""

from __future__ import annotations

import hashlib
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch

from trackbed.data.order import PADDING, Numbers, Order, Share, uniform
from trackbed.data.pipeline import State, agreed_step
from trackbed.data.samples.corrupt import Bad, Policy, Quarantine
from trackbed.data.samples.graph import Array, Drawn, Graph, Undecodable, Work
from trackbed.data.samples.sources import Source, digest
from trackbed.errors import DataError

# The label of a row that is not valid: torch's losses leave it out by default.
IGNORED = -100


@dataclass(frozen=True)
class Batch:
    """Tensors of one forward pass.

    inputs [rows, ...]; labels int64 [rows], of tokens [rows, tokens]; valid bool [rows]; numbers int64 [rows], which
    sample of the source each row is. A row that is not valid is padding (number -1) or could not be read: its inputs
    are zeros, its labels IGNORED.
    """

    inputs: torch.Tensor
    labels: torch.Tensor
    valid: torch.Tensor
    numbers: torch.Tensor


Step = list[Batch]
"""One batch for every forward pass of an optimizer step."""


@dataclass(frozen=True, kw_only=True)
class Loading:
    """How samples are ordered and loaded."""

    seed: int = 0
    window: int = 0
    """Samples that are shuffled together, for sets read from slow or far storage; 0 shuffles the whole set."""
    workers: int = 2
    ahead: int = 2
    """Steps that are loaded before they are asked for."""
    device: int | None = None
    """The GPU that DALI works on; None is the CPU."""


@dataclass(frozen=True)
class Row:
    """One sample as DALI is given it; `fault` says why it is blank, where it is."""

    arrays: tuple[Array, ...]
    label: int = IGNORED
    fault: str = ""


class Loader:
    """The stream of steps of one global rank; keeps `trackbed.data.pipeline`.

    Training shuffles every epoch and never ends. `once` gives every sample once, in the order of the files, and ends:
    the last batches are padded with rows that are not valid, so that all ranks take equally many steps.
    """

    def __init__(
        self, source: Source, work: Work, share: Share, loading: Loading, *,
        quarantine: Quarantine | None = None, once: bool = False,
    ) -> None:  # fmt: skip
        self._source, self._work, self._share, self._loading, self._once = source, work, share, loading, once
        self._order = Order(len(source), loading.seed, shuffle=not once, window=loading.window)
        self._quarantine = quarantine or Quarantine(Policy(), len(source), rank=share.rank)
        order = f"{loading.seed} {loading.window} {once} {share.step}"
        self._digest = digest([source.digest, work.settings, order])
        self._workers = ThreadPoolExecutor(loading.workers, thread_name_prefix="trackbed-data")
        self._conductor = ThreadPoolExecutor(1, thread_name_prefix="trackbed-dali")
        self._graph = Graph(work, rows=share.rows, workers=loading.workers, device=loading.device)
        self._steps: deque[Future[Step]] = deque()
        self._step = 0

    def __iter__(self) -> Loader:
        return self

    def __next__(self) -> Step:
        while len(self._steps) <= self._loading.ahead and self._exists(self._step + len(self._steps)):
            self._steps.append(self._begin(self._step + len(self._steps)))
        if not self._steps:
            raise StopIteration
        try:
            step = self._steps.popleft().result()
        except BaseException:
            self._drop()
            raise
        self._step += 1
        return step

    @property
    def epoch(self) -> int:
        """The epoch that the next step begins in, counted from 0."""
        return self._order.epoch(self._step * self._share.step)

    @property
    def steps(self) -> int:
        """Steps that it takes to give every sample once; a step at the end of an epoch reaches into the next one."""
        return -(-len(self._source) // self._share.step)

    def state(self) -> State:
        return {"step": self._step, "data": self._digest}

    def restore(self, state: State) -> None:
        step = agreed_step(state, self._digest)
        self._drop()
        self._step = step

    def close(self) -> None:
        self._drop()
        self._workers.shutdown(cancel_futures=True)
        self._conductor.shutdown(cancel_futures=True)
        self._graph.close()

    def _exists(self, step: int) -> bool:
        return not self._once or step < self.steps

    def _drop(self) -> None:
        """Forget what was loaded ahead; what is under way ends by itself and is not looked at."""
        while self._steps:
            self._steps.pop().cancel()

    def _begin(self, step: int) -> Future[Step]:
        parts = [self._numbers(self._share.begins(step, part)) for part in range(self._share.accumulate)]
        rows = [self._rows(numbers, drawn) for numbers, drawn in parts]
        return self._conductor.submit(self._finish, [numbers for numbers, _ in parts], rows)

    def _numbers(self, start: int) -> tuple[Numbers, Drawn]:
        """The samples at the positions from `start` on, int64 [rows], and their random numbers."""
        rows, size = self._share.rows, len(self._source)
        positions = np.arange(start, start + rows, dtype=np.int64)
        numbers = self._order.at(start, rows)
        if self._once:
            numbers[positions >= size] = PADDING
        return numbers, uniform(numbers, positions // size, self._loading.seed, self._work.draws)

    def _rows(self, numbers: Numbers, drawn: Drawn) -> list[Future[Row]]:
        return [self._workers.submit(self._row, int(number), mine) for number, mine in zip(numbers, drawn, strict=True)]

    def _row(self, number: int, drawn: Drawn) -> Row:
        if number == PADDING:
            return Row(self._work.blank())
        try:
            sample = self._source.read(number)
            return Row(self._work.sample(sample.data, drawn), sample.label)
        except DataError as error:
            return Row(self._work.blank(), fault=error.problems[0].what)
        except ValueError as error:
            return Row(self._work.blank(), fault=str(error))

    def _finish(self, parts: list[Numbers], rows: list[list[Future[Row]]]) -> Step:
        return [self._batch(numbers, [row.result() for row in mine]) for numbers, mine in zip(parts, rows, strict=True)]

    def _batch(self, numbers: Numbers, rows: list[Row]) -> Batch:
        self._quarantine.add([self._bad(numbers, index, row.fault) for index, row in enumerate(rows) if row.fault])
        try:
            outputs = self._graph.run([row.arrays for row in rows])
        except Undecodable as error:
            blank = {index: Row(self._work.blank(), fault=fault) for index, fault in error.faults.items()}
            return self._batch(numbers, [blank.get(index, row) for index, row in enumerate(rows)])
        return _collate(numbers, rows, outputs)

    def _bad(self, numbers: Numbers, index: int, fault: str) -> Bad:
        number = int(numbers[index])
        where = self._source.where(number)
        try:
            return Bad(number, where, fault, hashlib.sha256(self._source.read(number).data).hexdigest())
        except DataError:
            return Bad(number, where, fault)


def _collate(numbers: Numbers, rows: list[Row], outputs: list[torch.Tensor]) -> Batch:
    valid = torch.tensor([not row.fault and bool(number != PADDING) for number, row in zip(numbers, rows, strict=True)])
    labels = outputs[1] if len(outputs) > 1 else torch.tensor([row.label for row in rows])
    if not valid.all():
        outputs[0][~valid.to(outputs[0].device)] = 0
        labels[~valid.to(labels.device)] = IGNORED
    return Batch(outputs[0], labels, valid, torch.from_numpy(numbers))

"""What one rank trains on and evaluates with: the steps of a job's labelled samples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trackbed.data.config import SampleConfig
from trackbed.data.order import Share
from trackbed.data.pipeline import State
from trackbed.data.samples.corrupt import Policy, Quarantine
from trackbed.data.samples.loader import Batch, Loader
from trackbed.data.samples.parts import Parts
from trackbed.data.samples.settings import loading, work
from trackbed.data.samples.sources import Source


@dataclass(frozen=True)
class Step:
    """One rank's forward passes in an optimizer step, and how many samples all ranks take."""

    batches: list[Batch]
    supervised_everywhere: int


class Training:
    """A loader's steps as the loop takes them; keeps `trackbed.data.pipeline`."""

    def __init__(self, loader: Loader, share: Share) -> None:
        self._loader, self._everywhere = loader, share.step

    def __next__(self) -> Step:
        return Step(next(self._loader), self._everywhere)

    def state(self) -> State:
        return self._loader.state()

    def restore(self, state: State) -> None:
        self._loader.restore(state)

    def close(self) -> None:
        self._loader.close()


class Evaluation:
    """Every held-out sample once, each time it is gone through; all ranks take equally many batches."""

    def __init__(self, source: Source, config: SampleConfig, share: Share) -> None:
        self._source, self._config, self._share = source, config, Share(share.rank, share.world, share.rows)

    def __iter__(self) -> Iterator[Batch]:
        loader = Loader(self._source, work(self._config, train=False), self._share, loading(self._config), once=True)
        try:
            for batches in loader:
                yield from batches
        finally:
            loader.close()


def training(parts: Parts, config: SampleConfig, share: Share, quarantine: Path) -> Training:
    """The endless stream of steps of one rank. What fails at a step is listed beside `quarantine`, by rank."""
    policy = Policy(config.on_corrupt, config.skip_at_most, quarantine)
    late = Quarantine(policy, len(parts.train), rank=share.rank)
    loader = Loader(parts.train, work(config, train=True), share, loading(config), quarantine=late)
    return Training(loader, share)

"""What one rank trains on and evaluates with: the steps of a job's labelled samples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trackbed.data.config import SampleConfig
from trackbed.data.order import Share
from trackbed.data.pipeline import State
from trackbed.data.samples.corrupt import Policy, Quarantine, write_list
from trackbed.data.samples.loader import Batch, Loader
from trackbed.data.samples.parts import Parts
from trackbed.data.samples.settings import loading, work


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
    """Every held-out sample once, each time it is gone through; all ranks take equally many batches.

    What cannot be used is handled by the same policy as in training, and listed in `quarantine` and beside it.
    """

    def __init__(self, parts: Parts, config: SampleConfig, share: Share, quarantine: Path) -> None:
        self._source, self._config, self._share = parts.heldout, config, Share(share.rank, share.world, share.rows)
        self._quarantine = _quarantine(parts, "heldout", config, share.rank, quarantine)

    def __iter__(self) -> Iterator[Batch]:
        loader = Loader(
            self._source, work(self._config, train=False), self._share, loading(self._config),
            quarantine=self._quarantine, once=True,
        )  # fmt: skip
        try:
            for batches in loader:
                yield from batches
        finally:
            loader.close()


def training(parts: Parts, config: SampleConfig, share: Share, quarantine: Path) -> Training:
    """The endless stream of steps of one rank. `quarantine` lists what the scan left out; what fails at a step is
    listed beside it, by rank."""
    late = _quarantine(parts, "train", config, share.rank, quarantine)
    loader = Loader(parts.train, work(config, train=True), share, loading(config), quarantine=late)
    return Training(loader, share)


def _quarantine(parts: Parts, part: str, config: SampleConfig, rank: int, path: Path) -> Quarantine:
    found, source = parts.left_out[part], parts.train if part == "train" else parts.heldout
    if found and rank == 0:
        write_list(path, found)
    policy = Policy(config.on_corrupt, config.skip_at_most, path)
    return Quarantine(policy, len(source) + len(found), found, rank=rank)

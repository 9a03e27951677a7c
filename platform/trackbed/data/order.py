"""Which sample stands where: the order of every epoch as a pure function of (samples, seed, epoch).

The samples of all epochs form one endless stream of positions. A step takes the next `world x accumulate x rows`
positions and each rank its own part of them, so all ranks take equally many steps, no sample of an epoch is lost or
seen twice whatever the world size, and the cursor of a resumed run is the step alone. Nothing is kept and nothing is
replayed: any position can be asked for at any time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from trackbed.errors import DataError, Problem

Numbers = npt.NDArray[np.int64]

# Parts a window is put together from: enough that neighbours in the files end up far apart, few enough that reading
# stays sequential.
BLOCKS_IN_WINDOW = 16
PADDING = -1


@dataclass(frozen=True)
class Share:
    """Which rank of how many (global, never local), and how much it takes at a step."""

    rank: int
    world: int
    rows: int
    accumulate: int = 1

    @property
    def step(self) -> int:
        """Positions that all ranks together take at a step."""
        return self.world * self.accumulate * self.rows

    def begins(self, step: int, part: int) -> int:
        """The first position of this rank's forward pass `part` at a step."""
        return step * self.step + (part * self.world + self.rank) * self.rows


class Order:
    """The order of `size` samples.

    window = 0 shuffles the whole set. A window of w samples shuffles blocks of w / 16 neighbouring samples, lays 16
    such blocks together and shuffles within them: memory and the reach of reads are bounded, for sets that do not fit.
    """

    def __init__(self, size: int, seed: int, *, shuffle: bool = True, window: int = 0) -> None:
        if size < 1:
            raise DataError(Problem(id="data.no-samples", what="there is no sample to take", remedy="give it data"))
        self.size, self._seed, self._shuffle = size, seed, shuffle
        self._block = max(1, window // BLOCKS_IN_WINDOW) if window and window < size else size
        self._blocks = lru_cache(maxsize=2)(self._shuffle_blocks)
        self._window = lru_cache(maxsize=4)(self._shuffle_window)

    def at(self, start: int, count: int) -> Numbers:
        """Sample numbers, int64 [count], at positions start, start + 1, ... of the endless stream."""
        return np.array([self._one(position) for position in range(start, start + count)], dtype=np.int64)

    def epoch(self, position: int) -> int:
        """The epoch that a position lies in, counted from 0."""
        return position // self.size

    def _one(self, position: int) -> int:
        epoch, inside = divmod(position, self.size)
        if not self._shuffle:
            return inside
        reach = self._block * BLOCKS_IN_WINDOW
        return int(self._window(epoch, inside // reach)[inside % reach])

    def _shuffle_blocks(self, epoch: int) -> Numbers:
        """The first sample of every block, in this epoch's order; a last, shorter block stays last."""
        firsts = np.arange(0, self.size, self._block, dtype=np.int64)
        whole = self.size // self._block
        firsts[:whole] = np.random.default_rng((self._seed, epoch)).permutation(firsts[:whole])
        return firsts

    def _shuffle_window(self, epoch: int, number: int) -> Numbers:
        firsts = self._blocks(epoch)[number * BLOCKS_IN_WINDOW : (number + 1) * BLOCKS_IN_WINDOW]
        blocks = [np.arange(first, min(first + self._block, self.size), dtype=np.int64) for first in firsts]
        return np.random.default_rng((self._seed, epoch, number)).permutation(np.concatenate(blocks))


def uniform(numbers: Numbers, epochs: Numbers, seed: int, draws: int) -> npt.NDArray[np.float64]:
    """Random numbers in [0, 1), float64 [len(numbers), draws]: a pure function of (seed, epoch, sample, draw).

    A sample is augmented the same whatever rank takes it, in whatever batch, by however many workers, and after a
    resume. splitmix64 (Steele, Lea and Flood, 2014) over a mixture of the four.
    """
    key = _mix(np.uint64(seed) + _mix(epochs.astype(np.uint64) + _mix(numbers.astype(np.uint64))))
    counters = np.arange(1, draws + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    with np.errstate(over="ignore"):
        bits = _mix(key[:, None] + counters[None, :])
    drawn: npt.NDArray[np.float64] = (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return drawn


def _mix(value: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed: npt.NDArray[np.uint64] = value ^ (value >> np.uint64(31))
    return mixed

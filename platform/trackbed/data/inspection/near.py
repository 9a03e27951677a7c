"""Near-duplicates by MinHash (Broder, 1997) over shingles of three tokens, in little memory.

Each sample is a set of shingles; 63 hashes of it, in 21 bands of three, bring likely pairs together: two samples that
share 0.8 of their shingles miss each other in all bands three times in ten million. The pairs that met, and have
enough equal hashes, are then compared exactly. The hashes, 252 bytes a sample, lie in a file without a name; in memory
are a band of them, and a few bytes a sample.

Three tokens and not five, as long documents are compared by: a chat sample has some tens of tokens, of which one that
is another takes as many shingles with it as a shingle is long.

What more than half of the samples have in common, the words of the template and of a question that is always asked
alike, does not count: it says nothing of which sample it is.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from trackbed import folders
from trackbed.data.chat.fingerprint import Progress
from trackbed.data.chat.prepared import Prepared

SHINGLE = 3
BANDS, ROWS = 21, 3
LEAST = 0.8
"""Shingles in common, of all that either of two samples has (Jaccard), from which they are near-duplicates."""
# Of the share of equal hashes, which estimates it: three standard deviations lower.
WORTH_A_LOOK = 0.65
FEW = 3  # a sample with fewer shingles of its own is not looked at
SAMPLED, COMMON, COMMON_AT_LEAST = 1000, 0.5, 4
CHUNK_TOKENS = 1 << 18
FIRST_OF_A_BUCKET = 3

Hashes = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int64]
Found = dict[int, tuple[int, float]]
"""By sample: one that it is nearly a duplicate of, and how much they share."""

_RANDOM = np.random.default_rng(20261130)
FACTORS = _RANDOM.integers(1, 2**63, BANDS * ROWS, dtype=np.uint64) | np.uint64(1)
ADDED = _RANDOM.integers(0, 2**63, BANDS * ROWS, dtype=np.uint64)
BASE = np.uint64(0x9E3779B97F4A7C15)


class Signatures:
    """The hashes of every sample of a part; `valid` bool [samples] says which have enough shingles to be compared."""

    def __init__(self, samples: Prepared, common: Hashes, progress: Progress) -> None:
        self._samples, self._common = samples, common
        folders.cache().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folders.cache()) as file:
            self._least: Any = np.memmap(file, np.uint32, "w+", shape=(BANDS * ROWS, len(samples)))
        self.valid = np.zeros(len(samples), dtype=np.bool_)
        self.shingles = lru_cache(maxsize=4096)(self._shingles)
        for first, last in chunks(samples.lengths):
            self._sign(first, last)
            progress("compare shingles", last, len(samples))

    def keys(self, band: int) -> Hashes:
        """One number for a band's hashes, uint64 [samples]."""
        key = np.zeros(len(self.valid), dtype=np.uint64)
        for row in range(ROWS):
            key = _mix(key * BASE + self._least[band * ROWS + row].astype(np.uint64))
        return key

    def alike(self, mine: Numbers, other: Signatures, theirs: Numbers) -> npt.NDArray[np.float64]:
        """The share of equal hashes of each pair, float64 [pairs]."""
        equal = np.zeros(len(mine), dtype=np.int64)
        for row in range(BANDS * ROWS):
            equal += self._least[row][mine] == other._least[row][theirs]
        return equal / (BANDS * ROWS)

    def _shingles(self, number: int) -> Hashes:
        found = np.unique(shingles(self._samples[number].ids))
        return found[~np.isin(found, self._common)]

    def _sign(self, first: int, last: int) -> None:
        hashed, owner = _joined(self._samples, first, last)
        kept = ~np.isin(hashed, self._common)
        hashed, owner = hashed[kept], owner[kept]
        counts = np.bincount(owner, minlength=last - first)
        there = np.flatnonzero(counts)
        self.valid[first:last] = counts >= FEW
        if not len(there):
            return
        starts = (np.cumsum(counts) - counts)[there]
        for row in range(BANDS * ROWS):
            values = (hashed * FACTORS[row] + ADDED[row]) >> np.uint64(32)
            self._least[row, first + there] = np.minimum.reduceat(values, starts)


def shingles(ids: Numbers) -> Hashes:
    """A hash of every three tokens that follow one another, uint64 [tokens - 2]."""
    count = max(0, len(ids) - SHINGLE + 1)
    tokens, hashed = ids.astype(np.uint64), np.zeros(count, dtype=np.uint64)
    for offset in range(SHINGLE):
        hashed = hashed * BASE + tokens[offset : offset + count] + np.uint64(1)
    return _mix(hashed)


def common(parts: Sequence[Prepared]) -> Hashes:
    """Shingles that more than half of the samples have, by up to 1,000 samples of each part; sorted."""
    seen: list[Hashes] = []
    for samples in parts:
        count = min(SAMPLED, len(samples))
        seen += [np.unique(shingles(samples[index * len(samples) // count].ids)) for index in range(count)]
    found, counts = np.unique(np.concatenate(seen), return_counts=True)
    return found[counts > max(COMMON * len(seen), COMMON_AT_LEAST)]


def inside(part: Signatures, skip: npt.NDArray[np.bool_]) -> Found:
    """Samples that are nearly the same as an earlier one of the same part, `skip` left out."""
    found: Found = {}
    left = part.valid & ~skip
    for band in range(BANDS):
        members = np.flatnonzero(left)
        keys = part.keys(band)[members]
        order = np.argsort(keys, kind="stable")
        same = np.flatnonzero(keys[order][1:] == keys[order][:-1]) + 1
        _, run = np.unique(keys[order], return_inverse=True)
        head = np.searchsorted(run, run[same])  # where the run of equal keys begins
        pairs = _likely(part, members[order[same]], part, members[order[head]])
        found |= dict(_near(part, part, pairs))
        left[list(found)] = False
    return found


def across(part: Signatures, other: Signatures, skip: npt.NDArray[np.bool_]) -> Found:
    """Samples that are nearly the same as one of the other part, `skip` left out."""
    found: Found = {}
    left = part.valid & ~skip
    theirs = np.flatnonzero(other.valid)
    for band in range(BANDS):
        mine = np.flatnonzero(left)
        keys, wanted = other.keys(band)[theirs], part.keys(band)[mine]
        order = np.argsort(keys, kind="stable")
        first = np.searchsorted(keys[order], wanted)
        for more in range(FIRST_OF_A_BUCKET):
            at = np.minimum(first + more, len(keys) - 1)
            met = keys[order[at]] == wanted if len(keys) else np.zeros(len(mine), dtype=np.bool_)
            pairs = _likely(part, mine[met], other, theirs[order[at[met]]])
            found |= {number: hit for number, hit in _near(part, other, pairs) if number not in found}
        left[list(found)] = False
    return found


def similarity(one: Hashes, other: Hashes) -> float:
    """Jaccard's, of two sets of shingles."""
    shared = len(np.intersect1d(one, other, assume_unique=True))
    return shared / max(1, len(one) + len(other) - shared)


def chunks(lengths: Numbers) -> Iterator[tuple[int, int]]:
    """First and last (not included) of stretches of samples that have about CHUNK_TOKENS tokens."""
    first, tokens = 0, 0
    for number in range(len(lengths)):
        tokens += int(lengths[number])
        if tokens >= CHUNK_TOKENS or number + 1 == len(lengths):
            yield first, number + 1
            first, tokens = number + 1, 0


def _joined(samples: Prepared, first: int, last: int) -> tuple[Hashes, Numbers]:
    """The shingles of some samples, and of which of them each is, counted from 0."""
    each = [shingles(samples[number].ids) for number in range(first, last)]
    owner = np.repeat(np.arange(last - first), [len(found) for found in each])
    return np.concatenate(each), owner


def _likely(part: Signatures, mine: Numbers, other: Signatures, theirs: Numbers) -> tuple[Numbers, Numbers]:
    likely = part.alike(mine, other, theirs) >= WORTH_A_LOOK
    return mine[likely], theirs[likely]


def _near(
    part: Signatures, other: Signatures, pairs: tuple[Numbers, Numbers]
) -> Iterator[tuple[int, tuple[int, float]]]:
    for mine, theirs in zip(pairs[0].tolist(), pairs[1].tolist(), strict=True):
        share = similarity(part.shingles(mine), other.shingles(theirs))
        if share >= LEAST:
            yield mine, (theirs, share)


def _mix(value: Hashes) -> Hashes:
    """splitmix64's last steps (Steele, Lea and Flood, 2014)."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Hashes = value ^ (value >> np.uint64(31))
    return mixed

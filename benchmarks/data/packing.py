"""How much of a batch is tokens, with and without packing.

python benchmarks/data/packing.py JOB.yaml      # a table in Markdown on standard output
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from trackbed import hub
from trackbed.data.chat.batches import Batches
from trackbed.data.chat.prepare import prepare
from trackbed.data.chat.prepared import Prepared
from trackbed.data.chat.recipe import Recipe
from trackbed.data.order import Share
from trackbed.job import ChatJob, data_path, load

ROW_LENGTHS = (256, 512, 1024, 2048)
ROWS = 8


def main(path: str) -> None:
    job = load(Path(path))
    assert isinstance(job, ChatJob)
    prepared = prepare(Recipe.of(data_path(job.data.train), hub.resolve(job.model.name), job.data))
    lines = [f"{len(prepared)} samples, {prepared.tokens} tokens", "", "| row length | filled |", "|---|---|"]
    lines.append(f"| none: batches of {ROWS}, padded to the longest | {unpacked(prepared):.1%} |")
    for length in ROW_LENGTHS:
        batches = Batches(prepared, job.data.model_copy(update={"row_length": length}), Share(0, 1, 1))
        lines.append(f"| {length} | {prepared.tokens / (batches.rows_in_epoch(0) * length):.1%} |")
    sys.stdout.write("\n".join([*lines, ""]))


def unpacked(prepared: Prepared) -> float:
    """The share of tokens when each sample is a row, in batches as wide as their longest."""
    order = np.random.default_rng(0).permutation(len(prepared))
    lengths = prepared.lengths[order[: len(order) // ROWS * ROWS]].reshape(-1, ROWS)
    return float(lengths.sum() / (lengths.max(axis=1) * ROWS).sum())


if __name__ == "__main__":
    main(*sys.argv[1:])

"""`trackbed data check JOB.yaml`: what a job's data comes to with its tokenizer, or what is wrong with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trackbed.data.batches import Batches
from trackbed.data.config import DataConfig
from trackbed.data.encode import Encoded, encode, load_tokenizer
from trackbed.data.order import Share
from trackbed.errors import DataError

SHOWN = 20


def check(model: Path, train: Path, heldout: Path, config: DataConfig) -> dict[str, Any]:
    """Counts of both parts; raises DataError with the problems of both."""
    tokenizer = load_tokenizer(model)
    problems, counts = [], {}
    for part, path in (("train", train), ("heldout", heldout)):
        try:
            counts[part] = count(path, encode(path, tokenizer, config), config)
        except DataError as error:
            problems += error.problems
    if problems:
        raise DataError(problems)
    return counts


def count(path: Path, encoded: Encoded, config: DataConfig) -> dict[str, Any]:
    """The figures of one part; at most 20 of the dropped samples are named."""
    batches = Batches(encoded.samples, config, Share(rank=0, world=1, rows=1, accumulate=1))
    rows = batches.rows_in_epoch(0)
    width = config.row_length if config.pack else max(len(sample.ids) for sample in encoded.samples)
    return {
        "file": str(path),
        "samples": len(encoded.samples),
        "tokens": encoded.tokens,
        "supervised_tokens": encoded.supervised_tokens,
        "rows": rows,
        "filled": round(encoded.tokens / (rows * width), 4),
        "truncated": encoded.truncated,
        "dropped": len(encoded.dropped),
        "dropped_samples": [f"{item.where}: {item.reason}" for item in encoded.dropped[:SHOWN]],
    }

"""`trackbed data prepare` and `trackbed data check`: what data comes to, or what is wrong with it."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trackbed.data.chat.batches import Batches
from trackbed.data.chat.fingerprint import Progress
from trackbed.data.chat.pool import tasks, work_off
from trackbed.data.chat.prepare import prepare, silent
from trackbed.data.chat.prepared import Prepared
from trackbed.data.chat.recipe import Recipe, gather
from trackbed.data.config import DataConfig
from trackbed.data.order import Share
from trackbed.errors import DataError, Problem

SHOWN = 20


@dataclass(frozen=True)
class Effort:
    """How the work is done: the progress that is shown, and processes (0: as many as there are processors)."""

    progress: Progress = silent
    workers: int = 0


def check(
    model: Path, train: Path, heldout: Path, config: DataConfig, effort: Effort | None = None
) -> dict[str, dict[str, Any]]:
    """Counts of both parts, which are prepared by it; raises DataError with the problems of both."""
    problems: list[Problem] = []
    counts = {}
    for part, path in (("train", train), ("heldout", heldout)):
        try:
            counts[part] = _timed(Recipe.of(path, model, config), config, effort or Effort())
        except DataError as error:
            problems += error.problems
    if problems:
        raise DataError(problems)
    return counts


def count(path: Path, prepared: Prepared, config: DataConfig) -> dict[str, Any]:
    """The figures of one part; at most 20 of the dropped samples are named."""
    batches = Batches(prepared, config, Share(rank=0, world=1, rows=1, accumulate=1))
    rows = batches.rows_in_epoch(0)
    width = config.row_length if config.pack else int(prepared.lengths.max())
    return {
        "file": str(path),
        "format": prepared.format.value,
        "samples": len(prepared),
        "tokens": prepared.tokens,
        "supervised_tokens": prepared.supervised_tokens,
        "rows": rows,
        "filled": round(prepared.tokens / (rows * width), 4),
        "truncated": prepared.truncated,
        "dropped": len(prepared.dropped),
        "dropped_samples": [f"{item.where}: {item.reason}" for item in prepared.dropped[:SHOWN]],
        "prepared": str(prepared.folder),
    }


def scan(data: Path, form: str, most: int, effort: Effort) -> dict[str, Any]:
    """Look at every line of JSONL data without a tokenizer, in bounded memory.

    Returns the conversations, the faults by id and in all, and the first `most` of them; DataError when there is
    nothing that could be looked at.
    """
    ingredients = gather(Recipe(data, Path(), 0, "", form), effort.progress)
    todo = [replace(task, most=most) for task in tasks(ingredients.files, ingredients.head)]
    total, done, made = ingredients.bytes, 0, []
    for item in work_off(todo, Path(), effort.workers):
        made.append(item)
        done += todo[item.index].end - todo[item.index].start
        effort.progress(f"check {data.name}", done, total)
    made.sort(key=lambda item: item.index)
    kinds = Counter(ingredients.head.kinds)
    for item in made:
        kinds.update(item.kinds)
    faults = [*ingredients.head.faults, *(fault for item in made for fault in item.faults)]
    return {
        "file": str(data),
        "format": ingredients.head.format.value,
        "conversations": sum(item.samples for item in made),
        "faults": kinds.total(),
        "kinds": dict(kinds.most_common()),
        "problems": faults[:most],
    }


def _timed(recipe: Recipe, config: DataConfig, effort: Effort) -> dict[str, Any]:
    began = time.monotonic()
    prepared = prepare(recipe, effort.progress, effort.workers)
    seconds = time.monotonic() - began
    figures = count(recipe.data, prepared, config)
    return {**figures, "made": prepared.fresh, "seconds": round(seconds, 3)}

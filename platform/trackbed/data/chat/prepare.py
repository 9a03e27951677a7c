"""Tokenise a data set once, in parallel, into the files that `prepared` opens.

The data is cut into parts; workers encode them, and each part that is whole is kept until all are, so that a killed
prepare goes on where it was. Then the parts are joined in order and the folder is committed by rename. Parts, and not
the data, are what memory has to hold. Never called from within a collective: ranks only open.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trackbed import folders
from trackbed.data.chat import part
from trackbed.data.chat.encode import nothing_left
from trackbed.data.chat.fingerprint import Progress
from trackbed.data.chat.part import Made, Task
from trackbed.data.chat.pool import tasks, work_off
from trackbed.data.chat.prepared import COLUMNS, Prepared, dropped, opened
from trackbed.data.chat.recipe import LAYOUT, Ingredients, Recipe, first_of, gather, nothing_in
from trackbed.errors import DataError, ModelError, Problem, TrackbedError

WAITING = "wait for another job that prepares this data"
# After any other fault the data or the model is changed and has another key: parts of this one would never be used.
TO_BE_TRIED_AGAIN = ("data.worker-died", "data.cache-write")


def silent(stage: str, done: int, total: int) -> None:
    """Progress that nobody looks at."""


def prepare(recipe: Recipe, progress: Progress = silent, workers: int = 0) -> Prepared:
    """The data prepared, made now unless it was already. Progress is in bytes of the data.

    Raises DataError with every faulty line (the first 20 named), and when no sample is left; then nothing is kept.
    """
    ingredients = gather(recipe, progress)
    if found := opened(ingredients):
        return found
    with part.writing(ingredients.folder.parent):
        ingredients.folder.parent.mkdir(parents=True, exist_ok=True)
    with _alone(ingredients.folder, progress):
        return opened(ingredients) or _make(ingredients, progress, workers)


@contextmanager
def _alone(folder: Path, progress: Progress) -> Iterator[None]:
    """Hold the lock beside a folder; it ends with this process, and its file stays, or two could hold two of them."""
    with part.writing(folder.parent):
        lock = folder.with_name(f".{folder.name}.lock").open("a")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(WAITING, 0, 1)
            fcntl.flock(lock, fcntl.LOCK_EX)
            progress(WAITING, 1, 1)
        yield


def _make(ingredients: Ingredients, progress: Progress, workers: int) -> Prepared:
    staging = ingredients.folder.with_name(f".{ingredients.folder.name}.parts")
    with part.writing(staging):
        staging.mkdir(exist_ok=True)
    todo = list(_tasks(ingredients, staging))
    try:
        made = _encode(todo, ingredients.recipe, progress, workers)
        _judge(ingredients, todo, made)
    except TrackbedError as error:
        if error.problems[0].id not in TO_BE_TRIED_AGAIN:
            shutil.rmtree(staging)
        raise
    with part.writing(staging):
        _join(todo, made, ingredients, staging / "joined")
        shutil.rmtree(ingredients.folder, ignore_errors=True)
        os.replace(staging / "joined", ingredients.folder)
        folders.sync(ingredients.folder.parent)
    shutil.rmtree(staging)
    return Prepared(ingredients.folder, [file.path for file in ingredients.files], fresh=True)


def _tasks(ingredients: Ingredients, staging: Path) -> Iterator[Task]:
    recipe = ingredients.recipe
    for task in tasks(ingredients.files, ingredients.head):
        target = str(staging / f"{task.index:06}.npz")
        yield replace(task, max_length=recipe.max_length, too_long=recipe.too_long, target=target)


def _encode(todo: Sequence[Task], recipe: Recipe, progress: Progress, workers: int) -> list[Made]:
    """What came of each part, in order; parts that an earlier try left whole are not made again."""
    made = {task.index: found[0] for task in todo if (found := part.read(Path(task.target)))}
    stage, total = f"prepare {recipe.data.name}", sum(task.end - task.start for task in todo)
    done = sum(task.end - task.start for task in todo if task.index in made)
    progress(stage, done, total)
    for result in work_off([task for task in todo if task.index not in made], recipe.model, workers):
        made[result.index] = result
        done += todo[result.index].end - todo[result.index].start
        progress(stage, done, total)
    return [made[task.index] for task in todo]


def _judge(ingredients: Ingredients, todo: Sequence[Task], made: Sequence[Made]) -> None:
    """Raise what is wrong with the data as a whole."""
    head, path = ingredients.head, ingredients.recipe.data
    count = head.kinds.total() + sum(item.fault_count for item in made)
    if count:
        faults = [*head.faults, *(fault for item in made for fault in item.faults)]
        kind = ModelError if faults[0].id.startswith("model.") else DataError
        raise kind(first_of(faults, count, path))
    if not any(item.samples or item.dropped for item in made):
        raise nothing_in(path)
    if not any(item.samples for item in made):
        raise DataError(_nothing_left(ingredients, todo))


def _nothing_left(ingredients: Ingredients, todo: Sequence[Task]) -> Problem:
    recipe = ingredients.recipe
    rows = np.concatenate([_part(task)["dropped"] for task in todo])
    files = [file.path for file in ingredients.files]
    said = dropped(rows, files, recipe.max_length, recipe.too_long)
    return nothing_left(recipe.data, said, part.limits(recipe.max_length, recipe.too_long))


def _join(todo: Sequence[Task], made: Sequence[Made], ingredients: Ingredients, target: Path) -> None:
    """Lay the parts behind one another, one of them in memory at a time."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    with ExitStack() as stack:
        outputs = {name: stack.enter_context(_Output(target / f"{name}.bin")) for name in COLUMNS}
        outputs["offsets"].write(np.zeros(1, dtype=np.int64))
        tokens = 0
        for task in todo:
            arrays = _part(task)
            arrays["offsets"] = tokens + np.cumsum(arrays["lengths"])
            tokens += int(arrays["lengths"].sum())
            for name, output in outputs.items():
                output.write(arrays[name])
    files = {name: {"bytes": output.size, "sha256": output.sha256.hexdigest()} for name, output in outputs.items()}
    folders.replace(target / "meta.json", json.dumps(_meta(ingredients, made, files), indent=2) + "\n")


def _part(task: Task) -> part.Arrays:
    found = part.read(Path(task.target))
    if not found:
        what, remedy = "a part that was just written cannot be read back", "look at the disk, then start again"
        raise DataError(Problem(id="data.part-damaged", where=task.target, what=what, remedy=remedy))
    return found[1]


def _meta(ingredients: Ingredients, made: Sequence[Made], files: dict[str, Any]) -> dict[str, Any]:
    content = [files[name]["sha256"] for name in ("ids", "supervised", "offsets")]
    return {
        "layout": LAYOUT,
        "format": ingredients.head.format.value,
        "max_length": ingredients.recipe.max_length,
        "too_long": ingredients.recipe.too_long,
        "dtype": made[0].dtype,
        "samples": sum(item.samples for item in made),
        "tokens": sum(item.tokens for item in made),
        "supervised_tokens": sum(item.supervised for item in made),
        "truncated": sum(item.truncated for item in made),
        "digest": hashlib.sha256(json.dumps(content).encode()).hexdigest(),
        "files": files,
    }


class _Output:
    """A file that is written from front to back, hashed on the way and on the disk when it is closed."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self.size, self.sha256 = 0, hashlib.sha256()

    def __enter__(self) -> _Output:
        return self

    def write(self, array: npt.NDArray[Any]) -> None:
        raw = np.ascontiguousarray(array).tobytes()
        self._file.write(raw)
        self.sha256.update(raw)
        self.size += len(raw)

    def __exit__(self, *error: object) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

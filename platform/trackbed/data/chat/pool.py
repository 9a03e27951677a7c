"""Workers that make parts: processes of their own, each with a task at a time.

They are started as `python -m trackbed.data.chat.part`, not forked and not spawned: a fork of a process with threads
may hang, and a spawned one runs the caller's main module again. A worker whose parent is killed sees its input end
and ends.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import trackbed
from trackbed.data.chat.encode import load_tokenizer
from trackbed.data.chat.fingerprint import File
from trackbed.data.chat.part import Made, Task, make, scan
from trackbed.data.chat.recipe import Head
from trackbed.errors import DataError, ModelError, Problem

# Below this many bytes a second process costs more than it saves.
WORTH_A_PROCESS = 4 << 20


def cores() -> int:
    """Processors that this process may run on."""
    return len(os.sched_getaffinity(0))


def work_off(todo: Sequence[Task], model: Path, workers: int = 0) -> Iterator[Made]:
    """Do all todo, in any order; `model` is for those that encode. workers = 0: as many processes as there are
    processors, or none where it is not worth it."""
    small = sum(task.end - task.start for task in todo) < WORTH_A_PROCESS
    wanted = min(workers or (1 if small else cores()), len(todo))
    if wanted > 1:
        yield from _Pool(todo, model, wanted)
    elif todo:
        tokenizer = load_tokenizer(model) if todo[0].target else None
        yield from (make(task, tokenizer) if tokenizer else scan(task) for task in todo)


def tasks(files: Sequence[File], head: Head) -> Iterator[Task]:
    """A task for each part of the files, in order: to look at its lines, and no more."""
    index = 0
    for number, file in enumerate(files):
        line = 1
        # What comes before the line that shows the format, in its file and in those before, is counted already.
        whole = sum(part.lines for part in file.parts)
        begins = 1 if number > head.begins[0] else head.begins[1] if number == head.begins[0] else whole + 1
        for part in file.parts:
            place = (part.start, part.end, line, begins, part.sha256)
            yield Task(index, number, str(file.path), *place, head.format.value)
            line, index = line + part.lines, index + 1


class _Pool:
    """A thread for each worker hands it tasks; answers come through one queue."""

    def __init__(self, tasks: Sequence[Task], model: Path, workers: int) -> None:
        self._count, self._model, self._workers = len(tasks), model, workers
        self._tasks: queue.SimpleQueue[Task] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Made | BaseException] = queue.SimpleQueue()
        for task in tasks:
            self._tasks.put(task)

    def __iter__(self) -> Iterator[Made]:
        processes = [_start(self._model) for _ in range(self._workers)]
        threads = [threading.Thread(target=self._feed, args=(process,), daemon=True) for process in processes]
        try:
            for thread in threads:
                thread.start()
            for _ in range(self._count):
                answer = self._answers.get()
                if isinstance(answer, BaseException):
                    raise answer
                yield answer
        finally:
            for process, thread in zip(processes, threads, strict=True):
                process.kill()
                thread.join()
                _close(process)

    def _feed(self, process: subprocess.Popen[str]) -> None:
        try:
            with suppress(queue.Empty):
                while True:
                    self._answers.put(_ask(process, self._tasks.get_nowait()))
        except Exception as error:  # noqa: BLE001 (whatever it is, the thread that waits must raise it)
            self._answers.put(error)


def _start(model: Path) -> subprocess.Popen[str]:
    root = str(Path(trackbed.__file__).parents[1])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "trackbed.data.chat.part", str(model)]
    return subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
    )


def _close(process: subprocess.Popen[str]) -> None:
    process.wait()
    for pipe in (process.stdin, process.stdout):
        # What is still to be written is for a worker that is gone.
        with suppress(BrokenPipeError):
            if pipe:
                pipe.close()


def _ask(process: subprocess.Popen[str], task: Task) -> Made:
    assert process.stdin
    assert process.stdout
    try:
        process.stdin.write(json.dumps(asdict(task)) + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
    except BrokenPipeError:
        answer = ""
    if not answer:
        raise _died(process.wait(), task)
    said = json.loads(answer)
    if "error" in said:
        raise _error(said)
    return Made.from_json(answer)


def _error(said: dict[str, Any]) -> DataError | ModelError:
    problems = [Problem(**problem) for problem in said["problems"]]
    return ModelError(problems) if said["error"] == "model" else DataError(problems)


def _died(code: int, task: Task) -> DataError:
    reason = f"signal {-code}" if code < 0 else f"exit code {code}"
    return DataError(
        Problem(
            id="data.worker-died",
            where=f"{task.path}:{task.line}",
            what=f"a process that encodes data ended before its time ({reason})",
            remedy="signal 9 is mostly a lack of memory: use fewer --workers; what is done is kept for the next try",
        )
    )

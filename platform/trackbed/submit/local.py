"""The local backend: torchrun on this machine, watched until it ends."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TextIO

from trackbed.errors import Problem, RunError
from trackbed.submit.plan import Plan
from trackbed.submit.run import Run, record_failure

# Rank 0 begins the lines that are meant for a person with this; all others go to the log alone.
MARK = "trackbed| "
POLL_SECONDS = 0.2


def send(plan: Plan, run: Run, on_line: Callable[[str], None]) -> None:
    """Start the ranks and wait for them. Raises RunError with the cause when they fail.

    A stop signal is passed on, so that the ranks commit a checkpoint before they end. They write to the log itself:
    through a pipe they would die with the submitter, in the middle of a step.
    """
    with run.log.open("a", encoding="utf-8") as log, run.log.open(encoding="utf-8", errors="replace") as reader:
        began = reader.seek(0, os.SEEK_END)
        process = subprocess.Popen(
            plan.command,
            env={**os.environ, **plan.environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_end_with_parent,
        )
        with _signals_passed_to(process):
            for line in _lines(reader, process):
                if MARK in line:
                    on_line(line.split(MARK, 1)[1].rstrip("\n"))
    if process.returncode:
        with run.log.open(encoding="utf-8", errors="replace") as reader:
            reader.seek(began)
            raise _failed(run, process.returncode, reader.read())


def _lines(reader: TextIO, process: subprocess.Popen[bytes]) -> Iterator[str]:
    """The log's lines as they come, until the process has ended and all is read."""
    partial = ""
    while True:
        ended = process.poll() is not None
        while chunk := reader.readline():
            partial += chunk
            if partial.endswith("\n"):
                yield partial
                partial = ""
        if ended:
            return
        with suppress(subprocess.TimeoutExpired):
            process.wait(POLL_SECONDS)


def _end_with_parent() -> None:
    """torchrun is asked to stop when the submitter dies, however it dies."""
    parent_death_signal = 1
    ctypes.CDLL(None).prctl(parent_death_signal, signal.SIGTERM)


@contextmanager
def _signals_passed_to(process: subprocess.Popen[bytes]) -> Iterator[None]:
    def pass_on(number: int, frame: FrameType | None) -> None:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _failed(run: Run, code: int, said: str) -> RunError:
    killed = _killed_rank(said)
    if killed and (run.failure or {}).get("id") == "train.crashed":
        # The other ranks crash because the killed one is gone, and it is only they who can still report.
        (run.folder / "failure.json").unlink()
    failure = run.failure
    if failure is None:
        problem = Problem(
            id="run.rank-lost",
            where=str(run.log),
            what=killed or _last_words(said, code),
            remedy=f"read the log; then go on from the last checkpoint: trackbed submit --resume {run.folder}",
        )
        record_failure(run.folder, problem, rank=None, exit_code=1)
        return RunError(problem)
    error = RunError(Problem(**{name: str(failure[name]) for name in ("id", "what", "where", "remedy")}))
    error.exit_code = int(failure["exit_code"])
    return error


def _killed_rank(said: str) -> str:
    """Which rank a signal ended first, from torchrun's account of the attempt; empty when none was."""
    account = said.rpartition("Root Cause")[2]
    match = re.search(r"rank\s*: (\d+) .*\n\s*exitcode\s*: -(\d+)", account)
    if not match or int(match[2]) == signal.SIGTERM:
        return ""
    hint = " (the kernel does this when memory runs out)" if int(match[2]) == signal.SIGKILL else ""
    return f"rank {match[1]} was killed by {signal.Signals(int(match[2])).name}{hint}"


def _last_words(said: str, code: int) -> str:
    lines = [line for line in said.splitlines() if line.strip()]
    return f"torchrun ended with exit code {code}: {lines[-1] if lines else 'it said nothing'}"

"""The local backend: torchrun on this machine, watched until it ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TextIO

import psutil

from trackbed.errors import Problem, RunError
from trackbed.submit import nsys
from trackbed.submit.plan import Plan, end_with_parent
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
            preexec_fn=end_with_parent,
        )
        with _signals_passed_on(Stop(process, plan)) as stop:
            for line in _lines(reader, process, stop):
                if MARK in line:
                    on_line(line.split(MARK, 1)[1].rstrip("\n"))
            left = _wait_for_left_behind(process, plan)
    code = process.returncode or left
    if code:
        with run.log.open(encoding="utf-8", errors="replace") as reader:
            reader.seek(began)
            raise _failed(run, code, reader.read())


class Stop:
    """A stop signal on its way to torchrun, which has the ranks commit a checkpoint before it ends."""

    def __init__(self, process: subprocess.Popen[bytes], plan: Plan) -> None:
        self._process, self._plan = process, plan
        self._asked = False

    def ask(self, number: int, frame: FrameType | None) -> None:
        self._asked = True
        self.pass_on()

    def pass_on(self) -> None:
        """Signal torchrun if that is still to be done; under nsys it may take a moment until torchrun is there.

        nsys itself is never signalled: it would end before the ranks have committed, at its own start even with exit
        code 0, and while it writes the report without one.
        """
        if not self._asked:
            return
        if target := nsys.torchrun(self._plan) if self._plan.profile else self._process:
            self._asked = False
            with suppress(psutil.Error):
                target.send_signal(signal.SIGTERM)


def _wait_for_left_behind(process: subprocess.Popen[bytes], plan: Plan) -> int:
    """Wait for a torchrun that nsys did not wait for: 1 when there was one, else 0.

    An nsys that is told to stop has passed that on; one that was killed has not.
    """
    left = nsys.torchrun(plan) if plan.profile else None
    if left is None:
        return 0
    with suppress(psutil.Error):
        if process.returncode < 0:
            left.send_signal(signal.SIGTERM)
        left.wait()
    return 1


def _lines(reader: TextIO, process: subprocess.Popen[bytes], stop: Stop) -> Iterator[str]:
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
        stop.pass_on()
        with suppress(subprocess.TimeoutExpired):
            process.wait(POLL_SECONDS)


@contextmanager
def _signals_passed_on(stop: Stop) -> Iterator[Stop]:
    before = {number: signal.signal(number, stop.ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
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
    lines = [line for line in nsys.CLOSING.split(said)[0].splitlines() if line.strip()]
    return f"torchrun ended with exit code {code}: {lines[-1] if lines else 'it said nothing'}"

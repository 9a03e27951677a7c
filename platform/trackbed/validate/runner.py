"""Run the checks, each in a child process with a deadline, and yield results as they come.

    for result in stream(Context(output=runs())): ...
    sys.exit(exit_code(results, strict=False))

A check that hangs or crashes becomes a result with status error; it never takes the caller with it. When the caller
itself is killed, its children end with it.
`python -m trackbed.validate.runner CATALOGUE CONTEXT ID...` is the child; it writes one JSON line a result.
"""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO

import psutil

from trackbed.errors import TrackbedError
from trackbed.release.probe import environment
from trackbed.validate import Check, Context, Level, Outcome, Result, result, skip, tail
from trackbed.validate.machine.mounts import Unreachable

CATALOGUE = "trackbed.validate.catalogue"
# Two: most of a check is one thread of importing, and two cores is the smallest machine that trains two ranks.
AT_ONCE = 2
POLL_SECONDS = 0.02
# What Python says then; every check that needs one would report the same cause again, and as our own fault.
NO_TEMPORARY_FOLDER = "No usable temporary directory found"
GRACE_SECONDS = 5.0  # a child's own start, which is not the check's time
# Deadlines are those of a benchmark or a scan of everything; what stands before a job must end long before.
LONGEST: dict[Level, float] = {"image": 180, "node": 180}
KILL_SECONDS = 2.0
PR_SET_PDEATHSIG = 1
ID = re.compile(r"\b[a-z0-9]+(?:-[a-z0-9]+)*\.[a-z0-9]+(?:-[a-z0-9]+)*\b")


def run(context: Context, *, on_result: Callable[[Result], None] | None = None) -> list[Result]:
    """Run every check of the context's level. `on_result` is called as each one is done."""
    results = []
    for done in stream(context):
        results.append(done)
        if on_result:
            on_result(done)
    return results


def checks(catalogue: str = CATALOGUE) -> tuple[Check, ...]:
    """The checks of a catalogue, a module with a CHECKS table."""
    table: tuple[Check, ...] = importlib.import_module(catalogue).CHECKS
    return table


def exit_code(results: Iterable[Result], *, strict: bool = False) -> int:
    """0 good, 1 warnings and strict, 2 a check failed, 3 the validator itself broke, also when it has no results."""
    seen = {done.status for done in results}
    if not seen or "error" in seen:
        return 3
    if "fail" in seen:
        return 2
    return 1 if strict and "warn" in seen else 0


def stream(context: Context, catalogue: str = CATALOGUE, only: Collection[str] = ()) -> Iterator[Result]:
    """Yield one result a check of the context's level, as they are done; `only` names ids to run, all when empty.

    One of these that skips because another check speaks for its cause brings that one along: a skip alone would look
    like nothing to mend. Whatever was started is ended, also when the caller stops early.
    """
    table = {check.id: check for check in checks(catalogue) if context.level in check.levels}
    unasked = {name: check for name, check in table.items() if only and name not in only}
    waiting = _by_child(check for name, check in table.items() if name not in unasked)
    running: list[_Child] = []
    try:
        while waiting or running:
            while waiting and len(running) < AT_ONCE:
                running.append(_Child(waiting.pop(0), context, catalogue))
            for child in list(running):
                done = list(child.results())
                if child.over():
                    done += child.close()
                    running.remove(child)
                    if child.left:
                        waiting.insert(0, child.left)
                waiting += _by_child(unasked.pop(name) for each in done for name in _speaks_for(each) & unasked.keys())
                yield from done
            time.sleep(POLL_SECONDS)
    finally:
        for child in running:
            child.kill()


class _Child:
    """One child process and the checks it still owes. It writes to files: a full or inherited pipe cannot stop us."""

    def __init__(self, owed: Sequence[Check], context: Context, catalogue: str) -> None:
        self.left = list(owed)
        self._report, self._stderr = _file("report"), _file("stderr")
        self._partial = b""
        self._read = 0
        self._since = time.monotonic()
        self._level = context.level
        self._allowed = _deadline(self.left[0], self._level) + GRACE_SECONDS
        arguments = [catalogue, json.dumps(_to_json(context)), *(check.id for check in owed)]
        self._process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-m", "trackbed.validate.runner", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=self._report,
            stderr=self._stderr,
            env=environment(),
            start_new_session=True,
        )

    def results(self) -> Iterator[Result]:
        """What the child has reported since last asked; each report gives the next check its own time."""
        for done in filter(None, map(_parse, self._lines())):
            self.left = [check for check in self.left if check.id != done.id]
            self._since = time.monotonic()
            self._allowed = _deadline(self.left[0], self._level) if self.left else GRACE_SECONDS
            yield done

    def over(self) -> bool:
        """The child has ended, has reported all, or is late."""
        return not self.left or self._process.poll() is not None or self._late()

    def close(self) -> Iterator[Result]:
        """End the child. The check it was at, if any, is an error; the ones after it stay in `left`."""
        late = self._process.poll() is None and self._late()
        if self._process.poll() is not None:
            yield from self.results()
        self.kill_processes()
        if self.left:
            culprit = self.left.pop(0)
            seconds = int(1000 * (time.monotonic() - self._since))
            yield result(culprit, self._broken(culprit, late=late), host=host_name(), duration_ms=seconds)
        self.kill()

    def kill_processes(self) -> None:
        """End everything it started: its group, and descendants that made groups of their own, as mpirun's do."""
        family: list[psutil.Process] = []
        with suppress(psutil.Error):
            family = psutil.Process(self._process.pid).children(recursive=True)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for member in family:
            with suppress(psutil.Error):
                member.kill()
        # Inside the kernel, at a mount or a driver that hangs, a process ignores even this: it is left behind.
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(KILL_SECONDS)

    def kill(self) -> None:
        self.kill_processes()
        self._report.close()
        self._stderr.close()

    def _late(self) -> bool:
        return time.monotonic() - self._since > self._allowed

    def _lines(self) -> list[bytes]:
        chunk = os.pread(self._report.fileno(), 1 << 24, self._read)
        self._read += len(chunk)
        *lines, self._partial = (self._partial + chunk).split(b"\n")
        return lines

    def _broken(self, check: Check, *, late: bool) -> Outcome:
        code = self._process.returncode or 0
        died = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        seconds = _deadline(check, self._level)
        observed = f"no answer within {seconds:g} s" if late else f"the check's process ended: {died}"
        return Outcome(
            status="error",
            observed=observed,
            expected="an answer",
            evidence=tail(self._stderr),
            remedy="read the evidence (--json); run `trackbed validate` again on an idle machine; then report it",
        )


def host_name() -> str:
    return os.uname().nodename


def judged(check: Check, context: Context) -> Result:
    """Measure and judge here, in this process. What a check raises is an error; our own kind of error is a failure."""
    started = time.monotonic()
    try:
        outcome = check.judge(check.measure(context))
    except Unreachable as error:
        outcome = skip(f"not tried: {error}", f"do what {error.check} says")
    except TrackbedError as error:
        first = error.problems[0]
        outcome = Outcome(status="fail", observed=first.what, expected=first.wanted, remedy=first.remedy)
    except Exception as error:  # noqa: BLE001 - a library may raise anything, and the other checks must go on
        if NO_TEMPORARY_FOLDER in str(error):
            why = "not tried: no temporary folder can be written"
            return result(check, skip(why, "do what container.temporary-folder says"), host=host_name())
        text = " ".join(f"{type(error).__name__}: {error}".split())
        missing = isinstance(error, ImportError)
        outcome = Outcome(
            status="fail" if missing else "error",
            observed=text,
            expected="no exception",
            remedy="make setup" if missing else "report this with the output of `trackbed validate --json`",
        )
    milliseconds = int(1000 * (time.monotonic() - started))
    return result(check, outcome, host=host_name(), duration_ms=milliseconds)


def _child(catalogue: str, context: Context, ids: Sequence[str]) -> None:
    """Run checks one after another; what libraries print goes to standard error, never into the report."""
    # Killed, the caller cannot end us any more, and nobody would keep our deadlines.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    table = {check.id: check for check in checks(catalogue)}
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as report:
        os.dup2(2, 1)
        for name in ids:
            # Shortly before we are killed, say where we hang.
            faulthandler.dump_traceback_later(_deadline(table[name], context.level) * 0.9)
            done = judged(table[name], context)
            faulthandler.cancel_dump_traceback_later()
            report.write(json.dumps(done.to_dict()) + "\n")
            report.flush()
    # A library that crashes or waits while the interpreter ends has already been judged.
    os._exit(0)


def _file(name: str) -> IO[bytes]:
    """A file in memory: where no temporary folder can be written to, that must be said, not be our own end."""
    return os.fdopen(os.memfd_create(name), "w+b")


def _by_child(table: Iterable[Check]) -> list[list[Check]]:
    """Checks that share a child, in the order of the first of each."""
    groups: dict[str, list[Check]] = {}
    for check in table:
        groups.setdefault(check.child or check.id, []).append(check)
    return list(groups.values())


def _deadline(check: Check, level: Level) -> float:
    return min(check.deadline, LONGEST.get(level, check.deadline))


def _speaks_for(done: Result) -> set[str]:
    """The checks that a skip leaves its cause to, by their ids in its words."""
    return set(ID.findall(f"{done.observed} {done.remedy}")) if done.status == "skip" else set()


def _parse(line: bytes) -> Result | None:
    """A line of the report; None for what is not one, then its check is an error for want of a result."""
    try:
        return Result.from_dict(json.loads(line))
    except (TypeError, ValueError):
        return None


def _to_json(context: Context) -> dict[str, object]:
    return {**asdict(context), "output": str(context.output)}


def _from_json(text: str) -> Context:
    raw = json.loads(text)
    return Context(**{**raw, "output": Path(raw["output"])})


if __name__ == "__main__":
    _child(sys.argv[1], _from_json(sys.argv[2]), sys.argv[3:])

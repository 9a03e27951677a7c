"""Whether this machine and stack are good, for the commands that start something expensive."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from trackbed.cli import console as looks
from trackbed.cli.release import release_group
from trackbed.cli.validate import fleet, validate
from trackbed.errors import Problem, TrackbedError

if TYPE_CHECKING:
    from rich.console import Console

    from trackbed.validate import Result


def check_machine(output: Path) -> list[Result]:
    """Run every check of a node, show how far that is, then what came of it, what is good in a line a family."""
    from trackbed.validate import Context, runner
    from trackbed.validate.report import screen

    console, context = looks.console(), Context(output=output)
    total = sum(context.level in check.levels for check in runner.checks())
    with _progress(console, total) as show:
        results = runner.run(context, on_result=show)
    console.print(screen.to_text(results, release=release_name(), host=runner.host_name()))
    return results


@contextmanager
def _progress(console: Console, total: int) -> Iterator[Callable[[Result], None]]:
    """Shows results as they come: a bar on a terminal, elsewhere a line for each check that there was something to."""
    if not console.is_terminal:
        yield lambda done: None if done.status == "skip" else console.print(_line(done), markup=False, soft_wrap=True)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("checking the machine", total=total)
        yield lambda _: bar.advance(task)


def _line(done: Result) -> str:
    return f"{done.status:<5} {done.id:<30} {done.observed}"


def release_name() -> str:
    from trackbed.release import load
    from trackbed.release.drift import current

    return load(current()).name


def must_run_jobs() -> None:
    """Refuse before anything is fetched or written where the release's own parts cannot run a job template."""
    from trackbed.release import load, names
    from trackbed.release.drift import current

    release = load(current())
    if release.no_jobs:
        what = f"release {release.name} runs no job templates: {release.no_jobs}"
        remedy = f"use the image of release {names()[-1]}; your own scripts run here"
        raise TrackbedError(Problem(id="release.no-jobs", what=what, remedy=remedy))


def within_quota(asked: int) -> int:
    """As many processes as were asked for; else as the group's quota allows, where that is less than the processors
    there are; else 0, and the size of the data decides."""
    from trackbed.validate.machine.cgroup import limits

    quota = limits().cpu_quota
    return asked or (max(1, int(quota)) if quota < len(os.sched_getaffinity(0)) else 0)


COMMANDS = (release_group, validate, fleet)

"""Whether this machine and stack are good, for the commands that start something expensive."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trackbed.cli import console as looks
from trackbed.cli.release import release_group
from trackbed.cli.validate import fleet, validate
from trackbed.errors import Problem, TrackbedError

if TYPE_CHECKING:
    from trackbed.validate import Result


def check_machine(output: Path) -> list[Result]:
    """Run every check of a node and show what came of it, what is good in a line a family."""
    from trackbed.validate import Context, runner
    from trackbed.validate.report import screen

    with looks.waiting("checking the machine", quiet=False):
        results = runner.run(Context(output=output))
    looks.console().print(screen.to_text(results, release=release_name(), host=runner.host_name()))
    return results


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


COMMANDS = (release_group, validate, fleet)

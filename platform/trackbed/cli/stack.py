"""`trackbed validate`: whether this machine and stack are good."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trackbed.cli import console as looks
from trackbed.cli.release import release_group
from trackbed.errors import Problem, TrackbedError

if TYPE_CHECKING:
    from trackbed.validate import Result


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
@click.option("--strict", is_flag=True, help="Exit 1 on warnings.")
@click.option("--output", type=click.Path(path_type=Path), help="Folder that runs are written to; $TRACKBED_RUNS.")
def validate(as_json: bool, strict: bool, output: Path | None) -> None:
    """Check this machine and the stack by using them. Exit 0 good, 1 strict, 2 failed, 3 the validator broke."""
    from trackbed import folders
    from trackbed.validate import Context, render, runner

    with looks.waiting("checking", quiet=as_json):
        results = runner.run(Context(output=output or folders.runs()))
    if as_json:
        click.echo(render.to_json(results, release=release_name(), host=runner.host_name()))
    else:
        looks.console().print(render.to_text(results, release=release_name(), host=runner.host_name()))
    sys.exit(runner.exit_code(results, strict=strict))


def check_machine(output: Path) -> list[Result]:
    """Run every check, showing each as it is done."""
    from trackbed.validate import Context, render, runner

    console = looks.console()
    return runner.run(Context(output=output), on_result=lambda result: console.print(render.line(result)))


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


COMMANDS = (release_group, validate)

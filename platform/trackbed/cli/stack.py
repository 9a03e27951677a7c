"""`trackbed release` and `trackbed validate`: the pins, and whether this machine and stack are good."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trackbed.cli import console as looks
from trackbed.errors import Problem, TrackbedError

if TYPE_CHECKING:
    from trackbed.validate import Result


@click.group(name="release")
def release_group() -> None:
    """Releases: the pins of the stack."""


@release_group.command(name="show")
@click.argument("name", required=False)
def release_show(name: str | None) -> None:
    """Print a release's pins."""
    from trackbed.release import load

    release = load(name)
    click.echo(f"{release.name}: {release.summary}")
    for component in release.components.values():
        click.echo(f"  {component.title:40} {component.version:18} {component.rule}")


@release_group.command(name="render")
@click.option("--check", is_flag=True, help="Write nothing; exit 2 when a file differs from the release.")
def release_render(check: bool) -> None:
    """Write everything that names a version from the release."""
    from trackbed.release import load
    from trackbed.release.render import render, write

    changes = render(load(), Path.cwd())
    if check and changes:
        raise TrackbedError(
            [
                Problem(id="release.rendered", where=str(path), what="differs from the release", remedy="make render")
                for path in changes
            ]
        )
    write(changes)
    click.echo("\n".join(f"wrote {path}" for path in changes) or "every rendered file agrees with the release")


@release_group.command(name="check")
def release_check() -> None:
    """Compare what the release says, what the image declares and what really loads."""
    from trackbed.release import load
    from trackbed.release.drift import compare

    rows = compare(load(os.environ.get("TRACKBED_RELEASE")))
    for row in rows:
        click.echo(
            f"{row.status:8} {row.component:14} {row.wanted:14} {row.declared or '-':14} {row.loaded:18} {row.note}"
        )
    if any(row.status != "ok" for row in rows):
        sys.exit(2)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
@click.option("--strict", is_flag=True, help="Exit 1 on warnings.")
@click.option("--output", type=click.Path(path_type=Path), help="Folder that runs are written to; $TRACKBED_RUNS.")
def validate(as_json: bool, strict: bool, output: Path | None) -> None:
    """Check this machine and the stack by using them. Exit 0 good, 1 strict, 2 failed, 3 the validator broke."""
    from trackbed import folders
    from trackbed.validate import render, runner

    with looks.waiting("checking", quiet=as_json):
        results = runner.run(output or folders.runs())
    if as_json:
        click.echo(render.to_json(results, release=release_name(), host=runner.host_name()))
    else:
        looks.console().print(render.to_text(results, release=release_name(), host=runner.host_name()))
    sys.exit(runner.exit_code(results, strict=strict))


def check_machine(output: Path) -> list[Result]:
    """Run every check, showing each as it is done."""
    from trackbed.validate import render, runner

    console = looks.console()
    return runner.run(output, on_result=lambda result: console.print(render.line(result)))


def release_name() -> str:
    from trackbed.release import load

    return load(os.environ.get("TRACKBED_RELEASE")).name


COMMANDS = (release_group, validate)

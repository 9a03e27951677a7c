"""The command line: this folder is the only place that prints or exits. Heavy imports stay inside the commands."""

from __future__ import annotations

from typing import Any

import click

from trackbed import __version__
from trackbed.cli import data, inspect, runs, stack
from trackbed.errors import TrackbedError


class Commands(click.Group):
    """Shows a TrackbedError as what it is and exits with its code; never a traceback for a user's mistake."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except TrackbedError as error:
            for problem in error.problems:
                click.echo(f"error: {problem}", err=True)
            ctx.exit(error.exit_code)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="trackbed")
def main() -> None:
    """Train on a stack whose every version is pinned and whose health is proved.

    It tells you before the GPUs are spent, and loses nothing when they fail.
    """


for command in (*runs.COMMANDS, *stack.COMMANDS, *data.COMMANDS):
    main.add_command(command)
for command in inspect.COMMANDS:
    data.data_group.add_command(command)

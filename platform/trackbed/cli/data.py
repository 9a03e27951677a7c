"""`trackbed model`, `trackbed data` and `trackbed job`: what a run is made of."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

import click

from trackbed.cli import console as looks
from trackbed.cli.stack import must_run_jobs
from trackbed.errors import TrackbedError

JOB_FILE = click.Path(path_type=Path)
overrides = click.option(
    "--set", "sets", multiple=True, metavar="KEY=VALUE", help="Override a value, as train.steps=9."
)


@click.group(name="model")
def model_group() -> None:
    """Models on this machine."""


@model_group.command(name="fetch")
@click.argument("name")
def modelfetch(name: str) -> None:
    """Bring a model to this machine: an alias such as smollm2-135m, or a hub id."""
    from trackbed import hub

    folder = fetch(name)
    click.echo(f"{name}: {folder}")
    if note := hub.describe(folder):
        click.echo(f"note: {note}")


@click.group(name="data")
def data_group() -> None:
    """Data sets: build one, check what a job's data comes to."""


@data_group.command(name="build")
@click.argument("name", type=click.Choice(["pydocs"]))
def databuild(name: str) -> None:
    """Build a data set from what is installed here."""
    build(name)


@data_group.command(name="check")
@click.argument("job_file", type=JOB_FILE)
@overrides
@click.option("--json", "as_json", is_flag=True, help="Print the counts, or the problems, as JSON.")
def data_check(job_file: Path, sets: tuple[str, ...], as_json: bool) -> None:
    """Encode a job's data with its model's tokenizer: count it, or name every faulty line."""
    must_run_jobs()
    from trackbed import hub
    from trackbed.data.check import check
    from trackbed.job import data_path, load

    try:
        job = load(job_file, sets)
        counts = check(hub.resolve(job.model.name), data_path(job.data.train), data_path(job.data.heldout), job.data)
    except TrackbedError as error:
        if as_json:
            click.echo(json.dumps({"problems": [asdict(problem) for problem in error.problems]}))
        raise
    if as_json:
        click.echo(json.dumps(counts, indent=2))
        return
    for part, values in counts.items():
        click.echo(
            f"{part}: " + ", ".join(f"{key} {value}" for key, value in values.items() if key != "dropped_samples")
        )
        for text in values["dropped_samples"]:
            click.echo(f"  dropped: {text}")


@click.group(name="job")
def job_group() -> None:
    """Job templates."""


@job_group.command(name="schema")
def job_schema() -> None:
    """Print the JSON Schema of a job, for editors that complete it."""
    must_run_jobs()
    from trackbed.job import schema

    click.echo(schema(), nl=False)


def fetch(name: str) -> Path:
    from trackbed import hub

    os.environ.setdefault("TQDM_DISABLE", "1")  # libraries draw bars of their own, into ours
    with looks.stages(looks.console()) as progress:
        return hub.fetch(name, progress)


def build(name: str) -> None:
    from trackbed import folders
    from trackbed.data import pydocs

    folder = folders.data() / name
    with looks.stages(looks.console()) as progress:
        counts = pydocs.build(folder, progress)
    click.echo(f"{name}: {', '.join(f'{count} {part}' for part, count in counts.items())} pairs in {folder}")


COMMANDS = (model_group, data_group, job_group)

"""`trackbed model`, `trackbed data` and `trackbed job`: what a run is made of."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trackbed.cli import console as looks
from trackbed.cli.console import problems_as_json, reporting
from trackbed.cli.stack import must_run_jobs, within_quota
from trackbed.errors import Problem, TrackbedError

if TYPE_CHECKING:
    from trackbed.job import ClassifyJob

JOB_FILE = click.Path(path_type=Path)
overrides = click.option(
    "--set", "sets", multiple=True, metavar="KEY=VALUE", help="Override a value, as train.steps=9."
)
as_json_option = click.option("--json", "as_json", is_flag=True, help="Print the figures, or the problems, as JSON.")
workers_option = click.option(
    "--workers", default=0, type=click.IntRange(min=0), metavar="N", help="Processes; as many as processors by default."
)
SETS = ["pydocs", "digits", "fashion-mnist", "sounds"]
FORMATS = ["auto", "chatml", "sharegpt", "alpaca", "prompt_completion"]


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
    """Data sets: build one, prepare it for training, check what it comes to."""


@data_group.command(name="build")
@click.argument("name", type=click.Choice(SETS))
def databuild(name: str) -> None:
    """Build a data set from what is installed here."""
    build(name)


@data_group.command(name="prepare")
@click.argument("job_file", type=JOB_FILE)
@overrides
@as_json_option
@workers_option
def data_prepare(job_file: Path, sets: tuple[str, ...], as_json: bool, workers: int) -> None:
    """Tokenise a job's data once, into files that all ranks share. What is prepared already is not made again."""
    counts = _counts(job_file, sets, as_json=as_json, workers=workers)
    if as_json:
        click.echo(json.dumps(counts, indent=2))
        return
    for part, values in counts.items():
        _say_part(part, values)


@data_group.command(name="check")
@click.argument("data", metavar="JOB.yaml|DATA", type=JOB_FILE)
@overrides
@as_json_option
@workers_option
@click.option("--most", default=20, type=click.IntRange(min=0), metavar="N", help="DATA: name at most N faults.")
@click.option(
    "--format", "form", default="auto", type=click.Choice(FORMATS), help="DATA: its format; auto recognises it."
)
def data_check(data: Path, sets: tuple[str, ...], as_json: bool, workers: int, most: int, form: str) -> None:
    """Count what a job's data comes to, or look at every line, picture or sound of DATA for faults.

    DATA is a JSONL file, a folder of *.jsonl files or a pattern; or a folder of class folders, of *.tar or *.tfrecord
    shards. What is faulty is named, counted, and exits with 2.
    """
    if data.suffix not in (".yaml", ".yml"):
        look = _check_samples if _holds_samples(data) else _check_lines
        look(data, Look(form, most, as_json=as_json, workers=workers))
        return
    counts = _counts(data, sets, as_json=as_json, workers=workers)
    if as_json:
        click.echo(json.dumps(counts, indent=2))
        return
    for part, values in counts.items():
        shown = {key: value for key, value in values.items() if key != "dropped_samples"}
        click.echo(f"{part}: " + ", ".join(f"{key} {value}" for key, value in shown.items()))
        for text in values["dropped_samples"]:
            click.echo(f"  dropped: {text}")


def _counts(job_file: Path, sets: tuple[str, ...], *, as_json: bool, workers: int) -> dict[str, dict[str, Any]]:
    """The figures of a job's data, prepared where it was not; its problems as JSON as well, where that is asked for."""
    must_run_jobs()
    from trackbed import hub
    from trackbed.data.chat.check import Effort, check
    from trackbed.job import ChatJob, ClassifyJob, data_path, load

    with problems_as_json(as_json), reporting() as progress:
        job = load(job_file, sets)
        if isinstance(job, ClassifyJob):
            return _count_samples(job, progress)
        assert isinstance(job, ChatJob)
        effort = Effort(progress, within_quota(workers))
        paths = data_path(job.data.train), data_path(job.data.heldout)
        return check(hub.resolve(job.model.name), *paths, job.data, effort)


def _count_samples(job: ClassifyJob, progress: Callable[[str, int, int], None]) -> dict[str, dict[str, Any]]:
    """The figures of pictures or sounds, looked at once for samples that cannot be read, and of the network."""
    from trackbed.data.samples.parts import count, open_parts
    from trackbed.train.classify import count_parameters

    parts = open_parts(job.data, progress)
    counts = count(parts, job.data)
    counts["train"]["parameters"] = count_parameters(job, parts.classes)
    return counts


def _say_part(part: str, values: dict[str, Any]) -> None:
    click.echo(
        f"{part}: {values['samples']} samples, {values['tokens']} tokens, {values['supervised_tokens']} supervised; "
        f"{values['rows']} rows, {values['filled']:.1%} filled; "
        f"{values['dropped']} dropped, {values['truncated']} truncated"
    )
    speed = f"{values['tokens'] / max(values['seconds'], 1e-3):,.0f} tokens/s"
    how = f"made in {values['seconds']:.1f} s, {speed}" if values["made"] else "already prepared"
    click.echo(f"  format {values['format']}; {how}; {values['prepared']}")
    for text in values["dropped_samples"]:
        click.echo(f"  dropped: {text}")


@dataclass(frozen=True)
class Look:
    """How data is looked at that no job names."""

    form: str
    most: int
    as_json: bool
    workers: int


def _holds_samples(data: Path) -> bool:
    """Whether a path is of pictures or sounds: shards, or a folder without JSONL files."""
    if data.is_dir():
        return not any(data.glob("*.jsonl"))
    return data.suffix in (".tar", ".tfrecord", ".tfrecords")


def _check_samples(data: Path, how: Look) -> None:
    must_run_jobs()
    from trackbed.data.samples.parts import look

    with problems_as_json(how.as_json), reporting() as progress:
        total, problems = look(data, max(1, how.workers or within_quota(0) or len(os.sched_getaffinity(0))), progress)
    if how.as_json:
        click.echo(json.dumps({"samples": total, "problems": [asdict(problem) for problem in problems]}, indent=2))
    else:
        for problem in problems[: how.most]:
            click.echo(f"error: {problem}", err=True)
        if len(problems) > how.most:
            click.echo(f"and {len(problems) - how.most} more; --most N names more", err=True)
        click.echo(f"{data}: {total} samples, {len(problems)} cannot be used")
    if problems:
        raise click.exceptions.Exit(TrackbedError.exit_code)


def _check_lines(data: Path, how: Look) -> None:
    from trackbed.data.chat.check import Effort, scan

    with problems_as_json(how.as_json), reporting() as progress:
        found = scan(data, how.form, how.most, Effort(progress, within_quota(how.workers)))
    problems = found.pop("problems")
    if how.as_json:
        click.echo(json.dumps({**found, "problems": [asdict(problem) for problem in problems]}, indent=2))
    else:
        _say_lines(data, found, problems)
    if found["faults"]:
        raise click.exceptions.Exit(TrackbedError.exit_code)


def _say_lines(data: Path, found: dict[str, Any], problems: list[Problem]) -> None:
    for problem in problems:
        click.echo(f"error: {problem}", err=True)
    if found["faults"] > len(problems):
        click.echo(f"and {found['faults'] - len(problems)} more faulty lines; --most N names more", err=True)
    kinds = ", ".join(f"{count} {kind}" for kind, count in found["kinds"].items())
    click.echo(
        f"{data}: {found['conversations']} conversations in the format {found['format']}, "
        f"{found['faults']} faulty{f' ({kinds})' if kinds else ''}"
    )


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
    from trackbed.data.sets.catalogue import SETS as BUILDERS

    folder = folders.data() / name
    with looks.stages(looks.console()) as progress:
        counts = BUILDERS[name](folder, progress)
    click.echo(f"{name}: {', '.join(f'{count} {part}' for part, count in counts.items())} samples in {folder}")


COMMANDS = (model_group, data_group, job_group)

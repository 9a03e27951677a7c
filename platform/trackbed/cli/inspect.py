"""`trackbed data preview` and `trackbed data stats`: a job's data looked at, on the terminal or as a page."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from trackbed.cli import console as looks
from trackbed.cli import inspected
from trackbed.cli.console import problems_as_json, reporting
from trackbed.cli.data import JOB_FILE, as_json_option, overrides
from trackbed.cli.stack import must_run_jobs, within_quota
from trackbed.errors import DataError, Problem, TrackbedError

if TYPE_CHECKING:
    from trackbed.data.chat.prepared import Prepared
    from trackbed.data.config import SampleConfig
    from trackbed.data.samples.parts import Parts
    from trackbed.job import ChatJob, Job

Progress = Callable[[str, int, int], None]
page_option = click.option(
    "--html", "page", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write one page, in a file."
)


@click.command(name="preview")
@click.argument("job_file", type=JOB_FILE)
@overrides
@click.option("--part", default="train", type=click.Choice(["train", "heldout"]), help="Which part of the data.")
@click.option("--samples", default=3, type=click.IntRange(min=1), metavar="N", help="So many, evenly spread.")
@click.option("--line", default=0, type=click.IntRange(min=0), metavar="N", help="The sample at line N instead.")
@page_option
def preview(job_file: Path, sets: tuple[str, ...], page: Path | None, **choice: Any) -> None:
    """Show samples as the model sees them: every token, and which of them are learnt; and a packed row."""
    must_run_jobs()
    from trackbed.data.inspection.preview import Choice
    from trackbed.job import ChatJob, load

    job = load(job_file, sets)
    if isinstance(job, ChatJob):
        _preview_chat(job, Choice(**choice), page)
    else:
        _preview_labelled(job, Choice(**choice), page)


def _preview_chat(job: ChatJob, choice: Any, page: Path | None) -> None:
    from trackbed import hub
    from trackbed.data.inspection import preview_page
    from trackbed.data.inspection.preview import preview as look

    with reporting() as progress:
        prepared = _prepared(job, choice.part, progress)
    view = look(prepared, hub.resolve(job.model.name), job.data, choice)
    if page:
        _write(page, preview_page.to_html(view, job.name))
        return
    inspected.show_preview(view, _console())


def _preview_labelled(job: Job, choice: Any, page: Path | None) -> None:
    if not page:
        what, remedy = "pictures and sounds are shown on a page", "--html FILE"
        raise TrackbedError(Problem(id="data.needs-page", what=what, remedy=remedy))
    from trackbed.data.inspection import labelled_page
    from trackbed.data.inspection.labelled import preview as look

    with reporting() as progress:
        config, parts = _parts(job, progress)
    _write(page, labelled_page.preview_html(look(parts, config, choice), config, choice.part, job.name))


@click.command(name="stats")
@click.argument("job_file", type=JOB_FILE)
@overrides
@as_json_option
@page_option
def stats(job_file: Path, sets: tuple[str, ...], as_json: bool, page: Path | None) -> None:
    """Lengths, padding, duplicates, and what train and heldout have in common, with what it means."""
    must_run_jobs()
    from trackbed.job import ChatJob, load

    with problems_as_json(as_json), reporting(quiet=as_json) as progress:
        job = load(job_file, sets)
        found = _chat_stats(job, progress) if isinstance(job, ChatJob) else _labelled_stats(job, progress)
    if page:
        _write(page, _stats_page(found, job.name), quiet=as_json)
    if as_json:
        click.echo(json.dumps(found, indent=2, ensure_ascii=False))
    elif not page:
        inspected.show_stats(found, _console())


def _chat_stats(job: ChatJob, progress: Progress) -> dict[str, Any]:
    from trackbed.data.inspection.stats import Rows
    from trackbed.data.inspection.stats import stats as count

    parts, problems = {}, list[Problem]()
    for part in ("train", "heldout"):
        try:
            parts[part] = _prepared(job, part, progress)
        except DataError as error:
            problems += error.problems
    if problems:
        raise DataError(problems)
    return count(parts, Rows(job.data, job.train.rows_per_rank), progress)


def _labelled_stats(job: Job, progress: Progress) -> dict[str, Any]:
    from trackbed.data.inspection.labelled import stats as count

    return count(_parts(job, progress)[1], progress)


def _stats_page(found: dict[str, Any], name: str) -> str:
    from trackbed.data.inspection import labelled_page, stats_page

    return (
        stats_page.to_html(found, name)
        if "lengths" in found["parts"]["train"]
        else labelled_page.stats_html(found, name)
    )


def _prepared(job: ChatJob, part: str, progress: Progress) -> Prepared:
    from trackbed import hub
    from trackbed.data.chat.prepare import prepare
    from trackbed.data.chat.recipe import Recipe
    from trackbed.job import data_path

    recipe = Recipe.of(data_path(getattr(job.data, part)), hub.resolve(job.model.name), job.data)
    return prepare(recipe, progress, within_quota(0))


def _parts(job: Job, progress: Progress) -> tuple[SampleConfig, Parts]:
    from trackbed.data.config import SampleConfig
    from trackbed.data.samples.parts import open_parts

    assert isinstance(job.data, SampleConfig)
    return job.data, open_parts(job.data, progress)


def _console() -> Console:
    """Colours follow what the terminal can and NO_COLOR; a log is as wide as a line is long."""
    return looks.console()


def _write(page: Path, text: str, *, quiet: bool = False) -> None:
    from trackbed import folders

    try:
        folders.replace(page, text)
    except OSError as error:
        what = f"the page cannot be written: {error.strerror}"
        raise TrackbedError(
            Problem(id="data.page", where=str(page), what=what, remedy="name a file in a folder")
        ) from error
    if not quiet:
        click.echo(f"page: {page}")


COMMANDS = (preview, stats)

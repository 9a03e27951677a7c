"""How things look: bars on a terminal, plain lines elsewhere, and the report at the end of a run."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click
from rich import box
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from trackbed.errors import TrackbedError

if TYPE_CHECKING:
    from trackbed.submit.plan import Plan

# Seconds between two lines of progress, where there is no terminal to draw on.
EVERY = 10.0
# What is done sooner needs no word of progress in a log.
QUIET_SECONDS = 2.0
STEP = re.compile(r"step (\d+)/(\d+)  (.*)")


@contextmanager
def stages(console: Console, *, after: float = 0) -> Iterator[Callable[[str, int, int], None]]:
    """Progress of named stages: call it with (stage, done, total).

    A bar on a terminal; elsewhere a line now and then, of stages that take longer than `after` seconds.
    """
    if not console.is_terminal:
        yield _Lines(console, after)
        return
    with _bar(console) as progress:
        tasks: dict[str, TaskID] = {}

        def draw(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = progress.add_task(stage, total=total, note="")
            progress.update(tasks[stage], completed=done, total=total)

        yield draw


@contextmanager
def reporting(*, quiet: bool = False) -> Iterator[Callable[[str, int, int], None]]:
    """Progress of named stages on standard error, so that what is printed can be piped."""
    if quiet:
        yield lambda stage, done, total: None
        return
    with stages(Console(stderr=True), after=QUIET_SECONDS) as progress:
        yield progress


@contextmanager
def problems_as_json(asked: bool) -> Iterator[None]:
    """Errors on standard output instead of standard error, for the program that asked."""
    try:
        yield
    except TrackbedError as error:
        if not asked:
            raise
        click.echo(json.dumps({"problems": [asdict(problem) for problem in error.problems]}))
        raise click.exceptions.Exit(error.exit_code) from error


class _Lines:
    """A stage's first line, its last, and one every ten seconds between."""

    def __init__(self, console: Console, after: float) -> None:
        self._console, self._after = console, after
        self._first: dict[str, float] = {}
        self._next: dict[str, float] = {}

    def __call__(self, stage: str, done: int, total: int) -> None:
        now = time.monotonic()
        first = self._first.setdefault(stage, now)
        due = self._next.setdefault(stage, first + self._after)
        shown = due > first + self._after
        if now >= due or (done == total and shown):
            self._console.print(f"{stage}: {done} of {total}", highlight=False, soft_wrap=True)
            self._next[stage] = now + EVERY


@contextmanager
def training(console: Console) -> Iterator[Callable[[str], None]]:
    """Shows what rank 0 says: its steps as one bar on a terminal, everything as lines elsewhere."""
    if not console.is_terminal:
        yield lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True)
        return
    with _bar(console) as progress:
        task = progress.add_task("training", total=None, note="")

        def show(line: str) -> None:
            if match := STEP.match(line):
                progress.update(task, completed=int(match[1]), total=int(match[2]), note=match[3])
            else:
                console.print(line, markup=False, highlight=False, soft_wrap=True)

        yield show


def _bar(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    return Progress(*columns, TimeRemainingColumn(), TextColumn("{task.fields[note]}"), console=console)


def plan(plan: Plan) -> RenderableType:
    """What a run would do, for a person."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, value in _plan_rows(plan):
        table.add_row(name, value)
    return Group(table, *_dropped(plan))


def _plan_rows(plan: Plan) -> Iterator[tuple[str, str]]:
    yield "run", plan.run
    yield "model", f"{plan.model}  ({plan.parameters / 1e6:.1f} M parameters)"
    if plan.model_note:
        yield "", plan.model_note
    for part, count in plan.data.items():
        yield part, _tokens(count) if "tokens" in count else _samples(count)
    yield (
        "training",
        (
            f"{plan.steps} steps of {plan.rows_per_step} rows on {plan.ranks} ranks, {plan.epochs} epochs, "
            f"ZeRO stage {plan.deepspeed['zero_optimization']['stage']}"
        ),
    )
    yield (
        "memory",
        f"{_size(plan.state_gib_per_rank)} a rank for weights, gradients and optimizer; activations come on top",
    )
    yield "checkpoint", f"{_size(plan.checkpoint_gib)} each"


def _size(gib: float) -> str:
    return f"{gib:.2f} GiB" if gib >= 0.1 else f"{gib * 1024:.1f} MiB"


def _tokens(count: dict[str, Any]) -> str:
    return (
        f"{count['samples']} samples, {count['tokens']} tokens, {count['supervised_tokens']} supervised; "
        f"{count['rows']} rows, {count['filled']:.1%} filled; "
        f"{count['dropped']} dropped, {count['truncated']} truncated; format {count['format']}"
    )


def _samples(count: dict[str, Any]) -> str:
    left_out = f"{count['dropped']} cannot be read and are left out"
    return f"{count['samples']} samples of {count['classes']} classes; {left_out}"


def _dropped(plan: Plan) -> list[str]:
    return [f"dropped: {escape(text)}" for count in plan.data.values() for text in count["dropped_samples"]]


def report(summary: dict[str, Any], run_folder: str) -> RenderableType:
    """Before and after, in numbers and in answers."""
    before, after = summary["before"], summary["after"]
    samples = after["samples"]
    numbers = Table(title=f"measured on {samples} held-out samples", box=box.SIMPLE, title_justify="left")
    for column in ("", "before", "after"):
        numbers.add_column(column, justify="left" if not column else "right")
    numbers.add_row("held-out loss", f"{before['loss']:.3f}", f"{after['loss']:.3f}")
    numbers.add_row(summary["right"], f"{before['right']:.1%}", f"{after['right']:.1%}")
    fall = 1 - after["loss"] / before["loss"]
    speed = f"loss fell by {fall:.0%}; {summary['steps']} steps at {summary['per_second']:.0f} {summary['unit']}/s"
    lines = [f"{speed}; waited for data {summary['data_wait_share']:.1%} of the time"]
    if summary.get("note"):
        lines.append(f"note: a small model, and its weights are {summary['note']}")
    answers = [_answers(before["answers"], after["answers"])] if after["answers"] else []
    return Group(numbers, *answers, *map(escape, lines), *_places(run_folder))


def _answers(before: list[dict[str, str]], after: list[dict[str, str]]) -> Table:
    table = Table(title="sample answers", box=box.SIMPLE, title_justify="left", show_lines=True)
    table.add_column("question", ratio=4)
    for column in ("right", "before", "after"):
        table.add_column(column, ratio=2, overflow="fold")
    for old, new in zip(before, after, strict=True):
        table.add_row(*(escape(text) for text in (old["question"], old["wanted"], old["given"], new["given"])))
    return table


def _places(run_folder: str) -> list[str]:
    folder = escape(run_folder)
    return [
        f"run:         {folder}",
        f"the model:   {folder}/model (loads with transformers)",
        "TensorBoard: trackbed monitor (make monitor), then http://127.0.0.1:6006",
    ]


def console() -> Console:
    """As wide as the terminal, or wide enough to read in a log."""
    return Console(width=None if sys.stdout.isatty() else 120)


def waiting(what: str, *, quiet: bool) -> AbstractContextManager[object]:
    """A sign of life on a terminal; nothing elsewhere, where it would only be noise."""
    return nullcontext() if quiet or not sys.stdout.isatty() else console().status(what)

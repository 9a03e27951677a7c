"""What a validation is told to: files, a program on standard output, or a person's screen."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trackbed.cli import console as looks
from trackbed.errors import Problem, ValidationError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from trackbed.validate.report.record import Report

STDOUT = Path("-")


def tell(files: Mapping[str, Path], validation: Report, code: int, *, verbose: bool, strict: bool) -> None:
    """Each format (json, junit, prometheus, html) to its file, then the screen: gone, it takes nothing with it."""
    from trackbed.validate.report import screen

    for path, text in _texts(files, validation, code, strict=strict):
        if path == STDOUT:
            _print(text)
            continue
        write(path, text)
    if STDOUT not in files.values():
        _show(screen.as_text(validation, verbose=verbose))


def _print(text: str) -> None:
    """To a program, which must not take half of it for all."""
    try:
        click.echo(text, nl=False)
    except OSError as error:
        _no_screen()
        raise ValidationError(_unwritable("standard output", error)) from error


def _show(screen: RenderableType) -> None:
    """To a person. Where nobody reads it, or a log's disk is full, the exit code still is the verdict."""
    try:
        looks.console().print(screen)
    except SystemExit:
        # That is how rich says that nobody reads any more.
        _no_screen()
    except OSError as error:
        _no_screen()
        with suppress(OSError):
            click.echo(f"standard output cannot be written: {error.strerror}", err=True)


def _no_screen() -> None:
    """What is still to be written would fail again when Python ends, and change the exit code."""
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 1)


def write(path: Path, text: str) -> None:
    """Whole or not at all: a collector or a browser never reads half a file."""
    from trackbed import folders

    try:
        folders.replace(path, text)
    except OSError as error:
        raise ValidationError(_unwritable(str(path), error)) from error


def _unwritable(where: str, error: OSError) -> Problem:
    what, remedy = f"cannot be written: {error.strerror}", "name a file on a file system that can be written"
    return Problem(id="validate.output", where=where, what=what, remedy=remedy)


def _texts(files: Mapping[str, Path], validation: Report, code: int, *, strict: bool) -> Iterator[tuple[Path, str]]:
    """Each file that is asked for, with its text."""
    from trackbed.validate import runner
    from trackbed.validate.report import html as render_html
    from trackbed.validate.report import junit, prometheus, screen

    makers = {
        "json": lambda: screen.as_json(validation.document()) + "\n",
        "junit": lambda: junit.to_junit(validation, strict=strict),
        "prometheus": lambda: prometheus.to_prometheus(validation, exit_code=code),
        "html": lambda: render_html.to_html(validation, {check.id: check for check in runner.checks()}),
    }
    for name, path in files.items():
        yield path, makers[name]()

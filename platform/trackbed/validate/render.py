"""Results for people and for programs. Returns, never prints: the command line is the only printer."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, get_args

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from trackbed.validate import SCHEMA_VERSION, Result, Status

# Worst first; within one status, the order of the catalogue.
ORDER: tuple[Status, ...] = ("error", "fail", "warn", "skip", "pass")
STYLES = {"error": "bold magenta", "fail": "bold red", "warn": "yellow", "skip": "cyan", "pass": "green"}
NAME_WIDTH = 29


def summary(results: Iterable[Result]) -> dict[str, int]:
    """How many results have each status; zero is said too."""
    counts = Counter(result.status for result in results)
    return {status: counts[status] for status in get_args(Status)}


def to_document(results: Sequence[Result], *, release: str, host: str) -> dict[str, Any]:
    """The whole validation as one JSON-ready dictionary, worst first."""
    return {
        "schema_version": SCHEMA_VERSION,
        "release": release,
        "host": host,
        "results": [result.to_dict() for result in worst_first(results)],
        "summary": summary(results),
    }


def to_json(results: Sequence[Result], *, release: str, host: str) -> str:
    """The document as text, indented."""
    return json.dumps(to_document(results, release=release, host=host), indent=2, ensure_ascii=False)


def to_text(results: Sequence[Result], *, release: str, host: str) -> RenderableType:
    """Worst first: what is not good with what was wanted and how to mend it, what is good in one line each."""
    blocks: list[RenderableType] = []
    for result in worst_first(results):
        blocks.append(line(result))
        blocks += [] if result.status == "pass" else _details(result)
    return Group(*blocks, Text(_verdict(results, release, host), style="bold"))


def line(result: Result) -> RenderableType:
    """One result in one line, as it comes; a pass never takes more than that line."""
    style = STYLES[result.status]
    head = Text.assemble((f"{result.status:5} ", style), f"{result.id:{NAME_WIDTH}}")
    text = Text.assemble(head, " ", result.observed)
    if result.status == "pass":
        text.no_wrap, text.overflow = True, "ellipsis"
    return text


def worst_first(results: Iterable[Result]) -> list[Result]:
    return sorted(results, key=lambda result: ORDER.index(result.status))


def _details(result: Result) -> list[RenderableType]:
    source = "a recorded fixture, not this machine" if result.source == "fixture" else ""
    pairs = [("wanted", result.expected), ("mend", result.remedy), ("source", source)]
    grid = Table.grid(padding=(0, 1))
    for name, text in pairs:
        if text:
            grid.add_row(name, Text(text))
    return [Padding(grid, (0, 0, 0, 6), expand=False)]


def _verdict(results: Sequence[Result], release: str, host: str) -> str:
    counts = [f"{count} {status}" for status, count in summary(results).items() if count]
    return f"release {release} on {host}: {', '.join(counts) or 'nothing was checked'}"

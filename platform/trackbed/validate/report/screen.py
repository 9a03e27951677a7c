"""Results for a person on one screen, and as JSON. Returns, never prints: the command line is the only printer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from trackbed.validate import Level, Result
from trackbed.validate.report.record import ORDER, Report, report, summary, worst_first

__all__ = ["ORDER", "line", "summary", "to_document", "to_json", "to_text", "worst_first"]

STYLES = {"error": "bold magenta", "fail": "bold red", "warn": "yellow", "skip": "cyan", "pass": "green"}
NAME_WIDTH = 29
REASONS = 4  # of skips, on the screen


def to_document(results: Sequence[Result], *, release: str, host: str, level: Level = "node") -> dict[str, Any]:
    """The whole validation as one JSON-ready dictionary, worst first."""
    return report(results, release=release, host=host, level=level).document()


def to_json(results: Sequence[Result], *, release: str, host: str, level: Level = "node") -> str:
    """The document as text, indented."""
    return as_json(to_document(results, release=release, host=host, level=level))


def as_json(document: Any) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False)


def to_text(results: Sequence[Result], *, release: str, host: str, verbose: bool = False) -> RenderableType:
    """Worst first: what is not good with what was wanted and how to mend it. The rest is folded unless verbose."""
    return as_text(report(results, release=release, host=host), verbose=verbose)


def as_text(validation: Report, *, verbose: bool = False) -> RenderableType:
    """The report for one screen, the verdict last: it is what a person reads first when the screen has scrolled."""
    loud = [each for each in validation.results if verbose or each.status not in ("skip", "pass")]
    blocks: list[RenderableType] = []
    for each in loud:
        blocks.append(line(each))
        blocks += [] if each.status == "pass" else _details(each)
    if not verbose:
        blocks += [*_skipped(validation.results), *_passed(validation)]
    return Group(*blocks, _verdict(validation))


def line(result: Result) -> RenderableType:
    """One result in one line, as it comes; a pass never takes more than that line."""
    head = Text.assemble((f"{result.status:5} ", STYLES[result.status]), f"{result.id:{NAME_WIDTH}}")
    if result.status == "pass":
        return _one_line(Text.assemble(head, " ", result.observed))
    return _hanging(head, result.observed, width=NAME_WIDTH + 6)


def _hanging(head: Text | tuple[str, str], words: str, *, width: int) -> RenderableType:
    """Words beside a head, wrapped under themselves."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(min_width=width, no_wrap=True)
    grid.add_column()
    grid.add_row(Text.assemble(head), Text(words))
    return grid


def _one_line(text: Text) -> Text:
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _details(result: Result) -> list[RenderableType]:
    source = "a recorded fixture, not this machine" if result.source == "fixture" else ""
    pairs = [("wanted", result.expected), ("mend", result.remedy), ("source", source)]
    grid = Table.grid(padding=(0, 1))
    for name, text in pairs:
        if text:
            grid.add_row(name, Text(text))
    return [Padding(grid, (0, 0, 0, 6), expand=False)]


def _skipped(results: Sequence[Result]) -> Iterator[RenderableType]:
    """One paragraph for all skips: what most of them lack, and how many it is each time."""
    reasons: dict[str, list[str]] = {}
    for each in results:
        if each.status == "skip":
            reasons.setdefault(each.observed, []).append(each.family)
    count = sum(map(len, reasons.values()))
    common = sorted(reasons.items(), key=lambda item: -len(item[1]))
    # One reason more takes no more room than the word that there is one.
    shown = common if len(common) <= REASONS + 1 else common[:REASONS]
    parts = [f"{len(families)} {reason} ({_names(families)})" for reason, families in shown]
    rest = [family for _, families in common[len(shown) :] for family in families]
    parts += [f"{len(rest)} for other reasons ({_names(rest)}): --verbose"] if rest else []
    if parts:
        yield _hanging(("skip", STYLES["skip"]), f"{count} not for this machine: {'; '.join(parts)}", width=5)


def _names(families: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(families))


def _passed(validation: Report) -> Iterator[RenderableType]:
    """One line a family."""
    for family, results in validation.families.items():
        names = [each.id.partition(".")[2] for each in results if each.status == "pass"]
        if names:
            head = Text.assemble(("pass  ", STYLES["pass"]), f"{family:10}{len(names):3}  ")
            yield _one_line(Text.assemble(head, (", ".join(names), "dim")))


def _verdict(validation: Report) -> Text:
    counts = [f"{count} {status}" for status, count in validation.summary.items() if count]
    words = f"release {validation.release} on {validation.host}: {', '.join(counts) or 'nothing was checked'}"
    bad = not counts or validation.summary["fail"] or validation.summary["error"]
    return Text(words, style="bold red" if bad else "bold")

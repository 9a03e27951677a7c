"""Results as one page in one file: opens anywhere, asks the network for nothing, needs no script."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trackbed.validate import Check, Result
from trackbed.validate.report.html_page import TEMPLATE
from trackbed.validate.report.record import ORDER, Report

# A status is never told by its colour alone.
SIGNS = {"error": "?", "fail": "✕", "warn": "!", "skip": "–", "pass": "✓"}
BAR, ROW = 300, 24  # the longest bar and the height of a row, in units of the picture
LETTER = 7.2  # how wide a letter is at most, on average
LONGEST = 12


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A piece of a bar: where it begins, how wide it is, in units of the picture."""

    x: float
    width: float
    status: str
    words: str


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A row of a picture: its name, its pieces, the words behind them."""

    name: str
    y: int
    segments: tuple[Segment, ...]
    words: str

    @property
    def end(self) -> float:
        return max(segment.x + segment.width for segment in self.segments)


@dataclass(frozen=True, kw_only=True)
class Picture:
    """Bars on one scale, with room for the names on the left and the words on the right."""

    bars: list[Bar]

    @property
    def left(self) -> float:
        return round(LETTER * max((len(bar.name) for bar in self.bars), default=0) + 10, 1)

    @property
    def width(self) -> float:
        return round(self.left + max((bar.end + LETTER * len(bar.words) for bar in self.bars), default=BAR) + 10, 1)


def to_html(validation: Report, catalogue: Mapping[str, Check] | None = None) -> str:
    """The page; with a catalogue by id it also says why a check that is not good exists, and its rule."""
    from jinja2 import Environment

    page = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(TEMPLATE)
    return page.render(
        validation=validation,
        verdict=verdict(validation),
        loud=[each for each in validation.results if each.status not in ("pass", "skip")],
        quiet=[each for each in validation.results if each.status in ("pass", "skip")],
        families=Picture(bars=family_bars(validation)),
        durations=Picture(bars=duration_bars(validation)),
        total=sum(each.duration_ms for each in validation.results) / 1000,
        catalogue=catalogue or {},
        order=ORDER,
        signs=SIGNS,
        row=ROW,
    )


def verdict(validation: Report) -> str:
    """The first sentence of the page."""
    counts = validation.summary
    parts = [f"{counts['error']} could not be checked"] if counts["error"] else []
    parts += [f"{counts['fail']} failed"] if counts["fail"] else []
    parts += [f"{counts['warn']} to look at"] if counts["warn"] else []
    if not validation.results:
        return "Nothing was checked"
    return ", ".join(parts) if parts else f"Good: {counts['pass']} checks passed"


def family_bars(validation: Report) -> list[Bar]:
    """One bar a family, in pieces by status; bars share one scale, so that lengths compare."""
    scale = BAR / max(map(len, validation.families.values()), default=1)
    return [_family(index, name, done, scale) for index, (name, done) in enumerate(validation.families.items())]


def _family(index: int, name: str, results: list[Result], scale: float) -> Bar:
    segments, x = [], 0.0
    counts = {status: sum(each.status == status for each in results) for status in ORDER}
    for status, count in counts.items():
        if count:
            words = f"{name}: {count} {status}"
            # Two units of nothing between neighbours, for eyes that see the colours alike.
            segments.append(
                Segment(x=round(x, 1), width=round(max(2, count * scale - 2), 1), status=status, words=words)
            )
            x += count * scale
    words = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    return Bar(name=name, y=index * ROW, segments=tuple(segments), words=words)


def duration_bars(validation: Report) -> list[Bar]:
    """The checks that took longest."""
    longest = sorted(validation.results, key=lambda each: -each.duration_ms)[:LONGEST]
    scale = BAR / max((each.duration_ms for each in longest), default=0) if any(e.duration_ms for e in longest) else 0
    return [_duration(index, each, scale) for index, each in enumerate(longest)]


def _duration(index: int, result: Result, scale: float) -> Bar:
    words = f"{result.duration_ms / 1000:.2f} s"
    width = round(max(2.0, result.duration_ms * scale), 1)
    piece = Segment(x=0, width=width, status=result.status, words=f"{result.id}: {words}, {result.status}")
    return Bar(name=result.id, y=index * ROW, segments=(piece,), words=words)

"""Figures: what a benchmark measured, as a program reads it, and what a site's own baseline says of them.

A check that measures puts its figures into the result's evidence as JSON, {"figures": {NAME: {value, unit, better,
noise}}}: value is the median of its repeats, better is "higher" or "lower", noise its standard error in percent.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trackbed.validate import number

Better = Literal["higher", "lower"]
# The median absolute deviation times the first estimates a normal distribution's standard deviation, and that times the
# second, over the root of their number, a median's standard error.
TO_SIGMA, OF_MEDIAN = 1.4826, 1.2533


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure; `noise` is in percent of the value."""

    value: float
    unit: str
    better: Better = "higher"
    noise: float = 0.0

    def worse(self, than: float) -> float:
        """How many percent it is worse than a value; negative when it is better."""
        change = (self.value - than) / than * 100
        return -change if self.better == "higher" else change


def figure(runs: Sequence[float], unit: str, better: Better = "higher") -> Figure:
    """The median of repeats, and how much another median of as many would differ."""
    middle = statistics.median(runs)
    spread = statistics.median(abs(each - middle) for each in runs)
    noise = 100 * OF_MEDIAN * TO_SIGMA * spread / middle / math.sqrt(len(runs)) if middle else 0.0
    return Figure(value=middle, unit=unit, better=better, noise=noise)


def to_evidence(figures: Mapping[str, Figure], **more: Any) -> str:
    """The evidence's text; `more` is what else a bug report needs."""
    rows = {
        name: {"value": each.value, "unit": each.unit, "better": each.better, "noise": each.noise}
        for name, each in figures.items()
    }
    return json.dumps({"figures": rows, **more})


def from_evidence(text: str) -> dict[str, Figure]:
    """The figures in a result's evidence; none where there are none, and none of what makes no sense."""
    try:
        rows = json.loads(text)["figures"].items()
    except (AttributeError, KeyError, TypeError, ValueError):
        return {}
    return {str(name): made for name, row in rows if (made := read(row))}


def read(row: object) -> Figure | None:
    """One figure of a file; None for what is none."""
    if not isinstance(row, Mapping) or row.get("better") not in ("higher", "lower"):
        return None
    value, noise = number(row.get("value")), number(row.get("noise", 0.0))
    if not value or noise is None or not math.isfinite(value):
        return None
    return Figure(value=value, unit=str(row.get("unit", "")), better=row["better"], noise=noise)


def of_results(results: Iterable[Mapping[str, Any]]) -> dict[str, Figure]:
    """Every figure of a validation's results, as `CHECK/FIGURE`."""
    return {
        f"{done.get('id')}/{name}": each
        for done in results
        if done.get("status") != "error"
        for name, each in from_evidence(str(done.get("evidence", ""))).items()
    }


def text(value: float, unit: str) -> str:
    """For people: `0.213 TFLOP/s`."""
    # Three digits, and never 1.2e+03.
    few = value < 999.5  # mutation: equivalent, because both forms write three whole digits alike
    return f"{value:.3g} {unit}" if few else f"{value:.0f} {unit}"

"""A site's own baseline: what a node measured when it was good, and how much worse than that it may be.

    baseline.save(path, results, host=..., release=...)      # trackbed validate --level deep --save-baseline FILE
    Context(..., baseline=baseline.load(path))                # trackbed validate --level deep --baseline FILE

The file is JSON, to be edited: `warn_percent` and `fail_percent` hold for every figure that has none of its own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trackbed import folders
from trackbed.errors import Problem, ValidationError
from trackbed.validate import Outcome, Result, Status, figures, number, unreadable
from trackbed.validate.figures import Figure

FILE_SCHEMA = 1
WARN, FAIL = 5.0, 10.0
SEVERITY: tuple[Status, ...] = ("pass", "warn", "fail")
SAVE = "trackbed validate --level deep --save-baseline FILE, on this node when it is good and idle"


def save(path: Path, results: Sequence[Result], *, host: str, release: str) -> int:
    """Write the figures of a deep validation as a baseline; how many. Raises ValidationError with nothing to save."""
    found = figures.of_results(done.to_dict() for done in results)
    deep = {name: each for name, each in found.items() if name.startswith("deep.")}
    if not deep:
        raise ValidationError(_problem(path, "no figure was measured: nothing to save", "add --level deep"))
    document = {
        "schema_version": FILE_SCHEMA,
        "host": host,
        "release": release,
        "idle": all(done.status == "pass" for done in results if done.id == "deep.idle"),
        "saved": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "warn_percent": WARN,
        "fail_percent": FAIL,
        "figures": {name: _row(each) for name, each in sorted(deep.items())},
    }
    try:
        folders.replace(path, json.dumps(document, indent=2) + "\n")
    except OSError as error:
        what = f"cannot be written: {error.strerror}"
        raise ValidationError(_problem(path, what, "name a file in a folder that can be written")) from error
    return len(deep)


def load(path: Path) -> dict[str, Any]:
    """A baseline file's content. Raises ValidationError with every mistake in it."""
    try:
        raw = json.loads(path.read_text("utf-8"))
    except (OSError, RecursionError, ValueError) as error:
        said = (error.strerror if isinstance(error, OSError) else "") or f"is no JSON: {error}"
        raise ValidationError(_problem(path, said, SAVE)) from error
    if mistakes := _mistakes(raw):
        raise ValidationError([_problem(path, what, SAVE) for what in mistakes])
    return dict(raw)


def part(baseline: Mapping[str, Any], check: str) -> dict[str, Any]:
    """What a baseline says of one check: its figures by name and the limits; empty without a baseline."""
    rows = baseline.get("figures", {})
    mine = {name.partition("/")[2]: row for name, row in rows.items() if name.partition("/")[0] == check}
    limits = {name: baseline[name] for name in ("warn_percent", "fail_percent") if name in baseline}
    return {"figures": mine, "of": _of(baseline), **limits} if baseline else {}


def _of(baseline: Mapping[str, Any]) -> str:
    """Whose baseline it is."""
    busy = ", saved on a machine that was not idle" if baseline.get("idle") is False else ""
    return f"baseline of {baseline.get('host', 'an unknown node')}{busy}"


def compare(now: Mapping[str, Figure], then: Mapping[str, Any], evidence: str) -> Outcome:
    """Each figure against the baseline's; one that the baseline has and this run has not is a failure too.

    Two medians of the same machine differ too: less than three standard errors is no finding, whatever the limits.
    """
    seen = ", ".join(f"{name} {figures.text(each.value, each.unit)}" for name, each in now.items())
    if not then:
        expected = f"a baseline to hold it against: {SAVE}"
        return Outcome(status="pass", observed=f"{seen}; no baseline", expected=expected, evidence=evidence)
    rows = {name: figures.read(row) for name, row in then["figures"].items()}
    if None in rows.values():
        return unreadable("the baseline", then["figures"])
    lines = [f"{name} was not measured" for name in rows if name not in now]
    worst: Status = "fail" if lines else "pass"
    for name, was in rows.items():
        status, line = (
            _judge(now[name], was, {**then, **then["figures"][name]}) if was and name in now else ("pass", "")
        )
        worst = max(worst, status, key=SEVERITY.index)
        lines += [f"{name} {line}"] if status != "pass" else []
    expected = "; ".join(f"{name} {figures.text(was.value, was.unit)}" for name, was in rows.items() if was)
    expected = f"{then['of']}: {expected}" if rows else f"a figure in the baseline: {SAVE}"
    if worst == "pass":
        return Outcome(status="pass", observed=seen, expected=expected, evidence=evidence)
    return Outcome(status=worst, observed="; ".join(lines), expected=expected, evidence=evidence, remedy=REMEDY)


REMEDY = (
    "run it again on an idle machine (deep.idle); then look for what changed: clocks and power limits, a degraded "
    "memory module or disk, a neighbour on the same host. When the new figure is right, save a new baseline; how far "
    "off is still good is warn_percent and fail_percent in its file"
)


def _judge(now: Figure, was: Figure, limits: Mapping[str, Any]) -> tuple[Status, str]:
    """How much worse, against its own limits or the file's."""
    warn, fail = number(limits.get("warn_percent", WARN)), number(limits.get("fail_percent", FAIL))
    noise, worse = 3 * max(now.noise, was.noise), now.worse(was.value)
    word = "less" if now.better == "higher" else "more"
    than = f"{worse:.0f} % {word} than {figures.text(was.value, was.unit)}"
    line = f"{figures.text(now.value, now.unit)}, {than} (noise {noise / 3:.1f} %)"
    if warn is None or fail is None:  # mutation: equivalent, because comparing with None raises too
        raise ValueError("a limit is no number")
    if worse <= 0 or worse < max(min(warn, fail), noise):
        return "pass", line
    return "fail" if worse >= max(fail, noise) else "warn", line


def _row(each: Figure) -> dict[str, Any]:
    return {"value": each.value, "unit": each.unit, "better": each.better, "noise": each.noise}


def _mistakes(raw: object) -> list[str]:
    """Everything that is wrong with a file's content."""
    if not isinstance(raw, Mapping) or raw.get("schema_version") != FILE_SCHEMA:
        return [f"is no baseline of this version (schema_version {FILE_SCHEMA})"]
    rows = raw.get("figures")
    if not isinstance(rows, Mapping) or not rows:
        return ["has no figures"]
    found = [f"`{name}` is no figure" for name, row in rows.items() if figures.read(row) is None]
    tables = {"": raw, **{f"{name}.": row for name, row in rows.items() if isinstance(row, Mapping)}}
    keys = ("warn_percent", "fail_percent")
    found += [
        f"`{where}{key}` is not a number of zero or more"
        for where, table in tables.items()
        for key in keys
        if key in table and number(table[key]) is None
    ]
    return found


def _problem(path: Path, what: str, remedy: str) -> Problem:
    return Problem(id="validate.baseline", where=str(path), what=what, remedy=remedy)

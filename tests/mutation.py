"""Change every comparison of every rule, one at a time: does a row of the rules' table turn red?

    python tests/mutation.py [FAMILY...]

A change that no row notices is a survivor: a rule, or its boundary, that nothing holds. A row mends it; where no input
can tell the two apart, a comment on its line allows it and says why:

    # mutation: equivalent, because REASON

What a rule decides beside its status and what was seen, such as its remedy, is held by the tables' TEXTS.
Exit 0 without a survivor; 1 when there is one, when a row is red without a change, or when a comment allows nothing.
"""

from __future__ import annotations

import importlib
import os
import re
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

from mutants import Living, Mutant, living, mutants, put_in

MARK = "# mutation: equivalent"
REASON = re.compile(rf"{MARK}, because \S+ \S+")
SHARED = "(shared)"  # what checks of several families call


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a table with the assertion it makes."""

    check: str
    shown: str
    holds: Callable[[], None]


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What is put to the test: the functions of `package` that judges come to, by their check's id; and rows."""

    package: str
    judges: Mapping[str, Callable[[Any], Any]]
    rows: Sequence[Row]
    patience: float = 2.0
    """Seconds for one change, and twenty times what its rows take: one that loops for ever is noticed by it."""


@dataclass(kw_only=True)
class Report:
    """What came of a family's changes."""

    family: str
    made: int = 0
    survivors: list[Mutant] = field(default_factory=list)
    allowed: list[Mutant] = field(default_factory=list)
    seconds: float = 0.0

    def __str__(self) -> str:
        killed = self.made - len(self.survivors) - len(self.allowed)
        return (
            f"{self.family:<12} {self.made:5} mutants {killed:5} killed {len(self.survivors):4} survivors "
            f"{len(self.allowed):3} equivalent {self.seconds:6.1f} s"
        )


class Late(BaseException):
    """Time is over. Not an Exception, so that no rule catches it."""


def examine(rules: Rules, families: Collection[str] = (), say: Callable[[str], object] = str) -> list[Report]:
    """One report a family, of every change to what the judges of these families (all by default) come to."""
    rows = _green(rules)
    made: dict[str, list[Mutant]] = defaultdict(list)
    for mutant in mutants(rules.judges, rules.package):
        named = sorted({check.partition(".")[0] for check in mutant.checks})
        if not families or not set(families).isdisjoint(named):
            made[named[0] if len(named) == 1 else SHARED].append(mutant)
    there, reports = living(rules.package), []
    for family in sorted(made):
        reports.append(_family(family, made[family], rules, rows, there))
        say(str(reports[-1]))
    return reports


def red(rules: Rules) -> list[str]:
    """The rows that do not hold without any change; they can notice nothing."""
    return [f"{row.check}: {row.shown}" for row in rules.rows if not _holds(row)]


def unused(reports: Sequence[Report], package: Path) -> list[str]:
    """Comments that allow nothing: their change is noticed after all, or they give no reason."""
    used = {(mutant.file, mutant.line) for report in reports for mutant in report.allowed}
    lines = ((path, line, text) for path in package.rglob("*.py") for line, text in enumerate(_lines(path), 1))
    return [f"{_place(path)}:{line}" for path, line, text in lines if MARK in text and (path, line) not in used]


def _green(rules: Rules) -> dict[str, list[tuple[Row, float]]]:
    """The rows that hold, by check, with the seconds each takes."""
    found: dict[str, list[tuple[Row, float]]] = defaultdict(list)
    for row in rules.rows:
        began = time.perf_counter()
        if _holds(row):
            found[row.check].append((row, time.perf_counter() - began))
    return found


def _family(
    family: str, made: Sequence[Mutant], rules: Rules, rows: Mapping[str, list[tuple[Row, float]]], there: Living
) -> Report:
    report, began = Report(family=family, made=len(made)), time.monotonic()
    for mutant in made:
        mine = [row for check in sorted(mutant.checks) for row in rows.get(check, ())]
        with put_in(mutant, there):
            killed = _killed(rules, mine)
        if not killed:
            allowed = REASON.search(_lines(mutant.file)[mutant.line - 1])
            (report.allowed if allowed else report.survivors).append(mutant)
    report.seconds = time.monotonic() - began
    return report


def _killed(rules: Rules, rows: Sequence[tuple[Row, float]]) -> bool:
    try:
        with _within(rules.patience + 20 * sum(seconds for _, seconds in rows)):
            return not all(_holds(row) for row, _ in rows)
    except Late:
        return True


def _holds(row: Row) -> bool:
    try:
        row.holds()
    except Exception:  # noqa: BLE001 - whatever is raised, the test is red
        return False
    return True


@contextmanager
def _within(seconds: float) -> Iterator[None]:
    """Raise Late in the code below after so many seconds, again and again in case it is caught."""

    def late(*_: object) -> None:
        raise Late

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds, 0.1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@cache
def _lines(path: Path) -> list[str]:
    return path.read_text("utf-8").splitlines()


def _place(path: Path) -> str:
    root = Path(__file__).parents[1]
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


def _shown(mutant: Mutant) -> str:
    checks = sorted(mutant.checks)
    more = f" and {len(checks) - 3} more" if len(checks) > 3 else ""
    return f"{_place(mutant.file)}:{mutant.line}: {mutant.change} ({', '.join(checks[:3])}{more})"


def holds_text(name: str, measured: Any, part: str, pattern: str) -> None:
    """A row of TEXTS: another field of the outcome, and a pattern that is in it."""
    from validate_rules import check

    text = getattr(check(name).judge(measured), part)
    assert re.search(pattern, text), text


def texts() -> list[tuple[str, Any, str, str]]:
    """The TEXTS of all tables; not every table has them."""
    import test_validate

    modules = map(importlib.import_module, ("validate_rules", *test_validate.TABLES))
    return [row for module in modules for row in getattr(module, "TEXTS", ())]


def ours() -> Rules:
    """The catalogue's rules, with the very assertions that pytest makes."""
    import test_validate
    from trackbed.validate.catalogue import CHECKS

    tables = ((test_validate.RULES, test_validate.test_rules), (texts(), holds_text))
    rows = [
        Row(check=row[0], shown=f"{row[2]}, {row[3]!r}", holds=partial(holds, *row))
        for table, holds in tables for row in table
    ]  # fmt: skip
    return Rules(package="trackbed.validate", judges={check.id: check.judge for check in CHECKS}, rows=rows)


def main(families: Sequence[str]) -> int:
    if not __debug__:
        raise SystemExit("error: python -O takes the assertions out: run without it")
    began, rules = time.monotonic(), ours()
    if unknown := sorted(set(families) - {check.partition(".")[0] for check in rules.judges}):
        raise SystemExit(f"error: no check is of the family {', '.join(unknown)}")
    wrong = [f"red without a change: {row}" for row in red(rules)]
    reports = examine(rules, families, lambda line: print(line, file=sys.stderr, flush=True))
    wrong += [f"survivor: {_shown(mutant)}" for report in reports for mutant in report.survivors]
    if not families:
        folder = Path(sys.modules[rules.package].__file__ or "").parent
        wrong += [f"a comment that allows nothing: {place}" for place in unused(reports, folder)]
    print("\n".join([*wrong, *map(str, reports), str(_sum(reports, time.monotonic() - began))]))
    return 1 if wrong else 0


def _sum(reports: Sequence[Report], seconds: float) -> Report:
    survivors = [mutant for report in reports for mutant in report.survivors]
    allowed = [mutant for report in reports for mutant in report.allowed]
    made = sum(report.made for report in reports)
    return Report(family="all", made=made, survivors=survivors, allowed=allowed, seconds=seconds)


if __name__ == "__main__":
    # Some remedies differ in an image.
    os.environ.pop("TRACKBED_RELEASE", None)
    raise SystemExit(main(sys.argv[1:]))

"""One validation as every renderer takes it: results worst first, nothing secret in them, where and when."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any, get_args

from trackbed.validate import SCHEMA_VERSION, Level, Result, Status
from trackbed.validate.redact import redact

# Worst first; within one status, the order of the catalogue.
ORDER: tuple[Status, ...] = ("error", "fail", "warn", "skip", "pass")


@dataclass(frozen=True, kw_only=True)
class Report:
    """What was found; `created` is seconds since 1970."""

    results: tuple[Result, ...]
    release: str
    host: str
    level: Level
    created: float

    @property
    def summary(self) -> dict[str, int]:
        return summary(self.results)

    @property
    def when(self) -> str:
        """The time as people and programs read it, in UTC."""
        return datetime.fromtimestamp(self.created, tz=timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")

    @property
    def families(self) -> dict[str, list[Result]]:
        """The results of each family, families by name."""
        return {name: [each for each in self.results if each.family == name] for name in family_names(self.results)}

    def document(self) -> dict[str, Any]:
        """The whole as one JSON-ready dictionary; schema.py describes it."""
        return {
            "schema_version": SCHEMA_VERSION,
            "release": self.release,
            "host": self.host,
            "level": self.level,
            "created": self.when,
            "results": [result.to_dict() for result in self.results],
            "summary": self.summary,
        }


def report(
    results: Iterable[Result], *, release: str, host: str, level: Level = "node", created: float | None = None
) -> Report:
    """A report of what the checks said; of now when it is not said when."""
    safe = tuple(_safe(each) for each in worst_first(results))
    return Report(
        results=safe, release=release, host=host, level=level, created=time.time() if created is None else created
    )


def _safe(done: Result) -> Result:
    """A record is made without secrets; one read from a file is somebody else's word for it."""
    return replace(
        done,
        observed=redact(done.observed),
        expected=redact(done.expected),
        evidence=redact(done.evidence),
        remedy=redact(done.remedy),
    )


def summary(results: Iterable[Result]) -> dict[str, int]:
    """How many results have each status; zero is said too."""
    counts = Counter(result.status for result in results)
    return {status: counts[status] for status in get_args(Status)}


def worst_first(results: Iterable[Result]) -> list[Result]:
    return sorted(results, key=lambda result: ORDER.index(result.status))


def family_names(results: Iterable[Result]) -> list[str]:
    return sorted({result.family for result in results})

"""Checks of the machine and the stack before anything expensive starts.

Check    one row of catalogue.CHECKS: measure something, judge it
Outcome  what a judge says of one measurement
Result   an outcome as a record: which check, where, how long; every renderer starts from it
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import IO, Any, Literal, get_args

from trackbed.validate.redact import redact

SCHEMA_VERSION = 1
DOCS = "docs/checks.md"
Status = Literal["pass", "warn", "fail", "skip", "error"]
Source = Literal["real", "fixture"]
Level = Literal["image", "node", "job", "deep"]
Proof = Literal["real", "mixed", "fixture"]
LEVELS: tuple[Level, ...] = ("image", "node", "job", "deep")
GIB = 1024**3
MIB = 1024**2


@dataclass(frozen=True, kw_only=True)
class Context:
    """What a measurement may depend on: the folder for runs, the ranks a job here would start, the release."""

    output: Path
    ranks: int = 2
    release: str = ""
    level: Level = "node"
    expect: Mapping[str, Any] = field(default_factory=dict)
    """What this site should have, from an expectation file; empty without one."""
    baseline: Mapping[str, Any] = field(default_factory=dict)
    """What this site measured when it was good; empty without one."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A judge's word: what was seen, what is wanted, the proof, and how to mend it."""

    status: Status
    observed: str
    expected: str = ""
    evidence: str = ""
    remedy: str = ""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One check. `measure` may be slow or crash: it runs in a child that is killed after `deadline` seconds.

    Checks that name the same `child` share an interpreter: cheap ones one start, heavy ones one import of torch.
    """

    id: str
    title: str
    measure: Callable[[Context], Any]
    judge: Callable[[Any], Outcome]
    deadline: float
    child: str = ""
    levels: tuple[Level, ...] = ("node", "job", "deep")
    """When it runs: while an image is built, at a node's start, inside a job's allocation, on an idle machine."""
    proof: Proof = "real"
    """How its rule is proved where there is no GPU: really exercised, by recorded fixtures, or the absence only."""
    why: str = ""
    """What happens to a job without this check, with the message people see then; for the page of the docs."""
    rule: str = ""
    """When it warns and when it fails, in words; for the page of the docs."""

    @property
    def family(self) -> str:
        return self.id.partition(".")[0]


@dataclass(frozen=True, kw_only=True)
class Result:
    """One check's record; `evidence` is for a bug report, `remedy` is the line a person can follow."""

    id: str
    family: str
    status: Status
    observed: str
    expected: str
    evidence: str
    remedy: str
    source: Source
    duration_ms: int
    host: str
    schema_version: int = SCHEMA_VERSION

    @property
    def docs(self) -> str:
        """Where the docs explain this check, in the repository."""
        return docs_link(self.id)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "docs": self.docs}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Result:
        """Read a record back; ValueError when it is not one this version can read."""
        names = {each.name for each in fields(cls)}
        # Follows from the id; records written before there were docs lack it.
        raw = {name: value for name, value in raw.items() if name != "docs"}
        if set(raw) != names:
            raise ValueError(f"not a result: fields {sorted(set(raw) ^ names)} are missing or unknown")
        if raw["schema_version"] != SCHEMA_VERSION or raw["status"] not in get_args(Status):
            raise ValueError(f"not a result: schema {raw['schema_version']}, status {raw['status']}")
        return cls(**raw)


def docs_link(id: str) -> str:
    """The page and the place in it that explain a check."""
    return f"{DOCS}#{id.replace('.', '-')}"


def result(check: Check, outcome: Outcome, *, host: str, duration_ms: int = 0, source: Source = "real") -> Result:
    """An outcome as a record. The one way out of a check: here secrets are taken out of every text."""
    texts: dict[str, Any] = {name: redact(plain(text)) for name, text in asdict(outcome).items() if name != "status"}
    return Result(
        id=check.id,
        family=check.family,
        source=source,
        duration_ms=duration_ms,
        host=host,
        status=outcome.status,
        **texts,
    )


def plain(text: str) -> str:
    """Text that can be written as UTF-8: a path may hold bytes that are none."""
    return text.encode("utf-8", "backslashreplace").decode()


def unreadable(what: str, value: object) -> Outcome:
    """The outcome when a value could not be measured or makes no sense: never a pass."""
    seen = "could not be read" if value is None else f"makes no sense: {value!r}"
    return Outcome(
        status="error",
        observed=f"{what} {seen}",
        remedy="report this with the output of `trackbed validate --json`",
    )


def skip(why: str, remedy: str = "") -> Outcome:
    """The outcome where there is nothing to check here; it always says why."""
    return Outcome(status="skip", observed=why, remedy=remedy)


def text_of(path: Path) -> str:
    """A file of the kernel's as text; empty where it cannot be read."""
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


def tail(file: IO[bytes], size: int = 4000) -> str:
    """The last `size` bytes of an open file as text."""
    end = os.fstat(file.fileno()).st_size
    return os.pread(file.fileno(), size, max(0, end - size)).decode("utf-8", "replace")


def number(value: object) -> float | None:
    """The value as a number of zero or more; None for what is missing or garbage."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if value >= 0 else None


def amount(count: float) -> str:
    """Bytes for people: 64 MiB, 1.5 GiB, unlimited."""
    if count == float("inf"):
        return "unlimited"
    value, unit = (count / GIB, "GiB") if count >= GIB else (count / MIB, "MiB")
    wide = value >= 100  # mutation: equivalent, because at 100 both write three digits
    return f"{value:.0f} {unit}" if wide else f"{value:.3g} {unit}"

"""A release: a named set of pins, read from one TOML file beside this one.

release = load()              # the newest
release.components["torch"].version

This room also runs on Python 3.10, the interpreter of NVIDIA's images of 2023.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, Literal

from trackbed.errors import Problem, ReleaseError
from trackbed.release.versions import RULES, cut, matches, plain

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROBE = re.compile(
    r"python|os-release|driver|import:[\w.]+|metadata:[\w.-]+|declared:\w+|command:\S.*|call:[\w.]+:\w+|library:[^:]+:\w+"
)
PROBE_WORDS = "python, os-release, driver, import:MODULE, metadata:NAME, command:PROGRAM ARG, call:MODULE:NAME, "
PROBE_WORDS += "library:FILE:FUNCTION or declared:VARIABLE"
FOLDER = Path(__file__).parent
Variant = Literal["cpu", "gpu"]
CHOICES = {
    "rule": RULES,
    "variants": ("cpu", "gpu"),
    "group": ("runtime", "vendor", "dev", "boot", "build", "model", "data"),
    "status": ("verified-cpu", "import-only", "needs-gpu", "vendor-index"),
    "confidence": ("chosen", "given", "confirmed", "inferred", "captured"),
}


# A field's annotation, what TOML gives for it, and what to call that.
TYPES = {
    "str": (str, "text in quotes"),
    "int": (int, "a whole number"),
    "bool": (bool, "true or false"),
    "tuple[str, ...]": (list, "a list of texts"),
}


@dataclass(frozen=True, kw_only=True)
class Component:
    """One pinned part of the stack. docs/releases.md explains the fields."""

    name: str
    title: str
    version: str
    rule: str
    probe: str
    reads: int = 0
    env: str = ""
    label: str = ""
    declared: str = ""
    package: str = ""
    cpu_build: str = ""
    apt: str = ""
    apt_build: str = ""
    build_env: tuple[str, ...] = ()
    archive: str = ""
    digest: str = ""
    provides: tuple[str, ...] = ()
    library_wheel: str = ""
    library_python: str = ""
    group: str = "runtime"
    variants: tuple[str, ...] = ("cpu", "gpu")
    image_only: bool = False
    hold: bool = False
    status: str = "verified-cpu"
    confidence: str = "chosen"
    substitute: str = ""
    why: str = ""

    @property
    def installed(self) -> str:
        """The version that the open build installs: the substitute where the release's own is not public."""
        return self.substitute or self.version

    @property
    def source(self) -> str:
        """Where it comes from: a wheel, a Debian package, NVIDIA's archive, or what the image stands on."""
        if self.package:
            return f"wheel {self.package}"
        if self.apt:
            return f"Debian package {self.apt}"
        return f"archive {self.archive.rpartition('/')[2]}" if self.archive else "the base"

    def requirement(self, variant: str) -> str:
        """The line that installs it, such as `torch==2.13.0+cpu`."""
        return f"{self.package}=={self.installed}{self.cpu_build if variant == 'cpu' else ''}"

    def accepts(self, found: str) -> bool:
        """Whether a version that a probe found satisfies this pin, as far as the probe can see (`reads`)."""
        return matches(self.rule, cut(self.version, self.reads), cut(found, self.reads))

    def accepts_substitute(self, found: str) -> bool:
        """Whether it is what the open build installs in its place."""
        return bool(self.substitute) and matches("prefix", cut(self.substitute, self.reads), cut(found, self.reads))

    def accepts_declared(self, said: str) -> bool:
        """Whether a declaration agrees: with the pin, its substitute, or a difference that the release knows of."""
        known = bool(self.declared) and said == self.declared
        return (
            known
            or any(matches(self.rule, self.version, text) for text in (said, plain(said)))
            or (self.accepts_substitute(said))
        )

    def other_build(self, found: str, variant: str) -> bool:
        """Whether it is the other variant's build: with CUDA where the CPU's is pinned, or the CPU's on a GPU."""
        if not self.cpu_build or "+" not in found:
            return False
        return found.endswith(self.cpu_build) != (variant == "cpu")


@dataclass(frozen=True, kw_only=True)
class Lock:
    """How a release's dependencies are locked: nothing newer than `before`, but for `later`; `caps` bound the rest."""

    before: date | None = None
    later: dict[str, date] = field(default_factory=dict)
    caps: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Release:
    """A named set of pins and the base image they are built on."""

    name: str
    summary: str
    base_image: str
    components: dict[str, Component]
    lock: Lock = Lock()
    no_jobs: str = ""
    """Why the job templates do not run in it; empty where they do."""

    def select(self, *, group: str, variant: str | None = None) -> list[Component]:
        """Components of one group that a variant installs from a package."""
        chosen = (c for c in self.components.values() if c.group == group and c.package)
        return [c for c in chosen if variant is None or variant in c.variants]

    def declared(self, *, group: str, variants: tuple[str, ...]) -> list[Component]:
        """Components of one group, for exactly these variants, that the image declares in a variable."""
        return [c for c in self.components.values() if c.env and c.group == group and c.variants == variants]


def names() -> list[str]:
    """Every release that exists, oldest first."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def requirements() -> Path:
    """Where the locked files are: $TRACKBED_REQUIREMENTS, else those of this checkout."""
    return Path(os.environ.get("TRACKBED_REQUIREMENTS") or Path(__file__).parents[3] / "requirements")


def load(name: str | None = None) -> Release:
    """Read a release by name, or from a file such as `capture` writes; the newest when neither is given."""
    name = name or names()[-1]
    path = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        what = f"{name} cannot be read: {error}" if path.exists() else f"there is no release {name}"
        wanted = f"one of {', '.join(names())}, or a .toml file that can be read"
        raise ReleaseError(Problem(id="release.unknown", what=what, wanted=wanted)) from error
    return parse(text, where=path.name)


def parse(text: str, where: str = "release") -> Release:
    """Build a Release from TOML text; every mistake in it is reported at once."""
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ReleaseError(Problem(id="release.syntax", where=where, what=str(error))) from error
    problems = [*_bad_head(raw, where), *_bad_lock(raw.get("lock", {}), where)]
    problems += _bad_components(raw.get("components", {}), where)
    if problems:
        raise ReleaseError(problems)
    components = {name: Component(name=name, **_tuples(table)) for name, table in raw["components"].items()}
    lock = Lock(**_tuples(raw.get("lock", {})))
    head = {key: raw[key] for key in ("name", "summary", "base_image")}
    return Release(**head, components=components, lock=lock, no_jobs=raw.get("no_jobs", ""))


def _tuples(table: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}


def _bad_head(raw: dict[str, Any], where: str) -> Iterable[Problem]:
    texts = ("name", "summary", "base_image")
    for key in (*texts, "components"):
        if key not in raw:
            yield Problem(id="release.incomplete", where=where, what=f"`{key}` is missing")
    if raw.get("components") == {}:
        yield Problem(id="release.incomplete", where=where, what="it has no components")
    for key in sorted(set(raw) - {*texts, "components", "lock", "no_jobs"}):
        yield Problem(id="release.unknown-key", where=where, what=f"unknown key `{key}`")
    for key in (*texts, "no_jobs"):
        yield from _bad_type(key, raw.get(key, ""), "str", where)


def _bad_lock(lock: Any, where: str) -> Iterable[Problem]:
    place = f"{where}: [lock]"
    if not isinstance(lock, dict):
        yield Problem(id="release.type", where=place, what="is not a table")
        return
    for key in sorted(set(lock) - set(Lock.__dataclass_fields__)):
        yield Problem(id="release.unknown-key", where=place, what=f"unknown key `{key}`")
    later = lock.get("later", {})
    days = list(later.values()) if isinstance(later, dict) else [later]
    for day in [*days, lock.get("before", date.min)]:
        if type(day) is not date:
            yield Problem(id="release.type", where=place, what=f"{day!r} is no day", wanted="a day without quotes")
    yield from _bad_type("caps", lock.get("caps", []), "tuple[str, ...]", place)


def _bad_components(tables: Any, where: str) -> Iterable[Problem]:
    for name, table in tables.items() if isinstance(tables, dict) else [("", None)]:
        place = f"{where}: [components.{name}]" if name else f"{where}: [components]"
        if isinstance(table, dict):
            yield from _bad_keys(table, place)
            yield from _bad_values(table, place)
        else:
            yield Problem(id="release.type", where=place, what="is not a table")


def _bad_keys(table: dict[str, Any], place: str) -> Iterable[Problem]:
    allowed = set(Component.__dataclass_fields__) - {"name"}
    for key in sorted(set(table) - allowed):
        yield Problem(id="release.unknown-key", where=place, what=f"unknown key `{key}`")
    for key in sorted({"title", "version", "rule", "probe"} - set(table)):
        yield Problem(id="release.incomplete", where=place, what=f"`{key}` is missing")
    if table.get("substitute") and not table.get("why"):
        yield Problem(id="release.why", where=place, what="a substitute without `why`")


def _bad_values(table: dict[str, Any], place: str) -> Iterable[Problem]:
    for key in sorted(set(table) & set(CHOICES)):
        values = table[key] if isinstance(table[key], list) else [table[key]]
        if not values or any(value not in CHOICES[key] for value in values):
            wanted = ", ".join(CHOICES[key])
            yield Problem(id=f"release.{key}", where=place, what=f"{key} is `{table[key]}`", wanted=wanted)
    if isinstance(table.get("probe"), str) and not PROBE.fullmatch(table["probe"]):
        yield Problem(id="release.probe", where=place, what=f"probe is `{table['probe']}`", wanted=PROBE_WORDS)
    for key, known in Component.__dataclass_fields__.items():
        if key in table and key not in CHOICES:
            yield from _bad_type(key, table[key], str(known.type), place)


def _bad_type(key: str, value: Any, kind: str, place: str) -> Iterable[Problem]:
    """An unquoted `version = 2.3` is a number in TOML, and 2.30 would be the same one."""
    wanted, words = TYPES[kind]
    texts = all(isinstance(item, str) for item in value) if isinstance(value, list) else True
    if not (isinstance(value, wanted) and texts):
        yield Problem(id="release.type", where=place, what=f"{key} is {value!r}", wanted=words)

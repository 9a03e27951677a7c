"""A release: a named set of pins, read from one TOML file beside this one.

release = load()              # the newest
release.components["torch"].version
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from trackbed.errors import Problem, ReleaseError

FOLDER = Path(__file__).parent
Rule = Literal["exact", "prefix", "at-least"]
Variant = Literal["cpu", "gpu"]


@dataclass(frozen=True, kw_only=True)
class Component:
    """One pinned part of the stack. The fields are explained at the top of the release file."""

    name: str
    title: str
    version: str
    rule: Rule
    probe: str
    env: str = ""
    package: str = ""
    group: str = "runtime"
    variants: tuple[str, ...] = ("cpu", "gpu")
    image_only: bool = False
    cpu: str = ""
    gpu: str = ""

    def requirement(self, variant: str) -> str:
        """The line that installs it, such as `torch==2.13.0+cpu`."""
        return (self.cpu if variant == "cpu" else self.gpu) or f"{self.package}=={self.version}"

    def accepts(self, found: str) -> bool:
        """Whether a found version satisfies this pin's rule."""
        if self.rule == "exact":
            return found == self.version
        if self.rule == "prefix":
            return found == self.version or found.startswith((self.version + ".", self.version + "+"))
        return _numbers(found) >= _numbers(self.version)


@dataclass(frozen=True, kw_only=True)
class Release:
    """A named set of pins and the base image they are built on."""

    name: str
    summary: str
    base_image: str
    components: dict[str, Component]

    def select(self, *, group: str, variant: str | None = None) -> list[Component]:
        """Components of one group that a variant installs from a package."""
        chosen = (c for c in self.components.values() if c.group == group and c.package)
        return [c for c in chosen if variant is None or variant in c.variants]


def names() -> list[str]:
    """Every release that exists, oldest first."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load(name: str | None = None) -> Release:
    """Read a release; the newest when no name is given."""
    name = name or names()[-1]
    path = FOLDER / f"{name}.toml"
    if not path.exists():
        raise ReleaseError(
            Problem(id="release.unknown", what=f"there is no release {name}", wanted=f"one of {', '.join(names())}")
        )
    return parse(path.read_text("utf-8"), where=path.name)


def parse(text: str, where: str = "release") -> Release:
    """Build a Release from TOML text; every mistake in it is reported at once."""
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ReleaseError(Problem(id="release.syntax", where=where, what=str(error))) from error
    problems = [*_missing(raw, where), *_bad_components(raw.get("components", {}), where)]
    if problems:
        raise ReleaseError(problems)
    components = {name: _component(name, table) for name, table in raw["components"].items()}
    return Release(name=raw["name"], summary=raw["summary"], base_image=raw["base_image"], components=components)


def _component(name: str, table: dict[str, Any]) -> Component:
    return Component(name=name, **{**table, "variants": tuple(table.get("variants", ("cpu", "gpu")))})


def _missing(raw: dict[str, Any], where: str) -> Iterable[Problem]:
    for key in ("name", "summary", "base_image", "components"):
        if key not in raw:
            yield Problem(id="release.incomplete", where=where, what=f"`{key}` is missing")


def _bad_components(tables: dict[str, Any], where: str) -> Iterable[Problem]:
    allowed = set(Component.__dataclass_fields__) - {"name"}
    required = {"title", "version", "rule", "probe"}
    for name, table in tables.items():
        place = f"{where}: [components.{name}]"
        for key in sorted(set(table) - allowed):
            yield Problem(id="release.unknown-key", where=place, what=f"unknown key `{key}`")
        for key in sorted(required - set(table)):
            yield Problem(id="release.incomplete", where=place, what=f"`{key}` is missing")
        if table.get("rule") not in (None, "exact", "prefix", "at-least"):
            yield Problem(
                id="release.rule", where=place, what=f"rule is `{table['rule']}`", wanted="exact, prefix or at-least"
            )


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version.split("+")[0])]

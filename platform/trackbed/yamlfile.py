"""YAML read strictly, with the place of every key: what is said twice is an error, and a mistake has a line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from trackbed.errors import JobError, Problem

Key = tuple[str | int, ...]


class Loader(yaml.SafeLoader):
    """YAML, with 2e-4 read as the number that everyone means by it."""


Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def read(path: Path) -> tuple[Any, dict[Key, str]]:
    """The values of a YAML file, and the place (file:line) of each key."""
    try:
        node = yaml.compose(path.read_text("utf-8"), Loader)
    except OSError as error:
        raise JobError(problem("job.missing", str(path), f"the job cannot be read: {error.strerror}")) from error
    except UnicodeDecodeError as error:
        raise JobError(problem("job.not-utf8", str(path), "the job is not UTF-8 text")) from error
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise JobError(problem("job.syntax", f"{path}:{line}", f"not YAML: {error.problem}")) from error
    except yaml.YAMLError as error:
        raise JobError(problem("job.syntax", str(path), f"not YAML: {error}")) from error
    if not isinstance(node, yaml.MappingNode):
        raise JobError(
            problem("job.syntax", f"{path}:1", "the job is not a mapping", wanted="name:, model:, data: ...")
        )
    lines: dict[Key, str] = {(): f"{path}:1"}
    duplicates = list(_places(node, (), path, lines))
    if duplicates:
        raise JobError(duplicates)
    try:
        return Loader("").construct_document(node), lines
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise JobError(problem("job.syntax", f"{path}:{line}", f"not a plain value: {error.problem}")) from error
    except ValueError as error:
        raise JobError(problem("job.syntax", str(path), f"not a plain value: {error}")) from error


def _places(node: yaml.Node, key: Key, path: Path, lines: dict[Key, str]) -> Iterator[Problem]:
    """Note where every key stands; yield a problem for one that stands twice."""
    if not isinstance(node, yaml.MappingNode):
        return
    for name_node, value in node.value:
        here = (*key, str(name_node.value))
        place = f"{path}:{name_node.start_mark.line + 1}"
        if here in lines:
            yield problem("job.duplicate-key", place, f"`{dotted(here)}` stands twice, first at {lines[here]}")
        lines[here] = place
        yield from _places(value, here, path, lines)


def apply(tree: dict[str, Any], lines: dict[Key, str], overrides: tuple[str, ...]) -> Iterator[Problem]:
    """Lay `a.b=c` over the values; yields what is wrong with an override."""
    for override in overrides:
        name, equals, text = override.partition("=")
        key = tuple(name.split("."))
        try:
            value = yaml.load(text, Loader)
        except (yaml.YAMLError, ValueError):
            value = text
        if not equals or not all(key):
            yield problem("job.override", f"--set {override}", "not an override", wanted="--set section.key=value")
            continue
        section = tree
        for part in key[:-1]:
            inner = section.setdefault(part, {})
            if not isinstance(inner, dict):
                yield problem("job.override", f"--set {override}", f"`{part}` is not a section")
                break
            section = inner
        else:
            section[key[-1]] = value
            lines[key] = f"--set {override}"


def dotted(key: Key) -> str:
    return ".".join(map(str, key))


def problem(id: str, where: str, what: str, *, wanted: str = "", remedy: str = "") -> Problem:
    return Problem(id=id, where=where, what=what, wanted=wanted, remedy=remedy)

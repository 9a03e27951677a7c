"""Recorded-style output for the hardware checks: texts below tests/fixtures, trees, and small changes to them."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

FIXTURES = Path(__file__).parent / "fixtures"


def fixture(name: str) -> str:
    """A file below tests/fixtures."""
    return (FIXTURES / name).read_text("utf-8")


def tree(name: str, root: Path) -> Path:
    """Write a .tree fixture below a folder: one file after each `== path` line."""
    for part in fixture(name).split("== ")[1:]:
        path, _, content = part.partition("\n")
        write(root / path.strip(), content)
    return root


def write(path: Path, content: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, "utf-8")
    return path


def snapshot(**changes: Any) -> dict[str, Any]:
    """The snapshot of two H100; fields given as keywords replace those of the second GPU."""
    value: dict[str, Any] = json.loads(fixture("gpu/snapshot.json"))
    value["gpus"][1].update(copy.deepcopy(changes))
    return {**value, "expect": {}, "ranks": 2}


def with_field(field: str, **changes: Any) -> dict[str, Any]:
    """The snapshot with some keys of one field of the second GPU changed."""
    value = snapshot()
    value["gpus"][1][field].update(changes)
    return value


def everywhere(field: str, value: Any) -> dict[str, Any]:
    """The snapshot with one field the same on both GPUs."""
    made = snapshot()
    for gpu in made["gpus"]:
        gpu[field] = copy.deepcopy(value)
    return made

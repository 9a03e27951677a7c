"""Three-way drift: what the release says, what the image declares, what is really loaded."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Literal

from trackbed.release import Component, Release, Variant
from trackbed.release.probe import Found, load, read

# Only the image built from this repository sets it: in someone else's image PYTORCH_VERSION means something else.
MARK = "TRACKBED_RELEASE"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One component held against the release. `declared` is empty outside the image."""

    component: str
    wanted: str
    declared: str
    loaded: str
    status: Literal["ok", "drift", "missing"]
    note: str = ""
    requirement: str = ""


def variant() -> Variant:
    """Which variant is installed here: gpu when the CUDA build's cuDNN is."""
    try:
        metadata.version("nvidia-cudnn-cu13")
    except metadata.PackageNotFoundError:
        return "cpu"
    return "gpu"


def components(release: Release) -> list[Component]:
    """What must hold on this machine: the runtime parts of its variant, the image's own only inside the image."""
    inside, here = MARK in os.environ, variant()
    return [
        part
        for part in release.components.values()
        if part.group == "runtime" and here in part.variants and (inside or not part.image_only)
    ]


def modules(release: Release) -> list[str]:
    """The modules whose import gives a version, in the release's order."""
    probes = (part.probe.partition(":") for part in components(release))
    return [target for kind, _, target in probes if kind == "import"]


def compare(release: Release, loaded: Mapping[str, Found] | None = None) -> list[Row]:
    """One row a component. `loaded` is `probe.load(modules(release))` when the caller has it already."""
    imported = load(modules(release)) if loaded is None else loaded
    declared = os.environ if MARK in os.environ else None
    return [row(part, read(part, imported), declared) for part in components(release)]


def row(part: Component, found: Found, declared: Mapping[str, str] | None) -> Row:
    """Judge one component; `declared` is the image's environment, None outside the image."""
    said = declared.get(part.env, "") if declared is not None and part.env else ""
    status, note = _judge(part, found, said, silent=declared is not None and bool(part.env) and not said)
    needs = part.requirement(variant()) if part.package else ""
    return Row(
        component=part.name,
        wanted=part.version,
        declared=said,
        loaded=found.version,
        status=status,
        note=note,
        requirement=needs,
    )


def _judge(part: Component, found: Found, said: str, *, silent: bool) -> tuple[Literal["ok", "drift", "missing"], str]:
    if found.error or not found.version:
        return "missing", found.error or "it has no version"
    if not part.accepts(found.version):
        return "drift", f"{found.version} is loaded, the release wants {_rule(part)}"
    if silent:
        return "drift", f"the image does not declare {part.env}"
    if said and not part.accepts(said):
        return "drift", f"the image declares {part.env}={said}, the release wants {_rule(part)}"
    return "ok", ""


def _rule(part: Component) -> str:
    words = {"exact": "{}", "prefix": "{}.*", "at-least": "{} or newer"}
    return words[part.rule].format(part.version)

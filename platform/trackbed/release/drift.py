"""Three-way drift: what the release says, what the image declares, what is really loaded."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Literal

from trackbed.release import Component, Release, Variant
from trackbed.release.probe import Found, child_target, load, read
from trackbed.release.versions import agree

# Only the image built from this repository sets it: in someone else's image PYTORCH_VERSION means something else.
MARK = "TRACKBED_RELEASE"
NGC_MARK = "NVIDIA_PYTORCH_VERSION"
# What a probe says of a part that is not there, as against one that is there and broken.
NOT_THERE = re.compile(
    r"cannot open shared object file|is not installed|there is no program|No module named|is not set"
)
Status = Literal["ok", "substitute", "absent", "drift", "missing"]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One component held against the release. `declared` is empty outside the image.

    `substitute` is what the open build installs in place of a part that is not public, `absent` what it leaves out:
    neither is drift, both are said. `drift` and `missing` are what has to be mended.
    """

    component: str
    wanted: str
    declared: str
    loaded: str
    status: Status
    note: str = ""
    requirement: str = ""
    of_host: bool = False

    @property
    def bad(self) -> bool:
        return self.status in ("drift", "missing")

    @property
    def remedy(self) -> str:
        """What puts it right here; empty where nothing has to be."""
        if not self.bad:
            return ""
        if self.of_host:
            return f"ask for driver {self.wanted} or newer on this host: no image can bring it"
        inside = declarations() is not None
        if other := re.search(r"No module named '([\w.]+)'", self.note):
            return f"mend {other[1]} first: this part itself may be right"
        if "+" in self.requirement:
            return "start a fresh container" if inside else "make setup"
        if self.requirement and not self.note.startswith("the image "):
            return f"pip install '{self.requirement}', {'or start a fresh container' if inside else 'or make setup'}"
        if inside:
            return "start a fresh container with no version set by -e; if it stays, build the image again (make image)"
        return "make setup, or work in the image (make image)"


def current() -> str | None:
    """The release that this image declares, ours or NVIDIA's; None outside of both: the newest is meant."""
    return os.environ.get(MARK) or os.environ.get(NGC_MARK) or None


def variant() -> Variant:
    """Which variant this is: what the image declares, else gpu when the CUDA build's cuDNN is installed."""
    if declared := os.environ.get("TRACKBED_VARIANT"):
        return "gpu" if declared == "gpu" else "cpu"
    if NGC_MARK in os.environ:
        return "gpu"
    installed = {name.lower() for each in metadata.distributions() if (name := each.metadata["Name"])}
    return "gpu" if installed & {"nvidia-cudnn-cu12", "nvidia-cudnn-cu13"} else "cpu"


def declarations() -> Mapping[str, str] | None:
    """The environment where an image wrote its versions into it; None elsewhere."""
    return os.environ if MARK in os.environ or NGC_MARK in os.environ else None


def components(release: Release) -> list[Component]:
    """What must hold on this machine: the parts of its variant, the image's own only inside the image."""
    inside, here = declarations() is not None, variant()
    return [
        part
        for part in release.components.values()
        if part.group in ("runtime", "vendor") and here in part.variants and (inside or not part.image_only)
    ]


def targets(release: Release) -> list[str]:
    """What a child interpreter reads, in the release's order: modules first of all."""
    found = [child_target(part.probe) for part in components(release)]
    return sorted(filter(None, found), key=lambda target: ":" in target)


def compare(release: Release, loaded: Mapping[str, Found] | None = None) -> list[Row]:
    """One row a component. `loaded` is `probe.load(targets(release))` when the caller has it already."""
    in_child = load(targets(release)) if loaded is None else loaded
    return [row(part, read(part, in_child), declarations()) for part in components(release)]


def row(part: Component, found: Found, declared: Mapping[str, str] | None) -> Row:
    """Judge one component; `declared` is the image's environment, None outside the image."""
    said = declared.get(part.env, "") if declared is not None and part.env else ""
    silent = declared is not None and MARK in declared and bool(part.env) and not said
    status, note = _judge(part, found, said, silent=silent)
    return Row(
        component=part.name,
        wanted=part.version,
        declared=said,
        loaded=found.version,
        status=status,
        note=note,
        requirement=part.requirement(variant()) if part.package else "",
        of_host=part.probe == "driver",
    )


def _judge(part: Component, found: Found, said: str, *, silent: bool) -> tuple[Status, str]:
    if found.error or not found.version:
        return _not_found(part, found, said)
    if not (part.accepts(found.version) or part.accepts_substitute(found.version)):
        return "drift", f"{found.version} is loaded, the release wants {wish(part)}"
    if part.other_build(found.version, variant()):
        return "drift", f"{found.version} is loaded, which is not the build for {variant()}"
    if silent:
        return "drift", f"the image does not declare {part.env}"
    if said and not part.accepts_declared(said):
        return "drift", f"the image declares {part.env}={said}, the release wants {wish(part)}"
    if said and said != part.declared and not agree(part.rule, said, found.version, part.reads):
        return "drift", f"{found.version} is loaded, the image declares {part.env}={said}"
    if not part.accepts(found.version):
        return "substitute", f"{found.version} stands in for {part.version}: {part.why}"
    return "ok", part.why if part.status == "import-only" else ""


def _not_found(part: Component, found: Found, said: str) -> tuple[Status, str]:
    """A part that needs NVIDIA's archive or driver may be left out, as long as nothing says that it is there."""
    if part.probe == "driver" and "no NVIDIA driver" in found.error:
        return "absent", found.error
    if part.group == "vendor" and not said and NOT_THERE.search(found.error):
        return "absent", part.why or "not in the open build; add it with --build-arg VENDOR=nvidia"
    return "missing", found.error or "it has no version"


def wish(part: Component) -> str:
    """A pin and its rule in words: `2.13.0.*`, `4.1.4 or newer`."""
    words = {"exact": "{}", "prefix": "{}.*", "at-least": "{} or newer"}
    return words[part.rule].format(part.version)

"""Write everything that names a version from the release, so that a version has one home.

`render(root)` returns the files that would change; `write` writes them. A rendered block stands between two marker
lines, `trackbed:begin NAME` and `trackbed:end NAME`, in whatever comment the file's language has.
"""

from __future__ import annotations

import re
from pathlib import Path

from trackbed.errors import Problem, ReleaseError
from trackbed.release import Release

GENERATED = "# Rendered from the release by `make render`; edit platform/trackbed/release/*.toml instead.\n"


def render(release: Release, root: Path) -> dict[Path, str]:
    """The files, with their whole new text, that differ from what the release says."""
    wanted = {root / "requirements" / name: text for name, text in _requirements(release).items()}
    for name, blocks in _blocks(release).items():
        text = (root / name).read_text("utf-8")
        for block, body in blocks.items():
            text = _replace(text, block, body, name)
        wanted[root / name] = text
    return {path: text for path, text in wanted.items() if not path.exists() or path.read_text("utf-8") != text}


def write(changes: dict[Path, str]) -> None:
    """Write rendered files; a no-op on none."""
    for path, text in changes.items():
        path.write_text(text, "utf-8")


def _requirements(release: Release) -> dict[str, str]:
    """One input file for each lock: the top-level pins only, uv works out the rest."""
    files = {f"{variant}.in": release.select(group="runtime", variant=variant) for variant in ("cpu", "gpu")}
    lines = {
        name: [component.requirement(name.removesuffix(".in")) for component in components]
        for name, components in files.items()
    }
    setuptools = release.components["setuptools"].requirement("cpu")
    for group in ("dev", "boot", "build", "model"):
        lines[f"{group}.in"] = [component.requirement("cpu") for component in release.select(group=group)]
    lines["build.in"].append(setuptools)
    return {name: GENERATED + "".join(f"{line}\n" for line in pins) for name, pins in lines.items()}


def _blocks(release: Release) -> dict[str, dict[str, str]]:
    declared = [component for component in release.components.values() if component.env and "cpu" in component.variants]
    args = f"ARG RELEASE={release.name}\nARG BASE_IMAGE={release.base_image}\n"
    environment = "".join(f"    {component.env}={component.version} \\\n" for component in declared)
    labels = "".join(
        f'      org.trackbed.{component.name}.version="{component.version}" \\\n' for component in declared
    )
    declare = f"ENV \\\n{environment}    TRACKBED_RELEASE={release.name}\nLABEL \\\n{labels}" + (
        f'      org.opencontainers.image.version="{release.name}"\n'
    )
    image = f"x-image: &image ${{TRACKBED_IMAGE:-trackbed:{release.name}-cpu}}\n"
    return {
        "Dockerfile": {"arguments": args, "declared": declare},
        "compose.yaml": {"image": image},
        "README.md": {"release": _table(release)},
    }


def _table(release: Release) -> str:
    rows = [
        f"| {component.title} | {component.version} | {component.rule} |"
        for component in release.components.values()
        if component.env
    ]
    head = f"Release **{release.name}**: {release.summary}.\n\n| Component | Version | Rule |\n|---|---|---|\n"
    return head + "\n".join(rows) + "\n"


def _replace(text: str, block: str, body: str, where: str) -> str:
    begin, end = rf"^[^\n]*trackbed:begin {block}\b[^\n]*\n", rf"^[^\n]*trackbed:end {block}\b"
    pattern = re.compile(f"({begin})(.*?)({end})", re.MULTILINE | re.DOTALL)
    if not pattern.search(text):
        raise ReleaseError(
            Problem(id="release.marker", where=where, what=f"the lines `trackbed:begin/end {block}` are missing")
        )
    return pattern.sub(lambda match: match[1] + body + match[3], text, count=1)

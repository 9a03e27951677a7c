"""Write everything that names a version from the releases, so that a version has one home.

`render(root)` returns the files that would change; `write` writes them. A rendered block stands between two marker
lines, `trackbed:begin NAME` and `trackbed:end NAME`, in whatever comment the file's language has.
"""

from __future__ import annotations

import re
from pathlib import Path

from trackbed.errors import Problem, ReleaseError
from trackbed.release import Component, Release, load, names

GENERATED = "# Rendered from the release by `make render`; edit platform/trackbed/release/*.toml instead.\n"
BOTH = ("cpu", "gpu")


def render(root: Path, releases: list[Release] | None = None) -> dict[Path, str]:
    """The files, with their whole new text, that differ from what the releases say; the last one is the default."""
    releases = releases or [load(name) for name in names()]
    wanted = {root / "requirements" / name: text for name, text in _requirements(releases).items()}
    for name, blocks in _blocks(releases).items():
        text = _read(root / name)
        for block, body in blocks.items():
            text = _replace(text, block, body, name)
        wanted[root / name] = text
    return {path: text for path, text in wanted.items() if not path.exists() or path.read_text("utf-8") != text}


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError as error:
        remedy = "run it where the Dockerfile is, at the top of the repository"
        raise ReleaseError(Problem(id="release.no-file", where=str(path), what=str(error), remedy=remedy)) from error


def write(changes: dict[Path, str]) -> None:
    """Write rendered files; a no-op on none."""
    for path, text in changes.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")


def _requirements(releases: list[Release]) -> dict[str, str]:
    """One input file for each lock: the top-level pins only, uv works out the rest. Tools are the default release's."""
    lines = {f"{release.name}/{name}": pins for release in releases for name, pins in _inputs(release).items()}
    for group in ("dev", "boot", "model", "data"):
        lines[f"{group}.in"] = [part.requirement("cpu") for part in releases[-1].select(group=group)]
    return {name: GENERATED + "".join(f"{line}\n" for line in pins) for name, pins in lines.items()}


def _inputs(release: Release) -> dict[str, list[str]]:
    files = {
        f"{variant}.in": [part.requirement(variant) for part in release.select(group="runtime", variant=variant)]
        for variant in BOTH
    }
    for name in ("python", "setuptools"):
        if name not in release.components:
            what = f"a release needs [components.{name}]"
            raise ReleaseError(Problem(id="release.incomplete", where=f"{release.name}.toml", what=what))
    build = [*release.select(group="build"), release.components["setuptools"]]
    files["build.in"] = [part.requirement("cpu") for part in build]
    files["vendor.in"] = [part.requirement("gpu") for part in release.select(group="vendor")]
    libraries = [part for part in release.components.values() if part.library_wheel]
    files["library.in"] = [f"{part.library_wheel}=={part.substitute}" for part in libraries]
    files["library.env"] = [f"python={part.library_python}" for part in libraries]
    files["hold.txt"] = [part.package for part in release.components.values() if part.hold and part.package]
    files["python.txt"] = [release.components["python"].installed]
    files["build.env"] = [line for part in release.components.values() for line in part.build_env]
    debian = [part for part in release.components.values() if part.apt]
    files["apt.txt"] = [f"{part.apt}={part.version}*" for part in debian]
    files["apt-build.txt"] = [f"{part.apt_build}={part.version}*" for part in debian if part.apt_build]
    return files


def _blocks(releases: list[Release]) -> dict[str, dict[str, str]]:
    default = releases[-1]
    args = f"ARG RELEASE={default.name}\nARG BASE_IMAGE={default.base_image}\n"
    release = f"${{RELEASE:-{default.name}}}"
    return {
        "Dockerfile": {
            "arguments": args,
            "declared": "".join(map(_declared, releases)),
            "declared-gpu": "".join(map(_declared_gpu, releases)),
        },
        "compose.yaml": {"image": f"x-release: &release {release}\n{_image(release, 'cpu')}"},
        "compose.gpu.yaml": {"image": _image(release, "gpu")},
        "README.md": {"release": _table(default)},
        "docs/releases.md": {"releases": _compared(releases)},
    }


def _image(release: str, variant: str) -> str:
    return f"x-image: &image ${{TRACKBED_IMAGE:-trackbed:{release}-{variant}}}\n"


def _declared(release: Release) -> str:
    parts = {part: part.installed for part in release.declared(group="runtime", variants=BOTH)}
    return _stage(f"FROM base AS declared-{release.name}", parts, {"TRACKBED_RELEASE": release.name})


def _declared_gpu(release: Release) -> str:
    """Without NVIDIA's archives the image declares what stands in for them, with them what they hold."""
    gpu = {part: part.installed for part in release.declared(group="runtime", variants=("gpu",))}
    vendor = release.declared(group="vendor", variants=("gpu",))
    none = gpu | {part: part.installed for part in vendor if part.library_wheel}
    # What has neither a wheel nor an archive is in NVIDIA's image only: declared here, it would be missing.
    nvidia = gpu | {part: part.version for part in vendor if part.archive or part.package}
    return _stage(f"FROM environment-gpu AS gpu-{release.name}-none", none) + _stage(
        f"FROM overlay AS gpu-{release.name}-nvidia", nvidia
    )


def _stage(head: str, parts: dict[Component, str], more: dict[str, str] | None = None) -> str:
    """One stage that declares versions; a base image that declares its own keeps them."""
    lines = [f"{name}={value}" for name, value in (more or {}).items()]
    lines += [f"{part.env}=${{{part.env}:-{version}}}" for part, version in parts.items()]
    return f"{head}\nENV " + " \\\n    ".join(lines) + f"\nLABEL {_labels(list(parts))}\n"


def _labels(parts: list[Component]) -> str:
    return " \\\n    ".join(f'{label(part)}="${{{part.env}}}"' for part in parts)


def label(part: Component) -> str:
    """The image label that declares a component; NVIDIA's own name for it where NVIDIA has one."""
    return part.label or f"org.trackbed.{part.name}.version"


def _table(release: Release) -> str:
    rows = [
        f"| {part.title} | {part.version} | {part.rule} | {_place(part)} |"
        for part in release.components.values()
        if part.env
    ]
    head = (
        f"Release **{release.name}**: {release.summary}.\n\n| Component | Version | Rule | Image |\n|---|---|---|---|\n"
    )
    return head + "\n".join(rows) + "\n"


def _place(part: Component) -> str:
    return "gpu, with `VENDOR=nvidia`" if part.group == "vendor" else ", ".join(part.variants)


def _compared(releases: list[Release]) -> str:
    """All releases side by side; what the open build installs instead stands in brackets."""
    titles: dict[str, str] = {}
    for release in releases:
        titles = {part.name: part.title for part in release.components.values() if part.env} | titles
    head = f"| Component | {' | '.join(release.name for release in releases)} |\n|---|{'---|' * len(releases)}\n"
    return head + "".join(
        f"| {title} | {' | '.join(_cell(release.components.get(name)) for release in releases)} |\n"
        for name, title in titles.items()
    )


def _cell(part: Component | None) -> str:
    if part is None:
        return ""
    version = f"{part.version} or newer" if part.rule == "at-least" else part.version
    rest = [f"installs {part.substitute}"] if part.substitute else []
    rest += [word for word in (part.status, part.confidence) if word not in ("verified-cpu", "given")]
    return f"{version} ({', '.join(rest)})" if rest else version


def _replace(text: str, block: str, body: str, where: str) -> str:
    begin, end = rf"^[^\n]*trackbed:begin {block}(?= |$)[^\n]*\n", rf"^[^\n]*trackbed:end {block}(?= |$)"
    pattern = re.compile(f"({begin})(.*?)({end})", re.MULTILINE | re.DOTALL)
    if not pattern.search(text):
        raise ReleaseError(
            Problem(id="release.marker", where=where, what=f"the lines `trackbed:begin/end {block}` are missing")
        )
    return pattern.sub(lambda match: match[1] + body + match[3], text, count=1)

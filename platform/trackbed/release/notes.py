"""The difference between two releases, as a person would write it in release notes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trackbed.release import Component, Release, requirements
from trackbed.release.lock import pins

FACTS = ("version", "rule", "substitute", "status", "confidence", "digest")


def notes(old: Release, new: Release) -> list[str]:
    """Lines of text: what changed, came and went among the components, then in the locked packages below them."""
    lines = [f"Release {new.name}, compared with {old.name}", f"  {new.summary}"]
    shared = [name for name in new.components if name in old.components]
    changed = [name for name in shared if _facts(old.components[name]) != _facts(new.components[name])]
    lines += _section("Changed", [_change(old.components[name], new.components[name]) for name in changed])
    lines += _section("New", [_line(part) for name, part in new.components.items() if name not in old.components])
    lines += _section("Gone", [_line(part) for name, part in old.components.items() if name not in new.components])
    lines += ["", f"{len(shared) - len(changed)} components are the same."]
    return [*lines, *_packages(old, new, set(_names(old)) | set(_names(new)))]


def _names(release: Release) -> list[str]:
    return [part.package.lower() for part in release.components.values() if part.package]


def _facts(part: Component) -> list[str]:
    return [str(getattr(part, fact)) for fact in FACTS]


def _change(old: Component, new: Component) -> str:
    if old.version != new.version:
        return f"{new.title:32} {old.version} -> {new.version}" + (
            f" (installs {new.substitute})" if new.substitute else ""
        )
    facts = [fact for fact in FACTS if getattr(old, fact) != getattr(new, fact)]
    said = "; ".join(f"{fact} {getattr(old, fact) or 'none'} -> {getattr(new, fact) or 'none'}" for fact in facts)
    return f"{new.title:32} {new.version}: {said}"


def _line(part: Component) -> str:
    return f"{part.title:32} {part.version}"


def _section(title: str, lines: list[str]) -> list[str]:
    return ["", title, *(f"  {line}" for line in lines)] if lines else []


def _packages(old: Release, new: Release, known: set[str]) -> Iterator[str]:
    """What else moves in the locked files; said for each variant."""
    for variant in ("cpu", "gpu"):
        before, after = (_locked(release, variant) for release in (old, new))
        if not (before and after):
            missing = [release.name for release, pins in ((old, before), (new, after)) if not pins]
            yield from ["", f"Locked packages ({variant}) are not compared: no lock of {' or '.join(missing)} is here"]
        else:
            moved = [_moved(name, before, after) for name in sorted({*before, *after} - known)]
            yield from _section(f"Locked packages below them ({variant})", [line for line in moved if line])


def _moved(name: str, before: dict[str, str], after: dict[str, str]) -> str:
    was, now = before.get(name), after.get(name)
    if was == now:
        return ""
    return f"{name:32} {was or 'none'} -> {now or 'none'}"


def _locked(release: Release, variant: str) -> dict[str, str]:
    path: Path = requirements() / release.name / f"{variant}.lock"
    return pins(path.read_text("utf-8")) if path.exists() else {}

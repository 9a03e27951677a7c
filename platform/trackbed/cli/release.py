"""`trackbed release`: the pins, what differs between two releases, and whether they are what is really here."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trackbed.errors import Problem, ReleaseError, TrackbedError

if TYPE_CHECKING:
    from trackbed.release import Release
    from trackbed.release.drift import Row

VARIANTS = click.Choice(["cpu", "gpu"])
ROOT = Path("requirements")


@click.group(name="release")
def release_group() -> None:
    """Releases: the pins of the stack."""


@release_group.command(name="list")
def release_list() -> None:
    """Name every release; the last one is the default."""
    from trackbed.release import load, names

    for name in names():
        click.echo(f"{name}  {load(name).summary}")


@release_group.command()
@click.argument("name", required=False)
def show(name: str | None) -> None:
    """Print a release's pins: version, rule, where it comes from, how far it is proved."""
    from trackbed.release import load

    release = load(name)
    click.echo(f"{release.name}: {release.summary}\nbase image {release.base_image}")
    for part in release.components.values():
        words = [f"installs {part.substitute}"] if part.substitute else []
        words += [f"{'/'.join(part.variants)}", part.source, part.status, part.confidence]
        click.echo(f"  {part.title:40} {part.version:18} {part.rule:9} {', '.join(words)}")
        if part.why:
            click.echo(f"      {part.why}")


@release_group.command()
@click.argument("old")
@click.argument("new")
def diff(old: str, new: str) -> None:
    """Say what changed from one release to another, as release notes do."""
    from trackbed.release import load
    from trackbed.release.notes import notes

    click.echo("\n".join(notes(load(old), load(new))))


@release_group.command()
@click.option("--release", "name", metavar="NAME|FILE", help="Hold it against this one; else what the image declares.")
@click.option("--image", help="Read what this image declares, without starting it.")
@click.option("--json", "as_json", is_flag=True, help="Print the rows as JSON.")
def check(name: str | None, image: str | None, as_json: bool) -> None:
    """Compare what the release says, what the image declares and what really loads. Exit 2 on drift."""
    release, rows = _check_image(image, name) if image else _check_here(name)
    if as_json:
        click.echo(json.dumps({"release": release.name, "components": [asdict(row) for row in rows]}, indent=2))
    else:
        _show_rows(release, rows)
    problems = [_problem(row, inside=not image) for row in rows if row.bad]
    if problems:
        raise ReleaseError(problems)


def _check_here(name: str | None) -> tuple[Release, list[Row]]:
    from trackbed.release import load
    from trackbed.release.drift import compare, current

    release = load(name or current())
    return release, compare(release)


def _check_image(image: str, name: str | None) -> tuple[Release, list[Row]]:
    from trackbed.release import load
    from trackbed.release.image import compare, inspect

    declared = inspect(image)
    if not (name or declared.release):
        what = "the image does not say which release it is"
        raise ReleaseError(
            Problem(id="release.unmarked", where=image, what=what, remedy="name one with --release NAME")
        )
    release = load(name or declared.release)
    return release, compare(release, declared)


def _show_rows(release: Release, rows: Sequence[Row]) -> None:
    click.echo(f"release {release.name}: {release.summary}")
    click.echo(f"{'':11}{'component':16}{'release':16}{'declared':16}{'loaded':20}")
    for row in rows:
        columns = f"{row.status:11}{row.component:16}{row.wanted:16}{row.declared or '-':16}{row.loaded or '-':20}"
        click.echo(f"{columns}{'' if row.bad else row.note}".rstrip())
    drifted = sum(row.bad for row in rows)
    click.echo(f"{len(rows)} components, {drifted or 'no'} drift")


def _problem(row: Row, *, inside: bool) -> Problem:
    remedy = row.remedy if inside else "make image; of an image that is not ours: `trackbed release capture` in it"
    return Problem(id=f"release.{row.status}", where=row.component, what=row.note, remedy=remedy)


@release_group.command()
@click.option("--name", help="The release's name; else what the image declares.")
@click.option("--like", metavar="NAME|FILE", help="The release that says which parts there are and how to read them.")
@click.option("--output", type=click.Path(path_type=Path), help="Write this file instead of the screen.")
def capture(name: str | None, like: str | None, output: Path | None) -> None:
    """Write a release file from what really loads here and what this image declares."""
    from trackbed.release import load
    from trackbed.release.capture import capture, template
    from trackbed.release.drift import NGC_MARK, variant

    if output and output.suffix != ".toml":
        what, wanted = "a release file ends in .toml, else it is taken for a name", f"{output}.toml"
        raise ReleaseError(Problem(id="release.output", where=str(output), what=what, wanted=wanted))
    if output and output.exists():
        remedy = "name another file, or remove this one"
        raise ReleaseError(
            Problem(id="release.exists", where=str(output), what="this file exists already", remedy=remedy)
        )
    base = load(like or template())
    text = capture(base, name or os.environ.get(NGC_MARK) or f"{base.name}-captured", variant())
    if output:
        _write(output, text)
    click.echo(f"wrote {output}" if output else text.rstrip())


def _write(output: Path, text: str) -> None:
    try:
        output.write_text(text, "utf-8")
    except OSError as error:
        remedy = "name a file in a folder that exists and can be written"
        raise ReleaseError(
            Problem(id="release.output", where=str(output), what=error.strerror or str(error), remedy=remedy)
        ) from error


@release_group.command()
@click.argument("name", required=False)
def args(name: str | None) -> None:
    """Print the build arguments of a release, for `docker build`."""
    from trackbed.release import load, names

    release = load(name)
    if release.name not in names():
        what = f"{release.name} is no release of this repository, and nothing else can be built"
        raise ReleaseError(
            Problem(id="release.foreign", where=name or "", what=what, wanted=f"one of {', '.join(names())}")
        )
    click.echo(f"--build-arg RELEASE={release.name} --build-arg BASE_IMAGE={release.base_image}")


@release_group.command()
@click.argument("name", required=False)
@click.option("--variant", type=VARIANTS, default="cpu", show_default=True)
@click.option("--vendor", is_flag=True, help="Of the image built with VENDOR=nvidia.")
def sbom(name: str | None, variant: str, vendor: bool) -> None:
    """Print a software bill of materials (CycloneDX 1.6, JSON)."""
    from trackbed.release import load, names

    try:
        from trackbed.release.sbom import sbom
    except ImportError as error:
        what = f"{error.name} is not part of this release"
        raise TrackbedError(
            Problem(id="release.no-sbom", what=what, remedy=f"ask where release {names()[-1]} is set up")
        ) from error
    click.echo(sbom(load(name), variant, vendor=vendor))


@release_group.command()
@click.option("--check", is_flag=True, help="Write nothing; exit 2 when a file differs from the releases.")
def render(check: bool) -> None:
    """Write everything that names a version from the releases."""
    from trackbed.release.render import render, write

    changes = render(Path.cwd())
    if check and changes:
        raise ReleaseError(
            [
                Problem(id="release.rendered", where=str(path), what="differs from the release", remedy="make render")
                for path in changes
            ]
        )
    write(changes)
    click.echo("\n".join(f"wrote {path}" for path in changes) or "every rendered file agrees with the release")


@release_group.command()
@click.argument("chosen", nargs=-1, metavar="[NAME]...")
def lock(chosen: tuple[str, ...]) -> None:
    """Work out the locked files of these releases, or of all."""
    from trackbed.release import load, names
    from trackbed.release.lock import lock

    for name in chosen or names():
        for path in lock(load(name), ROOT):
            click.echo(f"locked {path}")


def _kept(name: str) -> Release:
    """A release whose file may be changed: one of the repository's, in a checkout. Said before anything is fetched."""
    from trackbed.release import FOLDER, load, names

    release = load(name)
    if name not in names():
        wanted = f"one of {', '.join(names())}"
        raise ReleaseError(
            Problem(id="release.foreign", what=f"{name} is no release of this repository", wanted=wanted)
        )
    path = FOLDER / f"{name}.toml"
    if not os.access(path, os.W_OK):
        remedy = "run it in a checkout of the repository"
        raise ReleaseError(Problem(id="release.read-only", where=str(path), what="cannot be written", remedy=remedy))
    return release


@release_group.command()
@click.argument("name")
@click.option("--until", type=click.DateTime(["%Y-%m-%d"]), help="Nothing newer than this day; else the release's own.")
def upgrade(name: str, until: datetime | None) -> None:
    """Move a release's pins to the newest versions that fit together; only the release file changes."""
    from trackbed.release.lock import upgrade

    release = _kept(name)
    moved = upgrade(release, until.date() if until else None)
    click.echo("\n".join(f"{part:20} {old} -> {new}" for part, (old, new) in moved.items()) or "nothing is newer")
    by_hand = [part.name for part in release.components.values() if part.group == "vendor" or not part.package]
    click.echo(f"not looked at, for no package index has them: {', '.join(by_hand)}")


@release_group.command()
@click.argument("name")
def pin(name: str) -> None:
    """Fetch NVIDIA's archives that have no digest yet and write their digests into the release file."""
    from trackbed.release.vendor import pin

    pinned = pin(_kept(name), click.echo)
    click.echo(
        "\n".join(f"{part:20} sha256 {digest}" for part, digest in pinned.items()) or "every archive has a digest"
    )

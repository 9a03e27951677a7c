"""What an image declares, read from the outside: no container is started, nothing in it is trusted to run."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from trackbed.errors import Problem, ReleaseError
from trackbed.release import Component, Release
from trackbed.release.drift import MARK, NGC_MARK, Row, wish
from trackbed.release.render import label
from trackbed.release.versions import agree


@dataclass(frozen=True, kw_only=True)
class Declared:
    """An image's variables and labels."""

    name: str
    environment: Mapping[str, str]
    labels: Mapping[str, str]

    @property
    def release(self) -> str:
        """The release it says it is; empty when it says none."""
        return self.environment.get(MARK) or self.environment.get(NGC_MARK, "")

    @property
    def variant(self) -> str:
        return self.environment.get("TRACKBED_VARIANT") or "gpu"


def inspect(name: str) -> Declared:
    """Read an image that the engine has. Raises ReleaseError when there is no engine or no such image."""
    engine = shutil.which("docker") or shutil.which("podman")
    if not engine:
        what = "neither docker nor podman is on PATH"
        remedy = "install one, or run `trackbed release check` inside the image"
        raise ReleaseError(Problem(id="release.no-engine", where=name, what=what, remedy=remedy))
    done = subprocess.run([engine, "image", "inspect", "--", name], capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no reason given"]
        raise ReleaseError(Problem(id="release.no-image", where=name, what=lines[-1], remedy=f"docker pull {name}"))
    return parse(name, done.stdout)


def parse(name: str, text: str) -> Declared:
    """Read what `image inspect` printed. Raises ReleaseError when it is something else."""
    try:
        config = json.loads(text)[0]["Config"]
        environment = dict(line.partition("=")[::2] for line in config.get("Env") or [])
        labels = {key: str(value) for key, value in (config.get("Labels") or {}).items()}
        return Declared(name=name, environment=environment, labels=labels)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        what, remedy = "the engine's description of the image cannot be read", f"docker image inspect {name}"
        raise ReleaseError(Problem(id="release.bad-image", where=name, what=what, remedy=remedy)) from error


def compare(release: Release, image: Declared) -> list[Row]:
    """One row a component that the image's variant declares; nothing is loaded."""
    parts = [part for part in release.components.values() if part.env and image.variant in part.variants]
    rows = [_row(part, image) for part in parts]
    if not any(row.declared for row in rows):
        what = f"the image declares nothing that release {release.name} knows of"
        remedy = "it is no image of ours, and none of NVIDIA's: run `trackbed release capture` in it"
        raise ReleaseError(Problem(id="release.undeclared", where=image.name, what=what, remedy=remedy))
    return rows


def _row(part: Component, image: Declared) -> Row:
    said, labelled = image.environment.get(part.env, ""), image.labels.get(label(part), "")
    for how, text in ((part.env, said), (f"label {label(part)}", labelled)):
        if text and not part.accepts_declared(text):
            return _make(part, text, "drift", f"the image declares {how}={text}, the release wants {wish(part)}")
    if said and labelled and not agree("exact", said, labelled):
        return _make(part, said, "drift", f"the image's variable says {said}, its label {labelled}")
    if not said and not labelled:
        missing = part.group == "runtime" and MARK in image.environment
        return _make(part, "", "missing" if missing else "absent", "the image does not declare it")
    return _make(part, said or labelled, "ok" if part.accepts(said or labelled) else "substitute", part.why)


def _make(part: Component, said: str, status: str, note: str) -> Row:
    return Row(component=part.name, wanted=part.version, declared=said, loaded="", status=status, note=note)  # type: ignore[arg-type]

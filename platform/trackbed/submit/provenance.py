"""Where a run's result comes from: release, source revision, data, host. Written before the ranks start."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import trackbed
from trackbed import folders
from trackbed.errors import Problem, TrackbedError
from trackbed.job import Job, data_path
from trackbed.submit.run import read_json


def collect(job: Job, release: str) -> dict[str, Any]:
    """A record that lets somebody else say whether they run the same thing."""
    parts = {"train": job.data.train, "heldout": job.data.heldout}
    return {
        "trackbed": trackbed.__version__,
        "release": release,
        "image": os.environ.get("TRACKBED_RELEASE"),
        "source": _source_revision(),
        "data_sha256": {part: folders.digest(data_path(name)) for part, name in parts.items()},
        "host": platform.node(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "command": sys.argv,
        "user": os.getuid(),
        "submitted": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def must_agree(folder: Path, now: dict[str, Any]) -> None:
    """Refuse to go on with a run whose data or release has changed since it began: it would not be the same run."""
    before = read_json(folder / "provenance.json") or {}
    problems = [
        Problem(
            id=f"run.{key}-changed",
            where=str(folder),
            what=f"{key} was {before[key]} when the run began and is {now[key]}",
            remedy="restore it, or start a new run",
        )
        for key in ("data_sha256", "release")
        if key in before and before[key] != now[key]
    ]
    if problems:
        raise TrackbedError(problems)


def _source_revision() -> str | None:
    """The commit this comes from, `-dirty` when it was changed: as the image says, else as the checkout does."""
    built_from = os.environ.get("TRACKBED_REVISION", "unknown")
    if built_from != "unknown":
        return built_from
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None

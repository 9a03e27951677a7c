"""A run's folder: what it holds and how it is begun, found again and judged."""

from __future__ import annotations

import json
import os
import re
import secrets
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from trackbed import folders
from trackbed.errors import Problem, TrackbedError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Run:
    """One submission's folder."""

    folder: Path

    @property
    def job(self) -> Path:
        return self.folder / "job.yaml"

    @property
    def log(self) -> Path:
        return self.folder / "train.log"

    @property
    def summary(self) -> dict[str, Any] | None:
        """What came of the run; None as long as it is not finished."""
        return read_json(self.folder / "summary.json")

    @property
    def failure(self) -> dict[str, Any] | None:
        """Why the newest attempt ended; None when it did not fail."""
        return read_json(self.folder / "failure.json")


def new(job_name: str, name: str | None = None) -> Run:
    """A folder that no other run has; not made yet. Raises TrackbedError for a name that cannot be one."""
    if name is None:
        stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
        name = f"{job_name}-{stamp}-{secrets.token_hex(2)}"
    if not NAME.fullmatch(name):
        raise _bad_name(name)
    return Run(folders.runs() / name)


def find(name: str) -> Run:
    """An existing run, by its folder or by its name under the runs folder."""
    for folder in (Path(name), folders.runs() / name):
        if (folder / "job.yaml").exists():
            return Run(folder.absolute())
    raise TrackbedError(
        Problem(
            id="run.not-found",
            what=f"there is no run {name}",
            wanted="a run's folder, or its name under the runs folder",
            remedy=f"ls {folders.runs()}",
        )
    )


def make(run: Run) -> None:
    """Make the run's folder and prove that it can be written, before anything else is done."""
    probe = run.folder / f".probe-{os.getpid()}"
    try:
        run.folder.mkdir(parents=True, exist_ok=True)
        probe.write_text("x", "utf-8")
        probe.unlink()
    except OSError as error:
        raise TrackbedError(
            Problem(
                id="storage.not-writable",
                where=str(run.folder),
                what=f"the output folder cannot be written: {error.strerror}",
                wanted=f"a folder that user {os.getuid()} may write to",
                remedy="set TRACKBED_RUNS to such a folder, or change its owner",
            )
        ) from error


def record_failure(folder: Path, problem: Problem, *, rank: int | None, exit_code: int) -> None:
    """Write failure.json unless a rank has already told why: the first cause is the true one.

    On a full disk nothing is recorded: the error itself matters more than the record of it.
    """
    record = {"id": problem.id, "what": problem.what, "where": problem.where, "remedy": problem.remedy}
    text = json.dumps({**record, "rank": rank, "exit_code": exit_code}, indent=2) + "\n"
    with suppress(OSError), (folder / "failure.json").open("x", encoding="utf-8") as file:
        file.write(text)


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object, or None when there is no such file or it was cut off."""
    try:
        return dict(json.loads(path.read_text("utf-8")))
    except (FileNotFoundError, ValueError):
        return None


def _bad_name(name: str) -> TrackbedError:
    return TrackbedError(
        Problem(id="run.name", what=f"`{name}` cannot be a run's name", wanted="letters, digits, dots and dashes")
    )

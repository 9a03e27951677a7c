"""What goes wrong, said once, in one shape.

    TrackbedError            exit 2: a mistake in what was asked, or in the machine
    |-- ReleaseError         a release file that cannot be read, or a rendered file that differs
    |-- JobError             a job template
    |-- DataError            a data file or a sample in it
    |-- ModelError           a model folder, alias or hub id
    |-- ValidationError      a check failed
    |-- CheckpointError      a checkpoint that cannot be written or trusted
    `-- RunError             a run that started and failed (exit 1)

Every error is a list of problems, because a person would rather mend five mistakes at once than one at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing that is wrong: its stable id, where it is, what it is, what was wanted, how to mend it."""

    id: str
    what: str
    where: str = ""
    wanted: str = ""
    remedy: str = ""

    def __str__(self) -> str:
        head = f"{self.where}: {self.what}" if self.where else self.what
        details = [("wanted", self.wanted), ("mend", self.remedy)]
        return "\n".join([head, *(f"  {name + ':':8}{text}" for name, text in details if text)])


class TrackbedError(Exception):
    """Base of every error a user can see; never shown as a traceback."""

    exit_code = 2

    def __init__(self, problems: Problem | Sequence[Problem]) -> None:
        self.problems = [problems] if isinstance(problems, Problem) else list(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class ReleaseError(TrackbedError):
    """A release file or something rendered from it."""


class JobError(TrackbedError):
    """A job template."""


class DataError(TrackbedError):
    """A data file or samples in it."""


class ModelError(TrackbedError):
    """A model that cannot be found or used."""


class ValidationError(TrackbedError):
    """The machine or the stack failed a check."""


class CheckpointError(TrackbedError):
    """A checkpoint that cannot be written or must not be loaded."""


class RunError(TrackbedError):
    """A run that had started and failed; its folder holds failure.json."""

    exit_code = 1

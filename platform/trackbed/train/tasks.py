"""Which kind of job is which task. To add one: a class that keeps trackbed.train.task.Task, and a line here."""

from __future__ import annotations

from pathlib import Path

from trackbed.job import ChatJob, ClassifyJob, Job
from trackbed.train.engine import Ranks
from trackbed.train.task import Task


def make(job: Job, ranks: Ranks, folder: Path) -> Task:
    """The task of a job for one rank; `folder` is the run's. A job imports no library that only others need."""
    if isinstance(job, ChatJob):
        from trackbed.train.chat import ChatTask

        return ChatTask(job, ranks)
    assert isinstance(job, ClassifyJob)
    from trackbed.train.classify import ClassifyTask

    return ClassifyTask(job, ranks, folder)

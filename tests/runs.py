"""Real runs, watched from outside: start one, stop it at a line, read what it left."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from conftest import Command, environ


def lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def losses(run: Path) -> dict[int, float]:
    return {line["step"]: line["train/loss"] for line in lines(run) if "train/loss" in line}


def events(run: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(run), size_guidance={"scalars": 0, "tensors": 0}).Reload()


def submit(trackbed: Command, job: Path, name: str, *more: str) -> subprocess.CompletedProcess[str]:
    return trackbed("submit", job, "--run-name", name, "--skip-validation", *more)


def stop_at(tmp_path: Path, words: list[str], line: str, act: Callable[[subprocess.Popen[str]], None]) -> int:
    """Run `trackbed`, call act when a line with the given text appears, and return the exit code."""
    command = [sys.executable, "-m", "trackbed", *words]
    with subprocess.Popen(command, env=environ(tmp_path), stdout=subprocess.PIPE, text=True) as process:
        for text in process.stdout or ():
            if line in text:
                act(process)
        return process.wait()


def ranks_of(run: Path) -> list[int]:
    """Process ids of a run's ranks: they name its job on their command line and are no torchrun."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if str(run / "job.yaml").encode() in words and b"torch.distributed.run" not in words:
            found.append(int(entry.name))
    return sorted(found)

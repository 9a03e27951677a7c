"""One call writes a measurement to TensorBoard and to metrics.jsonl, under the same name and step.

Telemetry never ends a run: when the disk is full the writer says so once and goes quiet.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from trackbed import folders


class Writer:
    """Writes one run's measurements; only rank 0 has one."""

    def __init__(self, folder: Path, start_step: int, say: Callable[[str], None]) -> None:
        self._say = say
        self._broken = False
        self._guarded(lambda: self._open(folder, start_step))

    def _open(self, folder: Path, start_step: int) -> None:
        # torch's writer is a thin layer over TensorBoard's own and needs no TensorFlow.
        from torch.utils.tensorboard import SummaryWriter

        # purge_step hides what an attempt wrote after the checkpoint that this one resumes from: steps from it on.
        purge = start_step + 1 if start_step else 0
        self._events = SummaryWriter(str(folder), purge_step=purge, flush_secs=5)
        _forget_after(folder / "metrics.jsonl", start_step)
        self._lines = (folder / "metrics.jsonl").open("a", encoding="utf-8")

    def numbers(self, step: int, values: dict[str, float]) -> None:
        """Record measurements of one step."""
        self._guarded(lambda: self._write_numbers(step, values))

    def text(self, step: int, name: str, markdown: str) -> None:
        """Record a text, shown in TensorBoard's Text tab."""
        self._guarded(lambda: self._events.add_text(name, markdown, step))

    def flush(self) -> None:
        """Make everything written so far visible to readers."""
        self._guarded(self._events.flush)

    def close(self) -> None:
        self._guarded(self._events.close)
        self._guarded(self._lines.close)

    def _write_numbers(self, step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self._events.add_scalar(name, value, step)
        record = {"step": step, "time": round(time.time(), 3), **values}
        self._lines.write(json.dumps(record) + "\n")
        self._lines.flush()

    def _guarded(self, action: Callable[[], Any]) -> None:
        if self._broken:
            return
        try:
            action()
        except (OSError, ValueError) as error:
            self._broken = True
            self._say(f"warning: measurements are no longer written ({error}); the training goes on")


def _forget_after(path: Path, step: int) -> None:
    """Drop the lines of steps that are about to be made again, and one that a full disk cut off."""
    if path.exists():
        kept = [line for line in path.read_text("utf-8").splitlines() if step and _step_of(line) <= step]
        folders.replace(path, "".join(f"{line}\n" for line in kept))


def _step_of(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return math.inf


def peak_memory_gib() -> float:
    """The most memory this process has held, in GiB: of the GPU where there is one, else resident memory."""
    if torch.cuda.is_available():
        return float(torch.cuda.max_memory_allocated()) / 2**30
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20

"""TensorBoard over every run, and a look at whether it has something to show."""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request
from pathlib import Path

from trackbed.errors import Problem, TrackbedError
from trackbed.monitor import LOSS


def serve(runs: Path, host: str, port: int) -> None:
    """Replace this process with TensorBoard, so that signals reach it. Does not return."""
    try:
        runs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        what = f"the runs folder cannot be made: {error.strerror}"
        raise TrackbedError(Problem(id="storage.not-writable", where=str(runs), what=what)) from error
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(runs), "--host", host, "--port", str(port)]
    # reload: seconds between two looks at the folder; a new run is on the page at the next one.
    os.execv(sys.executable, [*command, "--reload_interval", "5", "--load_fast", "false"])


def runs_with_loss(url: str) -> list[str]:
    """Names of the runs whose training loss a TensorBoard server shows; empty when it does not answer."""
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/data/plugin/scalars/tags", timeout=5) as answer:
            tags = json.load(answer)
    except (urllib.error.URLError, OSError, ValueError):
        return []
    return sorted(run for run, names in tags.items() if LOSS in names)

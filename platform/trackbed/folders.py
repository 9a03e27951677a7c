"""Where things live. Two folders: a cache that can be made again, and the runs, which cannot."""

from __future__ import annotations

import os
from pathlib import Path


def cache() -> Path:
    """Models and built data sets: $TRACKBED_CACHE, else ~/.cache/trackbed."""
    return Path(os.environ.get("TRACKBED_CACHE") or Path.home() / ".cache" / "trackbed")


def runs() -> Path:
    """One folder a run: $TRACKBED_RUNS, else ./runs."""
    return Path(os.environ.get("TRACKBED_RUNS") or "runs").absolute()


def models() -> Path:
    return cache() / "models"


def data() -> Path:
    return cache() / "data"

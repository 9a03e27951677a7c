"""The compose stack, built and started for real: what a person gets from `docker compose up`."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from containers import Stack, free_port

pytestmark = pytest.mark.container


@pytest.fixture(scope="module")
def stack(image: str) -> Iterator[Stack]:
    """The stack of this checkout's image, up; taken down with its volumes afterwards."""
    stack = Stack(project=image.partition(":")[0], image=image, port=free_port())
    try:
        try:
            stack.compose("up", "--wait")
        except pytest.fail.Exception as failure:
            pytest.fail(f"{failure}\n{stack.compose('logs', '--no-color')[-12000:]}")
        yield stack
    finally:
        stack.compose("down", "--volumes", "--timeout", "30")


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


def test_a_network_learns_from_sounds_in_the_image(stack: Stack) -> None:
    steps = "--set train.steps=6 --set evaluate.every=6 --set checkpoint.every=6"
    job = f"trackbed submit jobs/classify-audio.yaml --run-name sounds --skip-validation {steps}"
    said = stack.compose("run", "--rm", "-T", "demo", "sh", "-c", f"trackbed data build sounds && {job}")
    assert "960 train, 240 heldout samples" in said
    assert "accuracy" in said
    left = stack.compose("exec", "-T", "tensorboard", "ls", "/var/lib/trackbed/runs/sounds").split()
    assert {"summary.json", "model", "plan.json"} <= set(left)

"""`trackbed validate --level job` in real containers that are nodes: a good pair, and pairs with one thing wrong."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from containers import output, run

pytestmark = pytest.mark.container

VALIDATE = "trackbed validate --level job --only 'job.*' --json"
# Debian's library that changes what a process is told of the time, and nothing else; only this process's tree has it.
FAKETIME = "apt-get update -qq >/dev/null && apt-get install -qq --no-install-recommends faketime >/dev/null"
BUDGET = 60.0


@dataclass
class Nodes:
    """Containers on a network of their own that stand for nodes, with one volume for runs."""

    name: str
    image: str
    started: list[str] = field(default_factory=list)

    def start(
        self,
        rank: int,
        *,
        count: int = 2,
        image: str = "",
        before: str = "true",
        shared: bool = True,
        user: str = "",
        **environment: str,
    ) -> None:
        """One node: a container that runs `before` and then validates."""
        wanted = {"MASTER_ADDR": f"{self.name}-0", "MASTER_PORT": "29500", "NNODES": str(count), "NODE_RANK": str(rank)}
        words = [f"--env={name}={value}" for name, value in (wanted | environment).items()]
        host = f"{self.name}-{rank}"
        where = ["--network", self.name, "--hostname", host]
        where += ["--volume", f"{self.name}:/var/lib/trackbed/runs"] if shared else []
        where += ["--user", user] if user else []
        command = f"{before} && exec {VALIDATE}"
        output("docker", "run", "--detach", "--shm-size=1g", "--name", host, *where, *words, image or self.image,
               "sh", "-c", command)  # fmt: skip
        self.started.append(host)

    def results(self, rank: int) -> tuple[int, dict[str, dict[str, Any]]]:
        """A node's exit code and results by id, when it has ended."""
        host = f"{self.name}-{rank}"
        code = int(output("docker", "wait", host))
        done = run("docker", "logs", host)
        try:
            document = json.loads(done.stdout)
        except ValueError:
            pytest.fail(f"{host} exits {code}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
        return code, {each["id"]: each for each in document["results"]}

    def seconds(self, rank: int) -> float:
        """How long a node's container ran, by the engine's clock."""
        state = json.loads(output("docker", "inspect", f"{self.name}-{rank}"))[0]["State"]
        ended, began = (subprocess.check_output(["date", "-d", state[key], "+%s.%N"], text=True) for key in ENDS)
        return float(ended) - float(began)

    def remove(self) -> None:
        for command in (["rm", "--force", *self.started], ["network", "rm", self.name], ["volume", "rm", self.name]):
            run("docker", *command)


ENDS = ("FinishedAt", "StartedAt")


@pytest.fixture
def nodes(image: str) -> Iterator[Nodes]:
    name = f"trackbed-job-{os.getpid()}"
    made = Nodes(name=name, image=image)
    output("docker", "network", "create", name)
    output("docker", "volume", "create", name)
    try:
        yield made
    finally:
        made.remove()


@pytest.fixture(scope="module")
def changed(image: str) -> Iterator[Callable[[str], str]]:
    """An image made from the image by a command, as somebody makes one who installs a package in a container."""
    made: list[str] = []

    def make(command: str) -> str:
        tag = f"{image}-changed-{len(made)}"
        dockerfile = f"FROM {image}\nUSER 0:0\nRUN {command}\nUSER 1000:0\n"
        output("docker", "build", "--quiet", "--tag", tag, "-", text=dockerfile)
        made.append(tag)
        return tag

    yield make
    run("docker", "image", "rm", "--force", *made)


def bad(results: dict[str, dict[str, Any]]) -> dict[str, str]:
    """What is neither good nor skipped, in a line a check."""
    return {name: f"{each['status']}: {each['observed']}" for name, each in results.items() if each["status"] in BAD}


BAD = ("warn", "fail", "error")


def same_verdict(nodes: Nodes, ranks: Sequence[int] = (0, 1)) -> tuple[int, dict[str, dict[str, Any]]]:
    """The verdict of all these nodes, which is one, in time."""
    told = [nodes.results(rank) for rank in ranks]
    lines = [(code, {name: (each["status"], each["observed"]) for name, each in found.items()}) for code, found in told]
    assert all(line == lines[0] for line in lines), lines
    assert all(nodes.seconds(rank) < BUDGET for rank in ranks)
    return told[0]


def test_two_good_nodes_pass(nodes: Nodes) -> None:
    for rank in (0, 1):
        nodes.start(rank)
    code, results = same_verdict(nodes)
    assert bad(results) == {}
    assert {each["status"] for each in results.values()} == {"pass"}
    assert code == 0
    assert "2 of 2 nodes" in results["job.world-size"]["observed"]


def test_another_package_version_is_named_with_its_node_and_both_values(
    nodes: Nodes, changed: Callable[[str], str]
) -> None:
    nodes.start(0)
    nodes.start(1, image=changed("env -u PIP_CONSTRAINT pip install --quiet tensorboard==2.20.0 2>&1"))
    code, results = same_verdict(nodes)
    assert list(bad(results)) == ["job.same-versions"]
    wanted = f"tensorboard: node 1 ({nodes.name}-1) has 2.20.0, node 0 ({nodes.name}-0) 2.21.0"
    assert results["job.same-versions"]["observed"] == wanted
    assert code == 2


@pytest.mark.parametrize(("offset", "status", "says"), [("+3s", "warn", "3 s ahead of"), ("-1h", "fail", "behind")])
def test_a_clock_that_is_off_is_named_with_its_node(
    nodes: Nodes, changed: Callable[[str], str], offset: str, status: str, says: str
) -> None:
    image = changed(FAKETIME)
    library = "LD_PRELOAD=$(echo /usr/lib/*/faketime/libfaketimeMT.so.1)"
    nodes.start(0)
    nodes.start(1, image=image, before=f"export {library} FAKETIME={offset}")
    _, results = same_verdict(nodes)
    assert list(bad(results)) == ["job.clock"]
    assert results["job.clock"]["status"] == status
    assert results["job.clock"]["observed"].startswith(f"node 1 ({nodes.name}-1) is ")
    assert says in results["job.clock"]["observed"]


def test_a_node_that_never_comes_is_named(nodes: Nodes) -> None:
    for rank in (0, 1):
        nodes.start(rank, count=3)
    code, results = same_verdict(nodes)
    assert bad(results) == {"job.world-size": "fail: 2 of 3 nodes came; node 2 did not come within 20 s"}
    assert results["job.all-reduce"]["status"] == "skip"
    assert code == 2


def test_a_node_without_a_network_ends_by_itself_and_is_named(nodes: Nodes) -> None:
    """Its network is gone before it can meet the others."""
    nodes.start(0)
    nodes.start(1, before="until test -e /tmp/go; do sleep 0.1; done")
    output("docker", "network", "disconnect", nodes.name, f"{nodes.name}-1")
    output("docker", "exec", f"{nodes.name}-1", "touch", "/tmp/go")
    first, second = (nodes.results(rank) for rank in (0, 1))
    assert bad(first[1]) == {"job.world-size": "fail: 1 of 2 nodes came; node 1 did not come within 20 s"}
    assert f"node 1 ({nodes.name}-1) does not reach node 0" in bad(second[1])["job.world-size"]
    assert [first[0], second[0]] == [2, 2]
    assert all(nodes.seconds(rank) < BUDGET for rank in (0, 1))


@pytest.mark.parametrize("cut", [1, 0])
def test_a_network_that_is_cut_after_the_nodes_met_ends_both_by_name(nodes: Nodes, cut: int) -> None:
    """Node 0 holds the store: its own end and that of any other node are two cases.

    Without a common volume the nodes would be looking for each other's files for half a minute: time enough to cut.
    """
    for rank in (0, 1):
        nodes.start(rank, shared=False)
    met = "ls -d /var/lib/trackbed/runs/.trackbed-validate-job-*"
    until(lambda: run("docker", "exec", f"{nodes.name}-0", "sh", "-c", met).returncode == 0)
    output("docker", "network", "disconnect", nodes.name, f"{nodes.name}-{cut}")
    first, second = (bad(nodes.results(rank)[1]) for rank in (0, 1))
    # Whichever they were at: one check fails on each, and it names who is missed.
    assert len(first) == len(second) == 1
    assert f"node 1 ({nodes.name}-1) had come, and then said nothing more" in str(first)
    assert f"node 1 ({nodes.name}-1) lost node 0 at {nodes.name}-0:29500" in str(second)
    assert all(nodes.seconds(rank) < BUDGET for rank in (0, 1))


def test_folders_that_are_not_one_are_named(nodes: Nodes) -> None:
    for rank in (0, 1):
        nodes.start(rank, shared=False)
    _, results = same_verdict(nodes)
    assert list(bad(results)) == ["job.shared-folder"]
    assert f"node 1 ({nodes.name}-1) does not see" in results["job.shared-folder"]["observed"]


def test_the_remedy_for_folders_that_need_not_be_one_works(nodes: Nodes) -> None:
    for rank in (0, 1):
        nodes.start(rank, shared=False, TRACKBED_RUNS_SHARED="no")
    code, results = same_verdict(nodes)
    assert (code, bad(results)) == (0, {})
    assert results["job.shared-folder"]["status"] == "skip"


def test_a_host_name_that_resolves_to_loopback_is_one_failure_and_the_remedy_works(nodes: Nodes) -> None:
    """It passes whatever uses the address; gloo uses the name. The sum is not tried, and brings along who says why."""
    for rank in (0, 1):
        nodes.start(rank, user="0:0", before=LOOPBACK)
    told = [nodes.results(rank) for rank in (0, 1)]
    for code, results in told:
        assert list(bad(results)) == ["network.host-name"]
        assert "GLOO_SOCKET_IFNAME" in results["network.host-name"]["remedy"]
        assert results["job.all-reduce"]["status"] == "skip"
        assert code == 2
    for rank in (0, 1):
        output("docker", "rm", "--force", f"{nodes.name}-{rank}")
        nodes.start(rank, user="0:0", before=LOOPBACK, GLOO_SOCKET_IFNAME="eth0")
    code, results = same_verdict(nodes)
    assert (code, bad(results)) == (0, {})


LOOPBACK = "printf '127.0.0.1 localhost %s\\n' $(cat /etc/hostname) >/etc/hosts"


def until(there: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < end
        time.sleep(0.05)

"""job.*: who is who, what nodes say, and real nodes: processes that meet on this machine, and lose one another."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from conftest import environ
from containers import free_port
from trackbed.release import load
from trackbed.validate import Context
from trackbed.validate.job import facts, folder, ring, session, wire
from trackbed.validate.job.place import Place, hosts, place

SLURM = {"SLURM_JOB_ID": "12345", "SLURM_NNODES": "3", "SLURM_NODEID": "2", "SLURM_JOB_NODELIST": "gpu[08-09],big"}
BY_HAND = {"MASTER_ADDR": "alpha", "MASTER_PORT": "29501", "NNODES": "2", "NODE_RANK": "1"}


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, Place()),
        ({"NNODES": "1", "NODE_RANK": "7"}, Place()),
        (BY_HAND, Place(nodes=2, rank=1, address="alpha", port=29501)),
        ({**BY_HAND, "MASTER_PORT": ""}, Place(nodes=2, rank=1, address="alpha", port=29500)),
        (SLURM, Place(nodes=3, rank=2, address="gpu08", port=22345, names=("gpu08", "gpu09", "big"))),
        # What the launcher says wins over the scheduler around it, whose names are then of other nodes.
        ({**SLURM, **BY_HAND}, Place(nodes=2, rank=1, address="alpha", port=29501)),
        (
            {f"PET_{name}": value for name, value in BY_HAND.items()},
            Place(nodes=2, rank=1, address="alpha", port=29501),
        ),
        ({**BY_HAND, "NNODES": "1:2"}, Place(nodes=2, rank=1, address="alpha", port=29501)),
    ],
)
def test_the_place_of_a_node(environment: dict[str, str], wanted: Place) -> None:
    assert place(environment) == wanted


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"NODE_RANK": ""}, "NODE_RANK is not set"),
        ({"NODE_RANK": "2"}, "NODE_RANK=2, but there are 2 nodes: they count from 0 to 1"),
        ({"NODE_RANK": "-1"}, "NODE_RANK=-1, but"),
        ({"NODE_RANK": "one"}, "NODE_RANK=one is no whole number"),
        ({"NNODES": "0"}, "NNODES=0: a job has one node or more"),
        ({"MASTER_ADDR": ""}, "MASTER_ADDR is not set"),
        ({"MASTER_PORT": "0"}, "MASTER_PORT=0: a port is"),
        ({"MASTER_PORT": "65536"}, "MASTER_PORT=65536: a port is"),
        ({"SLURM_LOCALID": "1"}, "srun --ntasks-per-node=1"),
    ],
)
def test_variables_that_make_no_sense_say_what_to_set(changes: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        place({**BY_HAND, **changes})


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gpu[1-3,07-09],login", ["gpu1", "gpu2", "gpu3", "gpu07", "gpu08", "gpu09", "login"]),
        ("r[1-2]n[0-1]", ["r1n0", "r1n1", "r2n0", "r2n1"]),
        ("one", ["one"]),
        ("n[098-101]-ib", ["n098-ib", "n099-ib", "n100-ib", "n101-ib"]),
        ("", []),
        ("n[a-b]", []),
    ],
)
def test_slurms_short_form_of_names(text: str, names: list[str]) -> None:
    assert list(hosts(text)) == names


@pytest.mark.parametrize(("said", "seconds"), [("", 20.0), ("7", 7.0), ("0", 1.0), ("soon", 20.0)])
def test_how_long_nodes_wait_can_be_set(said: str, seconds: float) -> None:
    assert session.wait_seconds({session.WAIT: said}) == seconds


def test_a_step_on_some_of_its_jobs_nodes_meets_at_its_own_first_one() -> None:
    """As srun -N2 -w gpu09,big sets them in an allocation of three nodes."""
    step = {**SLURM, "SLURM_NNODES": "2", "SLURM_NODEID": "1", "SLURM_STEP_NODELIST": "gpu09,big"}
    here = place(step)
    assert (here.nodes, here.address, here.names) == (2, "gpu09", ("gpu09", "big"))


# --- facts ---


def test_versions_are_the_loaded_ones_and_the_rest_is_marked(tmp_path: Path) -> None:
    driver = tmp_path / "version"
    driver.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n", "utf-8")
    found = facts.known_versions(load(), driver)
    import torch

    assert found["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert found["nvidia driver"] == "580.95.05"
    assert found["kernel"] == os.uname().release
    assert not facts.harmless("torch")
    assert facts.harmless("kernel")
    assert "package psutil" in found or "psutil" in found
    assert facts.known_versions(load(), tmp_path / "none")["nvidia driver"] == "none"


def test_a_hash_changes_with_any_version() -> None:
    assert facts.digest({"a": "1", "b": "2"}) == facts.digest({"b": "2", "a": "1"})
    assert facts.digest({"a": "1"}) != facts.digest({"a": "2"})


@pytest.mark.parametrize(("said", "shared"), [("", True), ("yes", True), ("no", False), ("0", False), ("False", False)])
def test_a_folder_that_is_not_meant_to_be_shared_is_said_so(said: str, shared: bool) -> None:
    assert facts.is_shared({facts.SHARED: said}) is shared


# --- doors ---


def test_a_door_gives_back_what_it_gets_and_a_closed_one_is_refused() -> None:
    with ring.Door() as door:
        port = door.addresses(Place(nodes=2, rank=1, address="127.0.0.1"))[0][1]
        assert ring.visit({1: [["127.0.0.1", port]]}) == {}
        # One of several addresses is enough.
        assert ring.visit({1: [["127.0.0.1", 1], ["127.0.0.1", port]]}) == {}
    said = ring.visit({1: [["127.0.0.1", 1]], 2: []})
    assert said == {"1": "127.0.0.1 port 1: connection refused", "2": "it has no address"}


@pytest.mark.parametrize(("answer", "says"), [(None, "do not come back (MTU?)"), (b"SSH-2.0\r\n", "something else")])
def test_a_door_that_answers_otherwise_is_no_door(
    answer: bytes | None, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ring, "EXCHANGE", 0.3)
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:

        def serve() -> None:
            caller, _ = listener.accept()
            with closing(caller):
                if answer is not None:
                    caller.sendall(answer)
                    caller.shutdown(socket.SHUT_WR)
                # Reads to the end: a reset would take the answer with it.
                while caller.recv(65536):
                    pass

        server = threading.Thread(target=serve)
        server.start()
        said = ring.visit({1: [["127.0.0.1", listener.getsockname()[1]]]})
        server.join(10)
    assert says in said["1"]


def test_rates_are_of_a_ring() -> None:
    assert ring.rate(10**9, 1.0, 2) == 1.0
    assert ring.rate(10**9, 0.5, 4) == 3.0


# --- the wire ---


@pytest.mark.parametrize(
    ("address", "says"), [("127.0.0.1", "connection refused"), ("nowhere.invalid", "does not resolve")]
)
def test_a_node_0_that_is_not_there_is_lost_with_the_reason(address: str, says: str) -> None:
    with pytest.raises(wire.Lost, match=says):
        wire.knock(address, 1, time.monotonic() + 0.2)


def test_what_is_late_is_left_behind() -> None:
    release = threading.Event()
    started = time.monotonic()
    with pytest.raises(TimeoutError, match="no answer"):
        wire.within(0.1, lambda: release.wait(30))
    assert time.monotonic() - started < 5
    release.set()


def test_a_port_in_use_says_so() -> None:
    with closing(socket.create_server(("0.0.0.0", 0))) as taken, pytest.raises(wire.Lost, match="in use on node 0"):
        wire.Wire(Place(nodes=2, rank=0, address="127.0.0.1", port=taken.getsockname()[1]), 2)


# --- the folder ---


def test_a_folder_that_is_one_is_seen_both_ways_and_left_clean(tmp_path: Path) -> None:
    runs = tmp_path / "new" / "runs"
    with folder.Folder(0, runs) as first, folder.Folder(1, runs) as second:
        for each in (first, second):
            each.look({"token": "t"})
        assert first.seen()["seen"] == 0.0
        assert 0 <= second.seen()["seen"] < 5
        assert abs(second.seen()["skew"]) < 1
        assert first.returned(1) == {"seen": True}
        assert first.returned(2) == {"seen": False}
    assert list(tmp_path.iterdir()) == []


def test_folders_that_are_two_and_folders_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "LIMIT", 0.3)
    (tmp_path / "file").write_text("", "utf-8")
    with folder.Folder(0, tmp_path / "file" / "runs") as first, folder.Folder(1, tmp_path / "b") as second:
        for each in (first, second):
            each.look({"token": "t"})
        assert first.seen()["error"] == "ENOTDIR"
        assert second.seen() == {"folder": str(tmp_path / "b"), "seen": None}


# --- real nodes ---

RUN = """
import sys
from pathlib import Path
from trackbed.validate import Context, runner
for done in runner.stream(Context(output=Path(sys.argv[1]), level="job"), "trackbed.validate.job.checks"):
    print(__import__("json").dumps(done.to_dict()), flush=True)
"""
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a node: a process with its place in a job on this machine."""
    port, started = free_port(), []

    def node(rank: int, count: int = 2, runs: str = "runs", **more: str) -> subprocess.Popen[str]:
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "NNODES": str(count), "NODE_RANK": str(rank)}
        command = [sys.executable, "-c", RUN, str(tmp_path / runs)]
        started.append(
            subprocess.Popen(
                command, env=environ(tmp_path, **{**where, "GLOO_SOCKET_IFNAME": "lo", **more}), text=True,
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            )
        )  # fmt: skip
        return started[-1]

    yield node
    for process in started:
        # A check's process has a session of its own: one that a test has stopped would stay for ever.
        for pid in children(process.pid) if process.poll() is None else []:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.kill()
        process.communicate()


def told(process: subprocess.Popen[str], seconds: float = 120) -> dict[str, Mapping[str, Any]]:
    text, _ = process.communicate(timeout=seconds)
    return {done["id"]: done for done in map(json.loads, text.splitlines())}


def lines(results: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[str, str]]:
    return {name: (done["status"], done["observed"]) for name, done in results.items()}


def test_three_nodes_agree_that_all_is_good_and_leave_nothing(start: Start, tmp_path: Path) -> None:
    nodes = [start(rank, 3) for rank in (2, 0, 1)]
    verdicts = [lines(told(node)) for node in nodes]
    assert verdicts[0] == verdicts[1] == verdicts[2]
    assert {status for status, _ in verdicts[0].values()} == {"pass"}
    assert len(verdicts[0]) == 7
    assert verdicts[0]["job.world-size"][1].startswith("3 of 3 nodes came")
    assert not (tmp_path / "runs").exists()


def test_the_bandwidth_by_message_size_is_in_the_evidence(start: Start) -> None:
    start(1)
    evidence = json.loads(str(told(start(0))["job.all-reduce"]["evidence"]))
    assert set(evidence["figures"]) >= {"4 KiB", "32 MiB"}
    assert all(row["value"] > 0 and row["unit"] == "GB/s" for row in evidence["figures"].values())


def test_a_node_that_never_comes_is_named_within_the_wait(start: Start) -> None:
    nodes = [start(rank, 3, TRACKBED_JOB_WAIT="6") for rank in (0, 1)]
    first, second = (lines(told(node)) for node in nodes)
    assert first == second
    assert first["job.world-size"] == ("fail", "2 of 3 nodes came; node 2 did not come within 6 s")
    bad = [name for name, (status, _) in first.items() if status not in ("pass", "skip")]
    assert bad == ["job.world-size"]
    assert first["job.all-reduce"][0] == "skip"


def test_a_node_without_its_interface_is_named_by_the_others_at_once(start: Start) -> None:
    """Without trying: gloo would not start there, and the others would wait for it. There, network.host-name fails."""
    start(1, GLOO_SOCKET_IFNAME="eth9")
    status, text = lines(told(start(0)))["job.all-reduce"]
    assert status == "fail"
    assert text == f"node 1 ({socket.gethostname()}): GLOO_SOCKET_IFNAME=eth9, but eth9 is no interface that is up"


def test_all_of_it_takes_less_than_a_minute() -> None:
    """With the default wait; torch's import and the interpreter's start come on top."""
    assert session.most(20.0) <= 55
    assert session.most(300.0) < 300 + 60


def test_what_the_first_node_has_waited_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Node 0 comes last but one: node 2, which never comes, is not waited for anew, and less is left for the phases."""
    monkeypatch.setattr(session, "LEAST_WAIT", 0.2)
    place = Place(nodes=3, rank=0, address="127.0.0.1", port=free_port())
    late = session.Session(place, Context(output=tmp_path), 20.0)
    late.wire = wire.Wire(place, 5)
    late.wire.put("waited/1", "19.9")
    for rank in (0, 1):
        late.wire.put(f"facts/{rank}", json.dumps({"hash": "h"}))
    late.wire.put("versions/h", "{}")
    met = late._meeting(time.monotonic())
    assert met["facts"][2] is None
    assert met["meeting"]["seconds"] < 15
    assert session.LEAST_PHASES <= met["meeting"]["left"] < session.TOTAL


def test_without_node_0_the_others_say_where_they_looked(start: Start) -> None:
    results = told(start(1, TRACKBED_JOB_WAIT="2"))
    assert results["job.world-size"]["status"] == "fail"
    assert "does not reach node 0 at 127.0.0.1:" in results["job.world-size"]["observed"]
    assert "connection refused" in results["job.world-size"]["observed"]
    assert {done["status"] for name, done in results.items() if name != "job.world-size"} == {"skip"}


def test_two_processes_that_come_as_the_same_node_are_told(start: Start) -> None:
    """The second of them cannot know which of the two is right: both names stand in what everybody prints."""
    nodes = [start(0, 3, TRACKBED_JOB_WAIT="8"), *(start(1, 3, TRACKBED_JOB_WAIT="8") for _ in range(2))]
    verdicts = [lines(told(node)) for node in nodes]
    assert "came a second time: NODE_RANK is the same on two" in verdicts[0]["job.world-size"][1]
    assert any("another process has come as node 1" in said["job.world-size"][1] for said in verdicts[1:])


@pytest.mark.parametrize("stop", [signal.SIGSTOP, signal.SIGKILL])
@pytest.mark.parametrize("victim", [1, 0])
def test_a_node_that_falls_silent_after_it_came_is_named(
    start: Start, tmp_path: Path, victim: int, stop: signal.Signals
) -> None:
    """The nodes look for each other's files in folders that are two: for half a minute they are all at it."""
    nodes = [start(rank, runs=f"runs-{rank}") for rank in (0, 1)]
    until(lambda: list(tmp_path.glob("runs-0/.trackbed-validate-job-*")))
    # The children that hold the connections, not only the process that watches them.
    for pid in [nodes[victim].pid, *children(nodes[victim].pid)]:
        os.kill(pid, stop)
    started = time.monotonic()
    said = lines(told(nodes[1 - victim]))
    assert time.monotonic() - started < 60
    bad = {name: text for name, (status, text) in said.items() if status not in ("pass", "skip")}
    assert len(bad) == 1, bad
    name = f"node 1 ({socket.gethostname()})"
    assert f"{name} lost node 0" in str(bad) if victim == 0 else f"{name} had come, and then said nothing" in str(bad)


def children(pid: int) -> list[int]:
    import psutil

    return [child.pid for child in psutil.Process(pid).children(recursive=True)]


def until(there: Callable[[], Any], seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_node_with_another_package_is_named(start: Start, tmp_path: Path) -> None:
    """A package ahead of the real one, as `pip install` into a container makes it."""
    other = tmp_path / "site" / "tensorboard-2.20.0.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: tensorboard\nVersion: 2.20.0\n", "utf-8")
    paths = os.pathsep.join([str(tmp_path / "site"), environ(tmp_path)["PYTHONPATH"]])
    start(1, PYTHONPATH=paths)
    said = lines(told(start(0)))
    status, text = said["job.same-versions"]
    host = socket.gethostname()
    assert status == "fail"
    assert text.startswith(f"tensorboard: node 1 ({host}) has 2.20.0, node 0 ({host}) ")
    assert {each for name, (each, _) in said.items() if name != "job.same-versions"} == {"pass"}

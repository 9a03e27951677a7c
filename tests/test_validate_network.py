"""Measuring for network.* and mpi.*, really where it can be."""

from __future__ import annotations

import math
import os
import resource
import socket
import stat
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from trackbed.validate import Context
from trackbed.validate.deep import ring
from trackbed.validate.network import addresses, comm, interfaces, mpi, mpi_start, nccl_settings, ports


def context(folder: Path, **changes: Any) -> Context:
    return Context(output=folder, **changes)


@pytest.mark.parametrize(
    ("environment", "count"),
    [
        ({}, 1),
        ({"NNODES": "2"}, 2),
        ({"PET_NNODES": "1:4"}, 4),
        ({"SLURM_NNODES": "3", "NNODES": "2"}, 3),
        ({"NNODES": "0"}, 1),
        ({"NNODES": "many"}, 1),
    ],
)
def test_the_nodes_of_a_job_are_what_its_launcher_says(environment: dict[str, str], count: int) -> None:
    assert addresses.nodes(environment) == count


def test_this_hosts_interfaces_have_addresses() -> None:
    found = {one["name"]: one for one in addresses.interfaces()}
    assert found["lo"]["up"]
    assert "127.0.0.1" in found["lo"]["addresses"]
    assert addresses.is_here("127.0.0.1")
    assert not addresses.is_here("192.0.2.99")


@pytest.mark.parametrize(
    ("wanted", "fault"),
    [("", ""), ("lo", ""), ("ib0", "but ib0 is no interface"), ("lo,ib0,ib1", "but ib0, ib1 is no interface")],
)
def test_gloo_is_not_tried_over_an_interface_that_is_not_there(
    wanted: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", wanted)
    said = addresses.gloo_fault()
    assert (bool(said), fault in said) == (bool(fault), True)
    if fault:
        assert comm.judge_gloo(comm.measure_gloo(context(tmp_path))).status == "skip"
        assert ring.measure_gloo(context(tmp_path))["skip"].startswith(said)
        named = interfaces.judge_host_name(interfaces.measure_host_name(context(tmp_path)))
        assert (named.status, named.observed) == ("fail", said)


@pytest.mark.parametrize(
    ("address", "loopback"), [("127.0.1.1", True), ("::1", True), ("10.0.0.1", False), ("n1", False)]
)
def test_loopback_addresses(address: str, loopback: bool) -> None:
    assert addresses.is_loopback(address) is loopback


def test_a_name_server_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answered.wait() and [])
    assert addresses.resolve("n1", 0.1) is None
    answered.set()
    monkeypatch.undo()
    assert addresses.resolve("localhost", 5.0)
    assert addresses.resolve("no.such.host.invalid", 20.0) == []


@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [
        ("", "eth0"),
        ("x", "eth0"),
        ("^docker0", "lo"),
        ("^lo,docker", "eth0"),
        ("docker", "docker0"),
        ("=docker", ""),
        ("=docker0:1", "docker0"),
        ("eth1,docker0", "docker0"),
        ("^=lo", "docker0"),
        ("ens", ""),
    ],
)
def test_nccls_choice(wanted: str, chosen: str) -> None:
    assert nccl_settings.choose(wanted, ["lo", "docker0", "eth0"]) == chosen


def test_nccls_choice_without_a_variable() -> None:
    assert nccl_settings.choose("", ["lo", "eth0", "ib0"]) == "ib0"
    assert nccl_settings.choose("", ["virbr0", "lo", "docker0"]) == "docker0"
    assert nccl_settings.choose("", ["virbr0", "lo"]) == "lo"
    assert nccl_settings.choose("", ["virbr0"]) == "virbr0"
    assert nccl_settings.choose("", []) == ""


def test_nccls_files_come_after_the_environment(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/nccl.conf").write_text(
        "# NCCL_DEBUG=TRACE\nNCCL_SOCKET_IFNAME==ens1\nNCCL_IB_HCA=mlx5\nOTHER=1\nNCCL_SET\n"
    )
    (tmp_path / "own.conf").write_text("NCCL_IB_HCA=mlx5_1\nNCCL_ALGO=Ring\n")
    environment = {"NCCL_CONF_FILE": "/own.conf", "NCCL_ALGO": "Tree"}
    found = interfaces.measure_nccl_variables(context(tmp_path), tmp_path, environment)["settings"]
    values = {name: value for name, (value, _) in found.items()}
    assert values["NCCL_SOCKET_IFNAME"] == "=ens1"
    assert values["NCCL_IB_HCA"] == "mlx5_1"
    assert values["NCCL_ALGO"] == "Tree"
    assert not {"NCCL_DEBUG", "NCCL_SET", "OTHER"} & set(values)
    chosen = interfaces.measure_nccl_interface(context(tmp_path), tmp_path, environment)
    assert (chosen["wanted"], chosen["origin"]) == ("=ens1", str(tmp_path / "etc/nccl.conf"))


def test_a_plug_ins_name_is_not_taken_for_a_misspelt_one() -> None:
    names = [
        "NCCL_SOKET_IFNAME",
        "NCCL_IB_DISABLED",
        "NCCL_FASTRAK_IFNAME",
        "NCCL_GPUDIRECTTCPX_CTRL_DEV",
        "OFI_NCCL_X",
    ]
    assert nccl_settings.misspelt(names) == {
        "NCCL_SOKET_IFNAME": "NCCL_SOCKET_IFNAME",
        "NCCL_IB_DISABLED": "NCCL_IB_DISABLE",
    }
    assert nccl_settings.misspelt(sorted(nccl_settings.KNOWN)) == {}


def test_this_hosts_name_is_really_resolved(tmp_path: Path) -> None:
    found = interfaces.measure_host_name(context(tmp_path), {"GLOO_SOCKET_IFNAME": "lo"})
    assert found["name"] == socket.gethostname()
    assert (found["wanted"], found["nodes"]) == ("lo", 1)
    assert interfaces.judge_host_name(found).status == "pass"


# --- ports ---


def test_a_port_in_use_is_found_with_who_uses_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        number = str(server.getsockname()[1])
        environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": number, "TENSORBOARD_PORT": number}
        (master, board) = ports.measure_ports(context(tmp_path), environment)["ports"]
        assert master["used"]
        assert "python" in master["by"]
        assert board["used"]
        inside = {**environment, "TORCHELASTIC_RUN_ID": "7"}
        assert [one["name"] for one in ports.measure_ports(context(tmp_path), inside)["ports"]] == ["TENSORBOARD_PORT"]
        # The nodes that meet at this moment: job.world-size fails when they cannot.
        meeting = {**environment, "NNODES": "2"}
        assert len(ports.measure_ports(context(tmp_path, level="job"), meeting)["ports"]) == 1
        assert len(ports.measure_ports(context(tmp_path, level="job"), {**meeting, "NNODES": "1"})["ports"]) == 2
        elsewhere = {**environment, "MASTER_ADDR": "192.0.2.99", "TENSORBOARD_PORT": ""}
        assert ports.measure_ports(context(tmp_path), elsewhere)["ports"] == []
    (master, _) = ports.measure_ports(context(tmp_path), environment)["ports"]
    assert (master["used"], master["by"]) == (False, "")


def test_what_is_no_port_is_not_asked_for(tmp_path: Path) -> None:
    for text in ("auto", "65536", "0"):
        found = ports.measure_ports(context(tmp_path), {"MASTER_PORT": text})
        assert [one["used"] for one in found["ports"]] == [False]


# --- mpi ---


@pytest.fixture(autouse=True)
def started_anew() -> None:
    mpi_start._start.cache_clear()


def program(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def use(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (mpi, mpi_start):
        monkeypatch.setattr(module, "program_path", lambda: f"{folder}{os.pathsep}{os.defpath}")


def test_mpirun_really_starts_the_ranks_and_they_have_our_limit(tmp_path: Path) -> None:
    assert mpi_start.judge_slots(mpi_start.measure_slots(context(tmp_path, ranks=1))).status == "pass"
    found = mpi_start.measure_locked(context(tmp_path, ranks=1))
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    here = math.inf if soft == resource.RLIM_INFINITY else soft
    assert (found["here"], found["ranks"]) == (here, [here])


def test_mpirun_really_refuses_more_ranks_than_there_are_cores(tmp_path: Path) -> None:
    outcome = mpi_start.judge_slots(mpi_start.measure_slots(context(tmp_path, ranks=4096)))
    assert outcome.status == "warn"
    assert "4096 slots" in outcome.observed


def test_a_daemons_lower_limit_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "mpirun", "echo 64\necho unlimited\necho hello")
    use(tmp_path, monkeypatch)
    found = mpi_start.measure_locked(context(tmp_path))
    assert found["ranks"] == [65536, math.inf]
    assert mpi_start.judge_locked(found).status == "warn"


def test_what_a_launcher_around_us_set_does_not_reach_mpirun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "mpirun", 'echo "${SLURM_JOB_ID:-1}"')
    use(tmp_path, monkeypatch)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert mpi_start.measure_locked(context(tmp_path))["ranks"] == [1024]


def test_without_mpirun_nothing_is_said_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpi_start, "program_path", lambda: str(tmp_path))
    slots = mpi_start.judge_slots(mpi_start.measure_slots(context(tmp_path)))
    locked = mpi_start.judge_locked(mpi_start.measure_locked(context(tmp_path)))
    root = mpi_start.judge_root(mpi_start.measure_root(context(tmp_path), {}, uid=0))
    assert {slots.status, locked.status, root.status} == {"skip"}


def test_root_is_asked_for_both_variables(tmp_path: Path) -> None:
    variables = dict.fromkeys(mpi.ALLOWED, "1")
    assert mpi_start.measure_root(context(tmp_path), variables, uid=0)["set"] == list(mpi.ALLOWED)
    assert mpi_start.measure_root(context(tmp_path), {mpi.ALLOWED[0]: "0"})["set"] == []
    assert mpi_start.measure_root(context(tmp_path))["uid"] == os.geteuid()


def test_the_mpi_that_is_here_is_one(tmp_path: Path) -> None:
    outcome = mpi.judge_library(mpi.measure_library(context(tmp_path)))
    assert outcome.status == "pass", outcome


def test_an_mpi4py_that_does_not_import_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    outcome = mpi.judge_library(mpi.measure_library(context(tmp_path)))
    assert outcome.status == "skip"
    assert "mpi4py" in outcome.observed


@pytest.mark.parametrize(
    ("said", "cuda"),
    [("mca:opal:base:param:opal_built_with_cuda_support:value:true", "true"),
     ("mca:mpi:base:param:mpi_built_with_cuda_support:value:false", "false"), ("nothing", "")],
)  # fmt: skip
def test_what_open_mpi_is_built_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, cuda: str) -> None:
    program(tmp_path, "ompi_info", f"echo {said}")
    use(tmp_path, monkeypatch)
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert mpi.measure_accelerators(context(tmp_path), tmp_path) == {"cuda": cuda, "gpus": 2}


def test_a_hostfile_shows_that_the_launcher_is_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hostfile = tmp_path / "hostfile"
    assert mpi.measure_interface(context(tmp_path), hostfile)["hostfile"] == ""
    hostfile.touch()
    found = mpi.measure_interface(context(tmp_path), hostfile)
    assert found["hostfile"] == str(hostfile)
    assert "lo" in found["interfaces"]
    monkeypatch.setenv("DLTS_HOSTFILE", str(tmp_path / "other"))
    assert mpi.measure_interface(context(tmp_path), hostfile)["hostfile"] == ""

"""Which node of a job this process is on: from the launcher's variables, else from Slurm's, else it is alone."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

# What MASTER_PORT is when nobody says; under Slurm two jobs may share a machine, so the job's number picks one.
PORT = 29500
SLURM_PORTS = (20000, 10000)
# Kubeflow's Trainer writes torchrun's own options as PET_ variables, its older operator the plain ones.
NODES = ("NNODES", "PET_NNODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES")
RANK = ("NODE_RANK", "PET_NODE_RANK", "GROUP_RANK", "SLURM_NODEID")
# A step may have only some of its job's nodes, and the job's first one not among them.
NODELIST = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST")
ADDRESS = ("MASTER_ADDR", "PET_MASTER_ADDR")
MASTER_PORT = ("MASTER_PORT", "PET_MASTER_PORT")


@dataclass(frozen=True, kw_only=True)
class Place:
    """How many nodes there are, which one this is, where node 0 listens, and the nodes' names where they are known."""

    nodes: int = 1
    rank: int = 0
    address: str = ""
    port: int = PORT
    names: tuple[str, ...] = ()


def place(environment: Mapping[str, str]) -> Place:
    """This process's place; ValueError, with what to set, when the variables do not make sense together."""
    nodes = _whole(environment, NODES, 1)
    if nodes < 1:
        raise ValueError(f"{_said(environment, NODES)}: a job has one node or more")
    if nodes == 1:
        return Place()
    if environment.get("SLURM_LOCALID", "0") != "0":
        raise ValueError("this is a second task on its node: start one a node, srun --ntasks-per-node=1")
    rank = _whole(environment, RANK, None)
    if not 0 <= rank < nodes:
        raise ValueError(f"{_said(environment, RANK)}, but there are {nodes} nodes: they count from 0 to {nodes - 1}")
    names = tuple(hosts(_first(environment, NODELIST)))
    address = _first(environment, ADDRESS) or (names[0] if names else "")
    if not address:
        raise ValueError("MASTER_ADDR is not set: it is the name or address of node 0, the same on every node")
    # A list of another length is of a job around this one.
    known = names if len(names) == nodes else ()
    return Place(nodes=nodes, rank=rank, address=address, port=_port(environment), names=known)


def hosts(text: str) -> Iterator[str]:
    """The names in Slurm's short form: `gpu[1-3,07-09],login` is gpu1 gpu2 gpu3 gpu07 gpu08 gpu09 login."""
    for part in re.findall(r"(?:\[[^\]]*\]|[^,\[])+", text):
        yield from _expand(part.strip())


def _expand(part: str) -> Iterator[str]:
    head, bracket, rest = part.partition("[")
    if not bracket:
        yield head
        return
    inside, _, tail = rest.partition("]")
    for piece in inside.split(","):
        first, _, last = piece.partition("-")
        numbers = range(int(first), int(last or first) + 1) if (first + last).isdigit() else ()
        for number in numbers:
            # Zeros in front are part of the name.
            for ending in _expand(tail):
                yield f"{head}{number:0{len(first)}d}{ending}"


def _port(environment: Mapping[str, str]) -> int:
    job = environment.get("SLURM_JOB_ID", "")
    low, count = SLURM_PORTS
    port = _whole(environment, MASTER_PORT, low + int(job) % count if job.isdigit() else PORT)
    if not 0 < port < 65536:
        raise ValueError(f"{_said(environment, MASTER_PORT)}: a port is a number from 1 to 65535")
    return port


def _whole(environment: Mapping[str, str], names: tuple[str, ...], otherwise: int | None) -> int:
    text = _first(environment, names)
    if not text:
        if otherwise is None:
            raise ValueError(f"{names[0]} is not set: this node's number, from 0, another on each node")
        return otherwise
    # torchrun's own form of a count that may change is MIN:MAX.
    last = text.rpartition(":")[2]
    if not re.fullmatch(r"-?\d+", last):
        raise ValueError(f"{_said(environment, names)} is no whole number")
    return int(last)


def _first(environment: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((environment[name].strip() for name in names if environment.get(name, "").strip()), "")


def _said(environment: Mapping[str, str], names: tuple[str, ...]) -> str:
    name = next((name for name in names if environment.get(name, "").strip()), names[0])
    return f"{name}={environment.get(name, '')}"

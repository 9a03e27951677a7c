"""This host's interfaces and addresses, and the nodes of the job around us."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import threading
from collections.abc import Collection, Mapping
from typing import Any

import psutil

RESOLVE_SECONDS = 5.0
GLOO_IFNAME = "GLOO_SOCKET_IFNAME"
# How the launchers say how many nodes a job has; torchrun's may be a range.
NODES = ("NNODES", "PET_NNODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES")
HIDDEN = ("lo", "docker", "veth", "virbr", "br-", "cni", "flannel")


def nodes(environment: Mapping[str, str] = os.environ) -> int:
    """The nodes of the job around us, by what its launcher set; 1 without one."""
    counts = [int(text) for name in NODES for text in re.findall(r"\d+", environment.get(name, ""))]
    return max([1, *counts])


def interfaces() -> list[dict[str, Any]]:
    """Interfaces that have an address, in the order in which the C library lists them."""
    up = {name: state.isup for name, state in psutil.net_if_stats().items()}
    families = (socket.AF_INET, socket.AF_INET6)
    addresses = {
        name: [each.address.partition("%")[0] for each in found if each.family in families]
        for name, found in psutil.net_if_addrs().items()
    }
    return [{"name": name, "addresses": found, "up": up.get(name, False)} for name, found in addresses.items() if found]


def missing(wanted: str, names: Collection[str]) -> list[str]:
    """The interfaces of GLOO_SOCKET_IFNAME that are not among these; gloo takes whole names, with commas between."""
    return [name for name in wanted.split(",") if name not in names]


def gloo_fault(environment: Mapping[str, str] = os.environ) -> str:
    """Why gloo cannot start here, which is network.host-name's to report; empty when its interface is up or not set."""
    wanted = environment.get(GLOO_IFNAME, "")
    absent = missing(wanted, [one["name"] for one in interfaces() if one["up"]]) if wanted else []
    return f"{GLOO_IFNAME}={wanted}, but {', '.join(absent)} is no interface that is up" if absent else ""


def resolve(name: str, seconds: float) -> list[str] | None:
    """The addresses of a name, IPv4 and IPv6 as the system orders them; None when no answer came in time."""
    answer: list[str] = []

    def ask() -> None:
        try:
            found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except OSError:
            return
        answer.extend(str(each[4][0]).partition("%")[0] for each in found)

    # A name server that does not answer cannot be interrupted; the thread ends with this process.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(seconds)
    return None if asking.is_alive() else answer


def is_loopback(address: str) -> bool:
    """Whether an address leads back to the host that uses it; False for what is no address."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def is_here(name: str) -> bool:
    """Whether a name or an address is this host's own."""
    local = {each for one in interfaces() for each in one["addresses"]}
    return any(is_loopback(each) or each in local for each in resolve(name, RESOLVE_SECONDS) or [])

"""network.*: which way ranks find each other, from what is set here and the interfaces there are."""

from __future__ import annotations

import os
import pwd
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trackbed.validate import Check, Context, Outcome, Status, number, unreadable
from trackbed.validate.network.addresses import (
    HIDDEN,
    RESOLVE_SECONDS,
    interfaces,
    is_loopback,
    missing,
    nodes,
    resolve,
)
from trackbed.validate.network.nccl_settings import IFNAME, LEFT_OVER, choose, misspelt, settings


def measure_nccl_interface(
    context: Context, root: Path = Path("/"), environment: Mapping[str, str] = os.environ
) -> dict[str, Any]:
    """NCCL_SOCKET_IFNAME and where it is set, the interfaces, and the nodes of the job."""
    value, origin = settings(environment, _files(root, environment)).get(IFNAME, ("", ""))
    return {"wanted": value, "origin": origin, "interfaces": interfaces(), "nodes": nodes(environment)}


def judge_nccl_interface(found: object) -> Outcome:
    """One node's ranks may talk over lo; another node's can be reached over a real interface only."""
    value = found if isinstance(found, Mapping) else {}
    wanted, origin, count = value.get("wanted"), value.get("origin"), number(value.get("nodes"))
    names = _running(value.get("interfaces"))
    if not isinstance(wanted, str) or not isinstance(origin, str) or not count or names is None:
        return unreadable("the interface for NCCL", found)
    chosen = choose(wanted, names)
    real = next((name for name in names if not name.startswith(HIDDEN)), "")
    there = ", ".join(names) or "none"
    expected = "NCCL's sockets on an interface that other nodes reach"
    better = " or ".join([f"{IFNAME}=^lo,docker", *([f"{IFNAME}={real}"] if real else [])])
    remedy = f"docker run -e {better} (it is {f'set in {origin}' if origin else 'not set'} now)"
    said = f"{IFNAME}={wanted}" if wanted else f"without {IFNAME}"
    if not chosen:
        observed = f"{said}: no interface here fits, NCCL cannot start (there are: {there})"
        status: Status = "fail" if wanted else "pass"
        observed = observed if wanted else "no interface at all: ranks on one node need none but lo"
        return Outcome(status=status, observed=observed, expected=expected, remedy=remedy if wanted else "")
    hidden = chosen.startswith(HIDDEN)
    observed = f"{said}: {chosen} of {there}; {count:g} node{'s' if count > 1 else ''}"
    if hidden and count > 1:
        return Outcome(status="fail", observed=observed, expected=expected, remedy=remedy)
    if hidden and wanted and real:
        return Outcome(status="warn", observed=observed, expected=expected, remedy=remedy)
    return Outcome(status="pass", observed=observed, expected=expected)


def measure_host_name(
    context: Context, environment: Mapping[str, str] = os.environ, seconds: float = RESOLVE_SECONDS
) -> dict[str, Any]:
    """What this host's own name resolves to (None: no answer in time), the interfaces, gloo's own choice."""
    name = socket.gethostname()
    return {
        "name": name,
        "addresses": resolve(name, seconds),
        "interfaces": interfaces(),
        "wanted": environment.get("GLOO_SOCKET_IFNAME", ""),
        "nodes": nodes(environment),
    }


def judge_host_name(found: object) -> Outcome:
    """gloo tells the other ranks the address that this host's name has; a loopback address leads them to themselves."""
    value = found if isinstance(found, Mapping) else {}
    name, wanted, addresses = value.get("name"), value.get("wanted"), value.get("addresses")
    names, count = _running(value.get("interfaces")), number(value.get("nodes"))
    known = isinstance(name, str) and isinstance(wanted, str) and isinstance(addresses, Sequence | None)
    if not known or names is None or not count or isinstance(addresses, str):
        return unreadable("this host's name", found)
    local = [address for one in value["interfaces"] for address in one.get("addresses", [])]
    fault = _gloo_fault(str(wanted), names, count) if wanted else _name_fault(str(name), addresses, local)
    expected = "this host's name is an address of its own that is not a loopback one, or GLOO_SOCKET_IFNAME"
    real = next((each for each in names if not each.startswith(HIDDEN)), "eth0" if count > 1 else "lo")
    own = f"this host's own address for {name} in /etc/hosts (docker run --hostname without --add-host {name}:127...)"
    remedy = f"export GLOO_SOCKET_IFNAME={real}; or {'unset GLOO_SOCKET_IFNAME' if wanted else own}"
    if not fault:
        observed = f"GLOO_SOCKET_IFNAME={wanted} is up" if wanted else f"{name} is {', '.join(addresses or [])}"
        return Outcome(status="pass", observed=observed, expected=expected)
    if count > 1 or wanted:
        observed = f"{fault}, and the job has {count:g} nodes" if count > 1 else fault
        return Outcome(status="fail", observed=observed, expected=expected, remedy=remedy)
    return Outcome(status="pass", observed=f"{fault}; one node needs no other", expected=expected)


def _gloo_fault(wanted: str, names: Sequence[str], count: float) -> str:
    if absent := missing(wanted, names):
        return f"GLOO_SOCKET_IFNAME={wanted}, but {', '.join(absent)} is no interface that is up"
    hidden = [name for name in wanted.split(",") if name.startswith(HIDDEN)]
    return f"GLOO_SOCKET_IFNAME={wanted} is not reached from other nodes" if hidden and count > 1 else ""


def _name_fault(name: str, addresses: Sequence[str] | None, local: Sequence[str]) -> str:
    if addresses is None:
        return f"{name} is not resolved within {RESOLVE_SECONDS:g} s"
    if not addresses:
        return f"{name} resolves to nothing"
    if is_loopback(addresses[0]):
        return f"{name} resolves to {addresses[0]}, a loopback address"
    return "" if addresses[0] in local else f"{name} resolves to {addresses[0]}, which is not an address of this host"


def measure_nccl_variables(
    context: Context, root: Path = Path("/"), environment: Mapping[str, str] = os.environ
) -> dict[str, Any]:
    """Every NCCL_ variable that is set, with its value and where that is."""
    return {"settings": settings(environment, _files(root, environment))}


def judge_nccl_variables(found: object) -> Outcome:
    """NCCL says nothing to a name that it does not know, and does as told by one that was forgotten."""
    value = found if isinstance(found, Mapping) else {}
    given = value.get("settings")
    if not isinstance(given, Mapping) or not all(_is_pair(pair) for pair in given.values()):
        return unreadable("NCCL's variables", found)
    wrong = misspelt(list(given))
    left = {
        name: cost
        for name, (hurts, cost) in LEFT_OVER.items()
        if name in given and str(given[name][0]).upper() == hurts
    }
    said = [f"NCCL does not know {name} (it knows {meant})" for name, meant in wrong.items()]
    said += [f"{name}={given[name][0]}: {cost}" for name, cost in left.items()]
    expected = "no variable left from debugging, and none that NCCL does not know"
    if not said:
        return Outcome(status="pass", observed=f"{len(given)} NCCL_ variables set", expected=expected)
    places = {str(given[name][1]) for name in (*wrong, *left)}
    renames = [f"rename {name} to {meant}" for name, meant in wrong.items()]
    unsets = [f"unset {' '.join(left)}"] if left else []
    remedy = f"{'; '.join([*renames, *unsets])} (set in {', '.join(sorted(places))})"
    return Outcome(status="warn", observed="; ".join(said), expected=expected, remedy=remedy)


def _running(found: object) -> list[str] | None:
    """Names of the interfaces that run, in their order; None when that is no list of interfaces."""
    if not isinstance(found, Sequence) or isinstance(found, str):
        return None
    if not all(isinstance(one, Mapping) and isinstance(one.get("name"), str) for one in found):
        return None
    return [str(one["name"]) for one in found if one.get("up")]


def _is_pair(pair: object) -> bool:
    return isinstance(pair, Sequence) and not isinstance(pair, str) and len(pair) == 2


def _files(root: Path, environment: Mapping[str, str]) -> list[Path]:
    """The user's file, as NCCL finds it: by the user's record, not by HOME; then the machine's."""
    own = environment.get("NCCL_CONF_FILE")
    try:
        home = own or f"{pwd.getpwuid(os.getuid()).pw_dir}/.nccl.conf"
    except KeyError:
        home = own or ""
    return [root / path.lstrip("/") for path in (home, "/etc/nccl.conf") if path]


CHECKS = (
    Check(
        id="network.nccl-interface",
        title="the interface NCCL takes",
        measure=measure_nccl_interface,
        judge=judge_nccl_interface,
        deadline=15,
        child="network",
        why="`NCCL WARN Call to connect timeout : Connection refused`: NCCL_SOCKET_IFNAME=^docker0 replaces NCCL's own "
        "list of what to leave out, so that it takes lo, and every rank calls itself.",
        rule="Fails when NCCL_SOCKET_IFNAME fits no interface, and, with several nodes, when NCCL takes lo, docker, "
        "veth or a bridge. Warns for the latter on one node, when the variable brought it about.",
    ),
    Check(
        id="network.host-name",
        title="this host's name leads to it",
        measure=measure_host_name,
        judge=judge_host_name,
        deadline=15,
        child="network",
        why="`Unable to resolve hostname to a (local) address. Using the loopback address as fallback.`, then `Gloo "
        "connectFullMesh failed ... remote=[127.0.0.1]` on every other node.",
        rule="Fails when GLOO_SOCKET_IFNAME is no interface that is up; comm.gloo-all-reduce is then skipped. With "
        "several nodes: also when that is an interface that others do not reach, and, without it, when the name "
        "resolves to nothing, to a loopback address or to another host's.",
    ),
    Check(
        id="network.nccl-variables",
        title="variables of NCCL",
        measure=measure_nccl_variables,
        judge=judge_nccl_variables,
        deadline=15,
        child="network",
        why="No message: NCCL_P2P_DISABLE=1 from last month's debugging makes a job several times slower, and a "
        "misspelt variable does nothing.",
        rule="Warns for NCCL_ variables left from debugging, in the environment, ~/.nccl.conf and /etc/nccl.conf, and "
        "for names that are nearly one that NCCL knows.",
    ),
)

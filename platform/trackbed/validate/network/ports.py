"""network.ports: whether what a job will listen on is free."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

import psutil

from trackbed.validate import Check, Context, Outcome, unreadable
from trackbed.validate.network.addresses import is_here, nodes

IN_TORCHRUN = "TORCHELASTIC_RUN_ID"  # then the port that is in use is that of the job we are in


def measure_ports(context: Context, environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Whether the ports that variables name can be listened on, and who does."""
    wanted = {name: environment.get(name, "") for name in ("MASTER_PORT", "TENSORBOARD_PORT")}
    # At level job the nodes meet there at this moment: job.world-size tries that port, and fails for it.
    meeting = context.level == "job" and nodes(environment) > 1
    free = not meeting and not environment.get(IN_TORCHRUN) and is_here(environment.get("MASTER_ADDR", "localhost"))
    ours = {"MASTER_PORT": free, "TENSORBOARD_PORT": True}
    return {
        "ports": [
            {"name": name, "port": text, "used": _used(text), "by": _listener(text)}
            for name, text in wanted.items()
            if text and ours[name]
        ]
    }


def judge_ports(found: object) -> Outcome:
    """The rendezvous of a job fails with its port; TensorBoard is only not seen."""
    value = found if isinstance(found, Mapping) else {}
    ports = value.get("ports")
    if not isinstance(ports, Sequence) or isinstance(ports, str):
        return unreadable("the ports", found)
    if any(not isinstance(one, Mapping) or not isinstance(one.get("port"), str) for one in ports):
        return unreadable("a port", ports)
    bad = {one["name"]: _port_fault(one) for one in ports if _port_fault(one)}
    expected = "MASTER_PORT and TENSORBOARD_PORT, where set, are ports that are free"
    if not bad:
        seen = ", ".join(f"{one['name']} {one['port']}" for one in ports)
        return Outcome(status="pass", observed=f"{seen or 'no port'} set and usable", expected=expected)
    return Outcome(
        status="fail" if "MASTER_PORT" in bad else "warn",
        observed="; ".join(bad.values()),
        expected=expected,
        remedy=f"end that process (ss -ltnp shows it), or unset {' '.join(bad)}, or set a port that is free",
    )


def _port_fault(one: Mapping[str, Any]) -> str:
    if not one["port"].isdigit() or int(one["port"]) > 65535:
        return f"{one['name']}={one['port']} is no port"
    by = str(one.get("by") or "")
    if not one.get("used") or (one["name"] == "TENSORBOARD_PORT" and ("trackbed" in by or "tensorboard" in by)):
        return ""
    return f"{one['name']} {one['port']} is in use" + (f" by {by}" if by else "")


def _used(text: str) -> bool:
    """Whether nothing can listen there now; SO_REUSEADDR as servers set it, so that a port in TIME_WAIT is free."""
    if not text.isdigit() or not 0 < int(text) < 65536:
        return False
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", int(text)))
            listener.listen()
        except OSError:
            return True
    return False


def _listener(text: str) -> str:
    """The command that listens there; empty when there is none, or it is another user's."""
    try:
        open_ = (one for one in psutil.net_connections("tcp") if one.status == psutil.CONN_LISTEN and one.laddr)
        owners = [one.pid for one in open_ if one.laddr.port == int(text)]  # type: ignore[union-attr]
        return next((" ".join(psutil.Process(pid).cmdline())[:80] for pid in owners if pid), "")
    except (psutil.Error, ValueError, OSError):
        return ""


CHECKS = (
    Check(
        id="network.ports",
        title="ports that variables name are free",
        measure=measure_ports,
        judge=judge_ports,
        deadline=15,
        child="network",
        why="`The server socket has failed to listen on any local network address ... EADDRINUSE`: the ranks of an "
        "earlier run still hold MASTER_PORT, and every other rank waits until its timeout.",
        rule="Fails when MASTER_PORT is set, its host is this one and nothing can listen there; warns for "
        "TENSORBOARD_PORT, unless TensorBoard itself has it. At level job the nodes meet on MASTER_PORT, and "
        "job.world-size fails for it.",
    ),
)

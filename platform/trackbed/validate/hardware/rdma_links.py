"""rdma.*, what a link's own counters and addresses say of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trackbed.validate import Context, Outcome, skip, unreadable
from trackbed.validate.hardware import kernel_log
from trackbed.validate.hardware.shared import NO_RDMA, absent, cheap, count, deep, names, not_here, text

DEVICES = "sys/class/infiniband"
# Counters that stay at zero on a good link.
ERRORS = ("symbol_error", "port_rcv_errors", "excessive_buffer_overrun_errors", "local_link_integrity_errors")
DAY = 24 * 3600.0


def ports(root: Path) -> list[tuple[str, Path]]:
    """(mlx5_0/1, its folder) of every port of every RDMA device."""
    devices = root / DEVICES
    found = [(f"{name}/{port}", devices / name / "ports" / port)
             for name in names(devices) for port in names(devices / name / "ports")]  # fmt: skip
    return found


def measure_flaps(context: Context, root: Path = Path("/")) -> dict[str, Any]:
    """How often each link went down since its counters began, and as the kernel log tells it for 24 hours."""
    found = ports(root)
    if not found:
        return absent(NO_RDMA)
    lines = kernel_log.read(root)
    recent = None if lines is None else [line for line in kernel_log.newest(lines, DAY) if _went_down(line)]
    return {"downed": {name: text(path / "counters/link_downed") for name, path in found},
            "log": None if recent is None else len(recent)}  # fmt: skip


def _went_down(line: str) -> bool:
    return "mlx5" in line and ("Link down" in line or "lost carrier" in line.lower())


def judge_flaps(value: Any) -> Outcome:
    """A link that comes and goes fails a job at its next exchange, hours in."""
    if outcome := not_here("links that went down", value):
        return outcome
    log = value.get("log")
    try:
        downed = {str(name): int(said) for name, said in value["downed"].items() if said != ""}
        recent = 0 if log is None else count(log)
    except (KeyError, TypeError, ValueError, AttributeError):
        return unreadable("links that went down", dict(value))
    if not downed and log is None:
        return skip("neither counters nor the kernel log can be read here")
    wanted = "fewer than 5 times in 24 hours, and fewer than 5 since the counters began"
    remedy = "clean or replace the cable or transceiver; mlxlink -d DEVICE -m shows its light levels"
    often = {name: times for name, times in downed.items() if times >= 5}
    if recent >= 5:
        observed = f"links went down {recent:g} times in 24 hours"
        return Outcome(status="fail", observed=observed, expected=wanted, remedy=remedy)
    if often:
        observed = ", ".join(f"{name} went down {times} times" for name, times in often.items())
        return Outcome(status="warn", observed=observed, expected=wanted, remedy=remedy)
    return Outcome(status="pass", observed=f"{len(downed)} ports, {recent:g} times down in 24 hours", expected=wanted)


def measure_partitions(context: Context, root: Path = Path("/")) -> dict[str, Any]:
    """Of each active port: its layer, partition key, kinds of address, and the MTU of its network device."""
    found = {}
    for name, path in ports(root):
        if text(path / "state").endswith("ACTIVE"):
            nets = names(root / DEVICES / name.partition("/")[0] / "device/net")
            found[name] = {
                "layer": text(path / "link_layer"),
                "pkeys": [key for index in names(path / "pkeys") if (key := text(path / "pkeys" / index)) != "0x0000"],
                "gids": sorted({text(path / "gid_attrs/types" / index) for index in names(path / "gid_attrs/types")}),
                "mtu": text(root / "sys/class/net" / nets[0] / "mtu") if nets else "",
            }
    return found or absent("no RDMA port is in use" if ports(root) else NO_RDMA)


def judge_partitions(value: Any) -> Outcome:
    """What two ports must have in common before a packet goes between them."""
    if outcome := not_here("RDMA partitions", value):
        return outcome
    wanted = "a partition key on InfiniBand, a RoCE v2 address on Ethernet, one MTU"
    try:
        no_key = [name for name, port in value.items() if port["layer"] == "InfiniBand" and not list(port["pkeys"])]
        no_v2 = [name for name, port in value.items() if port["layer"] == "Ethernet" and "RoCE v2" not in port["gids"]]
        layers = {port["layer"] for port in value.values()}
        mtus = sorted({(port["layer"], int(port["mtu"])) for port in value.values() if port["mtu"]})
    except (KeyError, TypeError, ValueError, AttributeError):
        return unreadable("RDMA partitions", value)
    if not layers <= {"InfiniBand", "Ethernet"} or not layers:
        return unreadable("the layer of RDMA ports", sorted(map(str, layers)))
    for status, found, how, remedy in (
        ("fail", no_key, "has no partition key", "the subnet manager gives it: look at its partitions.conf"),
        ("warn", no_v2, "has no RoCE v2 address", "give the network device an IP address; NCCL_IB_GID_INDEX picks one"),
    ):
        if found:
            observed = f"{', '.join(found)} {how}"
            return Outcome(status=status, observed=observed, expected=wanted, remedy=remedy)  # type: ignore[arg-type]
    if len(mtus) > len(layers):
        observed = f"different MTUs: {', '.join(f'{mtu} on {layer}' for layer, mtu in mtus)}"
        remedy = "ip link set DEVICE mtu N: one for all ports and for the switches between them"
        return Outcome(status="warn", observed=observed, expected=wanted, remedy=remedy)
    return Outcome(status="pass", observed=f"{len(value)} ports agree", expected=wanted)


def measure_errors(context: Context, root: Path = Path("/"), seconds: float = 60.0) -> dict[str, Any]:
    """How the error counters of each port grow within `seconds`."""
    found = ports(root)
    if not found:
        return absent(NO_RDMA)
    before = {name: _counters(path) for name, path in found}
    time.sleep(seconds)
    return {"seconds": seconds, "growth": {name: _growth(before[name], _counters(path)) for name, path in found}}


def _counters(port: Path) -> dict[str, int]:
    texts = {name: text(port / "counters" / name) for name in ERRORS}
    return {name: int(said) for name, said in texts.items() if said.isdigit()}


def _growth(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    return {name: after[name] - before[name] for name in before if name in after}


def judge_errors(value: Any) -> Outcome:
    """Counters since boot say little; what grows now does."""
    if outcome := not_here("link errors", value):
        return outcome
    try:
        seconds = count(value.get("seconds"))
        growth = {
            f"{port} {name}": count(more) for port, names in value["growth"].items() for name, more in names.items()
        }
    except (KeyError, TypeError, ValueError, AttributeError):
        return unreadable("link errors", dict(value))
    if not growth:
        return skip("the ports' counters cannot be read here")
    wanted = f"no error counter grows in {seconds:g} s"
    bad = ", ".join(f"{name} +{more:g}" for name, more in growth.items() if more > 0)
    if not bad:
        return Outcome(status="pass", observed=f"{len(growth)} counters stand still", expected=wanted)
    remedy = "clean or replace that port's cable or transceiver; mlxlink -d DEVICE -c shows the bit error rate"
    return Outcome(status="warn", observed=bad, expected=wanted, remedy=remedy)


def _row(name: str, title: str, how: Callable[..., Any], judge: Callable[[Any], Outcome], why: str, rule: str) -> Any:
    return cheap(id=f"rdma.{name}", title=title, measure=how, judge=judge, why=why, rule=rule)


CHECKS = (
    _row(
        "flaps", "links that come and go", measure_flaps, judge_flaps,
        "`NCCL WARN NET/IB : Got completion ... with error 12` hours into a run, on a link that is up again when you "
        "look.",
        "Fails on 5 or more in the kernel log of 24 hours; warns on 5 or more in a port's own counter.",
    ),
    _row(
        "partitions", "partition key, address kind, MTU", measure_partitions, judge_partitions,
        "`ibv_modify_qp failed with error Invalid argument` or a connection that never forms, with every port ACTIVE.",
        "Fails without a partition key; warns without a RoCE v2 address or on different MTUs.",
    ),
    deep(
        id="rdma.errors",
        title="error counters that grow",
        measure=measure_errors,
        judge=judge_errors,
        why="A dirty cable costs bandwidth by retransmission before it costs the link.",
        rule="Warns when an error counter of a port grows within 60 s.",
    ),
)  # fmt: skip

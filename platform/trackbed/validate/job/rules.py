"""The rules of job.*: who came, their versions, their clocks, who reaches whom."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Any

from trackbed.validate import Outcome, Status, skip, unreadable
from trackbed.validate.job.account import FIREWALL, START, Account, several, stage
from trackbed.validate.job.facts import harmless
from trackbed.validate.job.session import WAIT

ALONE = skip("no other node came", "see job.world-size")


def judge_world(raw: object) -> Outcome:
    """All have come, once each, and were told the same number."""
    return stage(raw, "facts", _world)


def _world(account: Account, roll: Mapping[int, Any]) -> Outcome:
    missing = [rank for rank in range(account.nodes) if roll.get(rank) is None]
    others = {rank: said["nodes"] for rank, said in roll.items() if said is not None}
    others = {rank: told for rank, told in others.items() if told != account.nodes}
    came, twice = account.nodes - len(missing), account.raw["meeting"]["twice"]
    problems = [f"{twice} came a second time: NODE_RANK is the same on two"] if twice else []
    problems += [f"{account.name(rank)} was told {told} nodes" for rank, told in others.items()]
    if missing:
        problems += [f"{account.named(missing)} did not come within {account.raw['wait']:g} s"]
    expected = f"{account.nodes} nodes, each once"
    evidence = ", ".join(account.name(rank) for rank in roll if roll[rank])
    observed = f"{came} of {account.nodes} nodes came in {account.raw['meeting']['seconds']:.1f} s"
    if not problems:
        return Outcome(status="pass", observed=observed, expected=expected, evidence=evidence)
    remedy = f"{START}; where nodes start far apart: {WAIT}=SECONDS. That node's own output says what it waits for"
    observed = f"{came} of {account.nodes} nodes came; {'; '.join(problems)}"
    return Outcome(status="fail", observed=observed, expected=expected, evidence=evidence, remedy=remedy)


def judge_versions(raw: object) -> Outcome:
    """Every version is the same on all nodes that came."""
    return stage(raw, "facts", _versions, second=True)


def _versions(account: Account, roll: Mapping[int, Any]) -> Outcome:
    tables = account.raw["versions"]
    by_node = {rank: tables[said["hash"]] for rank, said in roll.items() if said is not None}
    if len(by_node) < 2:
        return ALONE
    names = sorted({name for table in by_node.values() for name in table})
    if not names:
        return unreadable("the versions", tables)
    differing = [name for name in names if len({table.get(name) for table in by_node.values()}) > 1]
    expected = "the same versions on all nodes"
    evidence = "; ".join(f"{account.name(rank)} {roll[rank]['hash']}" for rank in by_node)
    if not differing:
        observed = f"{len(names)} versions are the same on {len(by_node)} nodes"
        return Outcome(status="pass", observed=observed, expected=expected, evidence=evidence)
    bad = [name for name in differing if not harmless(name)]
    lines = [_difference(account, name, by_node) for name in bad or differing]
    return Outcome(
        status="fail" if bad else "warn",
        observed=several(lines),
        expected=expected,
        evidence="; ".join(_difference(account, name, by_node) for name in differing),
        remedy="run the same image on every node, by its digest (docker pull IMAGE@sha256:...), and install nothing in "
        "it afterwards; a driver or kernel: ask for the same on every node, or exclude that node",
    )


def _difference(account: Account, name: str, by_node: Mapping[int, Mapping[str, str]]) -> str:
    """The component, the nodes that are not as most (or as node 0, when no value leads), and both values."""
    values = {rank: table.get(name, "none") for rank, table in by_node.items()}
    usual = statistics.mode(values.values())
    odd = [rank for rank, value in values.items() if value != usual]
    has = several([f"{account.name(rank)} has {values[rank]}" for rank in odd], ", ")
    same = [rank for rank in values if rank not in odd]
    return f"{name}: {has}, {account.name(same[0]) if len(same) == 1 else f'{len(same)} others'} {usual}"


def judge_clock(raw: object) -> Outcome:
    """Munge refuses what is minutes off, torchrun a node whose heartbeat seems 15 s old; seconds already confuse."""
    return stage(raw, "clock", _clock)


def _clock(account: Account, roll: Mapping[int, Any]) -> Outcome:
    if len(roll) < 2:
        return ALONE
    offsets = {rank: float(said["offset"]) for rank, said in roll.items()}
    if not all(map(math.isfinite, offsets.values())):
        return unreadable("the clocks", offsets)
    # With two, neither is the odd one: node 0 is what is compared with.
    usual = statistics.median_low(offsets.values()) if len(offsets) > 2 else 0.0
    far = max(offsets, key=lambda rank: abs(offsets[rank] - usual))
    spread = max(offsets.values()) - min(offsets.values())
    status: Status = "fail" if spread > 5 else "warn" if spread > 1 else "pass"
    off = offsets[far] - usual
    than = "the others" if len(offsets) > 2 else account.name(0)
    observed = f"{len(offsets)} clocks within {spread:.2g} s"
    if status != "pass":
        way = "behind" if off < 0 else "ahead of"  # mutation: equivalent, because none is 0 off where two differ by 1 s
        observed = f"{account.name(far)} is {abs(off):.3g} s {way} {than}"
    evidence = "; ".join(
        f"{account.name(rank)} {offset:+.4f} s (within {float(roll[rank]['within']):.4f})"
        for rank, offset in offsets.items()
    )
    remedy = "synchronise it: chronyc makestep, systemctl enable --now chronyd (timedatectl set-ntp true); a container "
    remedy += "has its host's clock"
    remedy = "" if status == "pass" else remedy
    expected = "at most 1 s between any two nodes; more than 5 s fails"
    return Outcome(status=status, observed=observed, expected=expected, evidence=evidence, remedy=remedy)


def judge_reachability(raw: object) -> Outcome:
    """Every node calls every other one, in both directions."""
    return stage(raw, "reachability", _reachability)


def _reachability(account: Account, roll: Mapping[int, Any]) -> Outcome:
    if len(roll) < 2:
        return ALONE
    cannot = [(rank, int(other), why) for rank, said in roll.items() for other, why in said["cannot"].items()]
    pairs = len(roll) * (len(roll) - 1)
    expected = f"{pairs} connections, each way between {len(roll)} nodes, on ephemeral TCP ports"
    if not cannot:
        return Outcome(status="pass", observed=f"{pairs} of {pairs} connections", expected=expected)
    lines = [f"{account.name(one)} does not reach {account.name(other)}: {why}" for one, other, why in cannot]
    observed, evidence = several(lines), "\n".join(lines)
    remedy = f"{FIREWALL}; where packets are lost only when large: the same MTU on every interface and the switch"
    return Outcome(status="fail", observed=observed, expected=expected, evidence=evidence, remedy=remedy)

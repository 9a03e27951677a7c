"""What came of the nodes' meeting, in the words of an outcome; and what is said where a phase has no roll to judge."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trackbed.validate import Outcome, number, skip, unreadable
from trackbed.validate.job.facts import SHARED

START = (
    "start it on every node at once: srun --ntasks-per-node=1 trackbed validate --level job; by hand MASTER_ADDR=NODE0 "
    "NNODES=N NODE_RANK=0..N-1; Kubernetes: a PyTorchJob or TrainJob sets them"
)
CUT = "look at that node: whether its process was killed (for memory, by a prolog), and its network is up (ip link)"
FIREWALL = "let the nodes talk on all TCP ports among themselves: firewall, NetworkPolicy, security group"
# Nodes named in one line; the rest is in the evidence.
NAMED = 6


class Account:
    """What is in an account, in the words of an outcome."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self.raw = raw
        self.nodes = int(raw["nodes"])
        self.facts: Mapping[int, Any] = raw.get("facts") or {}

    def name(self, rank: int) -> str:
        """`node 1 (gpu07)`, by what it has said of itself or what the scheduler calls it."""
        names = self.raw.get("names") or ()
        said = self.facts.get(rank) or {}
        mine = self.raw.get("host") if rank == self.raw.get("rank") else ""
        host = said.get("host") or (names[rank] if rank < len(names) else mine)
        return f"node {rank} ({host})" if host else f"node {rank}"

    def named(self, ranks: list[int]) -> str:
        return several([self.name(rank) for rank in ranks], ", ")


def several(parts: Sequence[str], joiner: str = "; ") -> str:
    """The first few, and how many more there are."""
    more = f" and {len(parts) - NAMED} more" if len(parts) > NAMED else ""
    return joiner.join(parts[:NAMED]) + more


Rule = Callable[[Account, Mapping[int, Any]], Outcome]


def stage(raw: object, phase: str, rule: Rule, *, second: bool = False) -> Outcome:
    """Apply a rule to a phase's roll, or say why there is none. A node that fell silent in it fails it by name.

    `second` is for another check of a phase: the first one has that failure already.
    """
    if not isinstance(raw, Mapping) or number(raw.get("nodes")) is None:
        return unreadable("what the nodes said", raw)
    account = Account(raw)
    if account.nodes == 1:
        return skip("one node: there is nothing to compare it with", START)
    if raw.get("error") and phase == "facts" and not second:
        return Outcome(status="fail", observed=str(raw["error"]), expected="a place in the job", remedy=START)
    roll = raw.get(phase)
    if roll is None:
        return _not_reached(account, phase, second=second)
    if not isinstance(roll, Mapping) or not roll:
        return unreadable(f"what the nodes said of {phase}", roll)
    silent = [rank for rank, said in roll.items() if said is None]
    if silent and phase != "facts":
        return Outcome(
            status="fail",
            observed=f"{account.named(silent)} had come, and then said nothing more",
            expected=f"an answer of all {account.nodes} nodes",
            remedy=CUT,
        )
    try:
        return rule(account, roll)
    except (AttributeError, KeyError, TypeError, ValueError):
        return unreadable(f"what the nodes said of {phase}", str(dict(roll))[:300])


def _not_reached(account: Account, phase: str, *, second: bool) -> Outcome:
    """A phase that this node did not see the end of: its own failure, or that of another check."""
    raw = account.raw
    if phase in (raw.get("skipped") or {}):
        return _skipped(account, raw["skipped"][phase])
    current = "facts" if raw.get("phase") == "rendezvous" else raw.get("phase")
    if raw.get("lost") and current == phase and not second:
        return _lost(account)
    if raw.get("lost") or raw.get("error"):
        return skip("the nodes did not get that far", "see the job check that failed")
    return unreadable(f"what the nodes said of {phase}", None)


def _skipped(account: Account, gone: list[int]) -> Outcome:
    if gone:
        return skip(f"{account.named(gone)} is missing: there is nothing to sum", "see the job check that failed")
    return skip(f"the folder for runs is not meant to be shared ({SHARED}=no)", f"unset {SHARED} when it should be")


def _lost(account: Account) -> Outcome:
    """This node and node 0 lost each other, or never met."""
    raw, here = account.raw, account.name(int(account.raw.get("rank", 0)))
    if raw.get("phase") == "rendezvous":
        observed = f"{here} does not reach node 0 at {raw.get('store')} within {raw.get('wait'):g} s: {raw['lost']}"
        remedy = f"is node 0 started, and MASTER_ADDR and MASTER_PORT the same everywhere? Then: {FIREWALL}"
        if raw.get("rank") == 0:
            observed, remedy = f"{here} cannot listen on {raw.get('store')}: {raw['lost']}", "MASTER_PORT=another port"
    else:
        observed = f"{here} lost node 0 at {raw.get('store')}: {raw['lost']}"
        remedy = f"the network of {here} or of node 0 is cut, or node 0's process was killed; {CUT}"
    return Outcome(status="fail", observed=observed, expected="node 0 answers", remedy=remedy)

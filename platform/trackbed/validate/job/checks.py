"""job.*: whether all nodes of a job are there, are the same, and reach each other.

`trackbed validate --level job` is started once on every node, at the same time: `srun --ntasks-per-node=1 trackbed
validate --level job`, or by hand with MASTER_ADDR, NNODES and NODE_RANK. The nodes meet at node 0 and every one prints
the same verdict. What they say to each other is in session.py, the rules of what they are in rules.py.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from trackbed.validate import Check, Context, Outcome, Status, skip, unreadable
from trackbed.validate.job.account import Account, several, stage
from trackbed.validate.job.facts import SHARED
from trackbed.validate.job.folder import LIMIT
from trackbed.validate.job.ring import size_name
from trackbed.validate.job.rules import judge_clock, judge_reachability, judge_versions, judge_world
from trackbed.validate.job.session import attend, most, wait_seconds

MEND_GLOO = (
    "every node's own name must resolve to its address (getent hosts $(hostname); /etc/hosts, docker run --hostname), "
    "or set GLOO_SOCKET_IFNAME to the interface the nodes share, such as eth0, on all of them"
)
SKEW = 2.0


@cache
def _account(output: Path, release: str) -> dict[str, Any]:
    return attend(Context(output=output, release=release))


def measure(context: Context) -> dict[str, Any]:
    """What the nodes have said; they meet once, whatever number of checks asks."""
    return _account(context.output, context.release)


def judge_all_reduce(raw: object) -> Outcome:
    """Every element of every sum is right, on every node."""
    return stage(raw, "all-reduce", _all_reduce)


def _all_reduce(account: Account, roll: Mapping[int, Any]) -> Outcome:
    if faults := {rank: said["fault"] for rank, said in roll.items() if said.get("fault")}:
        return _not_tried(account, faults)
    errors = {rank: said["error"] for rank, said in roll.items() if said.get("error")}
    expected = f"right sums over {account.nodes} nodes by gloo"
    if errors:
        observed = several([f"{account.name(rank)}: {error}" for rank, error in errors.items()])
        return Outcome(status="fail", observed=observed, expected=expected, remedy=MEND_GLOO)
    wrong = {rank: int(said["wrong"]) for rank, said in roll.items()}
    if bad := [rank for rank, count in wrong.items() if count]:
        observed = several([f"{account.name(rank)} got {wrong[rank]} wrong elements" for rank in bad])
        remedy = "take that node out: its memory or its network card changes data without saying so"
        return Outcome(status="fail", observed=observed, expected=expected, remedy=remedy)
    rates = _rates(roll)
    if not rates:
        return unreadable("the bandwidth", dict(roll))
    size = max(rates, key=int)
    observed = f"right sums on {len(roll)} nodes, {rates[size]:.3g} GB/s at {size_name(int(size))}"
    figures = {
        size_name(int(size)): {"value": value, "unit": "GB/s", "better": "higher"} for size, value in rates.items()
    }
    return Outcome(status="pass", observed=observed, expected=expected, evidence=json.dumps({"figures": figures}))


def _not_tried(account: Account, faults: Mapping[int, str]) -> Outcome:
    """On the node that brought it about another check fails for it; the other nodes have none that says so."""
    if account.raw["rank"] in faults:
        return skip(f"not tried: {faults[account.raw['rank']]}", "do what network.host-name says")
    return Outcome(
        status="fail",
        observed=several([f"{account.name(rank)}: {fault}" for rank, fault in faults.items()]),
        expected=f"right sums over {account.nodes} nodes by gloo",
        remedy="on that node, do what its network.host-name says",
    )


def _rates(roll: Mapping[int, Any]) -> dict[str, float]:
    """GB/s by message size: each node's median, and of these the slowest node's, which is everybody's."""
    sizes = next(iter(roll.values()))["runs"]
    return {size: min(statistics.median(said["runs"][size]) for said in roll.values()) for size in sizes}


def judge_shared_folder(raw: object) -> Outcome:
    """Node 0's file is seen by all, and theirs by node 0: checkpoints of all ranks lie in one folder."""
    return stage(raw, "shared-folder", _shared_folder)


def _shared_folder(account: Account, roll: Mapping[int, Any]) -> Outcome:
    folder = str(roll[0]["folder"])
    expected = f"what node 0 writes is seen by all nodes within {LIMIT:g} s, and the other way round"
    slow = {rank: said for rank, said in roll.items() if said["seen"] is None or not said["seen"] <= LIMIT}
    if 0 in slow:
        lines = [f"{account.name(0)} cannot write in {folder}: {slow[0].get('error', 'no reason given')}"]
    else:
        lines = [_unseen(account, rank, said) for rank, said in slow.items()]
        back = account.raw["returned"].items()
        lines += [
            f"{account.name(0)} does not see what {account.name(rank)} writes"
            for rank, it in back
            if not it["seen"] and rank not in slow
        ]
    if not lines:
        observed = (
            f"{folder} is one folder for {len(roll)} nodes, seen within {max(it['seen'] for it in roll.values()):.1f} s"
        )
        return Outcome(status="pass", observed=observed, expected=expected)
    remedy = (
        "mount one file system there on every node: docker run -v of the same NFS or Lustre path, a Kubernetes claim "
        f"that is ReadWriteMany, or TRACKBED_RUNS on a shared path; where it is not meant to be shared: {SHARED}=no"
    )
    return Outcome(status="fail", observed=several(lines), expected=expected, remedy=remedy)


def _unseen(account: Account, rank: int, said: Mapping[str, Any]) -> str:
    if said.get("error"):
        return f"{account.name(rank)} cannot write in {said['folder']}: {said['error']}"
    return f"{account.name(rank)} does not see in {said['folder']} what {account.name(0)} writes"


def judge_mtime(raw: object) -> Outcome:
    """Files' times by the file server's clock: builders that compare them with the node's own build for ever."""
    shared = judge_shared_folder(raw)
    if shared.status == "fail":
        return skip("there is no shared folder to look at", "see job.shared-folder")
    if shared.status == "pass" and judge_clock(raw).status in ("warn", "fail"):
        return skip("the nodes' own clocks differ, and so do the times of their files", "see job.clock")
    return shared if shared.status != "pass" else stage(raw, "shared-folder", _mtime)


def _mtime(account: Account, roll: Mapping[int, Any]) -> Outcome:
    skews = {rank: float(said["skew"]) for rank, said in roll.items()}
    if not all(map(math.isfinite, skews.values())):
        return unreadable("the times of files", skews)
    worst = max(skews, key=lambda rank: abs(skews[rank]))
    off = abs(skews[worst])
    status: Status = "warn" if off > SKEW else "pass"
    expected = f"within {SKEW:g} s of each node's clock"
    if status == "pass":
        return Outcome(status=status, observed=f"times of files are within {off:.1g} s", expected=expected)
    way = "ahead of" if skews[worst] > 0 else "behind"  # mutation: equivalent, because it is more than SKEW off here
    observed = f"files that {account.name(worst)} writes are {off:.3g} s {way} its clock"
    remedy = "synchronise the file server's and that node's clock: chronyc makestep on both"
    return Outcome(status=status, observed=observed, expected=expected, remedy=remedy)


# The nodes meet in the first check that runs; the others read what came of it. Importing torch may take long, cold.
MEET = most(wait_seconds()) + 40


def _check(name: str, title: str, judge: Callable[[Any], Outcome], why: str, rule: str) -> Check:
    """One check of the one meeting."""
    return Check(
        id=f"job.{name}",
        title=title,
        measure=measure,
        judge=judge,
        deadline=MEET,
        child="job",
        levels=("job",),
        why=why,
        rule=rule,
    )


CHECKS = (
    _check(
        "world-size",
        "the nodes that came",
        judge_world,
        "A rank that never starts makes all others wait for the rendezvous to time out: minutes of an idle "
        "cluster, then `DistNetworkError: The client socket has timed out`, which does not say who is "
        "missing.",
        "Fails when a node has not come within 20 s (TRACKBED_JOB_WAIT), when two came as the same node, or "
        "when they were told different numbers of nodes; names them.",
    ),
    _check(
        "same-versions",
        "the same versions on all nodes",
        judge_versions,
        "One node with another NCCL, torch or driver hangs at the first collective, or trains to slightly "
        "other weights and says nothing.",
        "Fails when a component of the release, the NVIDIA driver, Python or MPI differs; warns when only "
        "another package, the kernel or Trackbed's own revision does. Names the node, the component and both "
        "values.",
    ),
    _check(
        "clock",
        "the nodes' clocks",
        judge_clock,
        "torchrun takes a node for dead whose heartbeat, a wall-clock time, is 15 s old; Slurm's munge says "
        "`Munge decode failed: Rewound credential`. Measured by round trips, so the network's delay is not "
        "taken for an offset.",
        "Warns above 1 s between any two nodes, fails above 5 s; names the node that is off.",
    ),
    _check(
        "reachability",
        "every pair of nodes",
        judge_reachability,
        "gloo and NCCL connect every pair on ports that the kernel chooses: a firewall that lets only "
        "MASTER_PORT through gives `Gloo connectFullMesh failed`, or a hang. 64 KiB there and back also show "
        "an MTU that is too large.",
        "Fails when a node cannot connect to another one on an ephemeral TCP port, or 64 KiB do not come "
        "back; names the pair.",
    ),
    _check(
        "all-reduce",
        "a sum over all nodes",
        judge_all_reduce,
        "It is what training does all the time. A host name that resolves to 127.0.0.1 passes every ping and "
        "ends here: `Unable to resolve hostname to a (local) address`, then a time-out.",
        "Fails when an element is wrong, when gloo cannot connect, or when a node is silent for 30 s, by "
        "name. The bandwidth by message size is in the evidence. Not tried where a node's network.host-name fails: "
        "skipped there, and a failure that names it on the others.",
    ),
    _check(
        "shared-folder",
        "one folder for runs",
        judge_shared_folder,
        "Every rank writes its shard into one checkpoint folder. Where each node has a folder of its own, the"
        " run trains well and cannot be resumed.",
        "Fails when a file of node 0 is not seen by every node within 30 s (9 s at least, when the nodes came far "
        "apart), or theirs not by node 0. Skips where TRACKBED_RUNS_SHARED=no says that it is not meant to be shared.",
    ),
    _check(
        "mtime",
        "times of shared files",
        judge_mtime,
        "Where the file server's clock is ahead, ninja rebuilds DeepSpeed's operators at every start: `ninja:"
        " warning: file has modification time in the future`, and ranks wait for each other's build.",
        "Warns when a file's time is more than 2 s off the clock of the node that wrote it.",
    ),
)

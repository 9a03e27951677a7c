"""The rules of job.*: what the nodes said to each other, the status it must give, what it must say."""

from __future__ import annotations

import math
from typing import Any

NAN = math.nan
SAME = {"torch": "2.13.0", "release": "26.11", "kernel": "6.1.0", "package rich": "15.0", "nvidia driver": "580.95.05"}
FIRST, SECOND = "node 0 (alpha)", "node 1 (beta)"
HOSTS = ("alpha", "beta", "gamma")
IDS = ("world-size", "same-versions", "clock", "reachability", "all-reduce", "shared-folder", "mtime")
LOST = {"nodes": 2, "rank": 1, "store": "alpha:29500", "wait": 20.0, "names": ["alpha", "beta"], "skipped": {}}
NO_WAY = "GLOO_SOCKET_IFNAME=eth9, but eth9 is no interface that is up"
FIGURES = {"4096": [0.5, 0.4, 0.6], "33554432": [2.0, 1.0, 3.0]}


def account(count: int = 2, **changes: Any) -> dict[str, Any]:
    """What every node knows when all went well."""
    return {
        "nodes": count,
        "rank": 0,
        "store": "alpha:29500",
        "names": [],
        "wait": 20.0,
        "phase": "done",
        "skipped": {},
        "facts": {rank: fact(rank, nodes=count) for rank in range(count)},
        "meeting": {"seconds": 1.25, "twice": ""},
        "versions": {"h0": SAME},
        "clock": offsets(*([0.0] * count))["clock"],
        "reachability": {rank: {"cannot": {}} for rank in range(count)},
        "all-reduce": {rank: {"wrong": 0, "runs": FIGURES} for rank in range(count)},
        "shared-folder": {rank: {"folder": "/runs", "seen": 0.1 * rank, "skew": 0.0} for rank in range(count)},
        "returned": {rank: {"seen": True} for rank in range(count)},
        **changes,
    }


def fact(rank: int, **changes: Any) -> dict[str, Any]:
    return {"host": HOSTS[rank % 3] if rank < 3 else f"n{rank}", "nodes": 2, "hash": "h0", **changes}


def offsets(*seconds: Any) -> dict[str, Any]:
    return {"clock": {rank: {"offset": value, "within": 0.001} for rank, value in enumerate(seconds)}}


def versions(*changes: dict[str, Any]) -> dict[str, Any]:
    """A node for each, whose versions differ from the usual ones in this; None is a version it has not."""
    tables = {
        f"h{rank}": {name: value for name, value in {**SAME, **change}.items() if value is not None}
        for rank, change in enumerate(changes)
    }
    facts = {rank: fact(rank, hash=f"h{rank}", nodes=len(changes)) for rank in range(len(changes))}
    return account(len(changes), facts=facts, versions=tables)


def cannot(*pairs: tuple[int, int], count: int = 2) -> dict[str, Any]:
    roll: dict[int, Any] = {rank: {"cannot": {}} for rank in range(count)}
    for one, other in pairs:
        roll[one]["cannot"][str(other)] = "10.0.0.2 port 41000: connection refused"
    return account(count, reachability=roll)


def sums(second: dict[str, Any]) -> dict[str, Any]:
    return account(**{"all-reduce": {0: {"wrong": 0, "runs": FIGURES}, 1: second}})


def faulty(*faults: str) -> dict[str, Any]:
    """What is known of each node before gloo is tried."""
    return account(**{"all-reduce": {rank: {"fault": fault} for rank, fault in enumerate(faults)}})


def sized(count: int) -> dict[str, Any]:
    return account(**{"all-reduce": {rank: {"wrong": 0, "runs": {str(count): [1.0]}} for rank in range(2)}})


def folder(second: Any, returned: Any = None, **first: Any) -> dict[str, Any]:
    roll = {0: {"folder": "/runs", "seen": 0.0, "skew": 0.0, **first}, 1: {"folder": "/other", **second}}
    return account(**{"shared-folder": roll}, returned=returned or {0: {"seen": True}, 1: {"seen": True}})


def lost(phase: str, **changes: Any) -> dict[str, Any]:
    return {**LOST, "phase": phase, "lost": "connection refused", **changes}


def silent(phase: str) -> dict[str, Any]:
    """Node 1 fell silent in this phase, and the ones after it are without it."""
    known = account()
    return {**known, phase: {**known[phase], 1: None}}


ALONE = account(facts={0: fact(0), 1: None}, clock=offsets(0.0)["clock"], reachability={0: {"cannot": {}}})
MISSING = {**ALONE, "names": ["alpha", "beta"], "skipped": {"all-reduce": [1]}, "all-reduce": None}
UNSHARED = {**account(), "skipped": {"shared-folder": []}, "shared-folder": None}
MANY = {rank: fact(rank, nodes=9) if rank < 1 else None for rank in range(9)}
PHASES = ("clock", "reachability", "all-reduce", "shared-folder")

RULES: list[tuple[str, Any, str, str]] = [
    *((f"job.{name}", None, "error", "could not be read") for name in IDS),
    *(
        (f"job.{name}", garbage, "error", "makes no sense")
        for name in IDS
        for garbage in ("garbage", {}, {"nodes": "2"})
    ),
    *((f"job.{name}", {"nodes": 1}, "skip", "one node") for name in IDS),
    *((f"job.{name}", account(), "pass", "") for name in IDS),
    # --- a launcher's variables that make no sense: one failure, and the rest has nothing to add ---
    ("job.world-size", {"nodes": 0, "error": "NODE_RANK is not set"}, "fail", "NODE_RANK is not set"),
    *((f"job.{name}", {"nodes": 0, "error": "no"}, "skip", "did not get that far") for name in IDS[1:]),
    # --- node 0 cannot be reached ---
    (
        "job.world-size",
        lost("rendezvous"),
        "fail",
        f"{SECOND} does not reach node 0 at alpha:29500 within 20 s: connection",
    ),
    ("job.world-size", lost("rendezvous", rank=0), "fail", f"{FIRST} cannot listen on alpha:29500"),
    ("job.world-size", lost("rendezvous", names=[]), "fail", "node 1 does not reach"),
    ("job.world-size", lost("rendezvous", names=[], host="beta"), "fail", f"{SECOND} does not reach"),
    ("job.world-size", lost("rendezvous", names=[], host="beta", rank=0), "fail", "node 0 (beta) cannot listen"),
    ("job.world-size", account(facts={0: fact(0)}, host="alpha"), "fail", "; node 1 did not come"),
    ("job.world-size", lost("rendezvous", names=["alpha"]), "fail", "node 1 does not reach"),
    ("job.world-size", lost("facts"), "fail", f"{SECOND} lost node 0 at alpha:29500: connection refused"),
    *((f"job.{name}", lost("rendezvous"), "skip", "did not get that far") for name in IDS[1:]),
    *((f"job.{name}", lost("facts"), "skip", "did not get that far") for name in IDS[1:]),
    *((f"job.{phase}", lost(phase), "fail", f"{SECOND} lost node 0") for phase in PHASES),
    *((f"job.{phase}", lost("somewhere"), "skip", "did not get that far") for phase in PHASES),
    *((f"job.{phase}", {**account(), phase: None}, "error", "could not be read") for phase in PHASES),
    *((f"job.{phase}", {**account(), phase: {}}, "error", "makes no sense") for phase in PHASES),
    *((f"job.{phase}", {**account(), phase: {0: {}, 1: 3}}, "error", "makes no sense") for phase in PHASES),
    *((f"job.{phase}", silent(phase), "fail", f"{SECOND} had come, and then said nothing more") for phase in PHASES),
    ("job.mtime", lost("shared-folder"), "skip", "no shared folder"),
    ("job.mtime", silent("shared-folder"), "skip", "no shared folder"),
    ("job.mtime", {**account(), "shared-folder": None}, "error", "could not be read"),
    # --- who came ---
    ("job.world-size", account(3), "pass", "3 of 3 nodes came in 1.2 s"),
    ("job.world-size", MISSING, "fail", "1 of 2 nodes came; node 1 (beta) did not come within 20 s"),
    (
        "job.world-size",
        account(9, facts=MANY),
        "fail",
        "1 of 9 nodes came; node 1, node 2, node 3, node 4, node 5, node 6 and 2",
    ),
    ("job.world-size", account(7, facts={0: fact(0, nodes=7)}), "fail", "node 5, node 6 did not come"),
    (
        "job.world-size",
        account(meeting={"seconds": 1, "twice": "node 1 on x"}),
        "fail",
        "node 1 on x came a second time",
    ),
    ("job.world-size", account(facts={0: fact(0), 1: fact(1, nodes=3)}), "fail", f"{SECOND} was told 3 nodes"),
    ("job.world-size", account(meeting=None), "error", "makes no sense"),
    ("job.world-size", account(facts={0: {}, 1: {}}), "error", "makes no sense"),
    # --- versions ---
    ("job.same-versions", account(), "pass", "5 versions are the same on 2 nodes"),
    ("job.same-versions", versions({}, {"torch": "2.1"}), "fail", f"torch: {SECOND} has 2.1, {FIRST} 2.13.0"),
    ("job.same-versions", versions({}, {"torch": None}), "fail", f"torch: {SECOND} has none, {FIRST} 2.13.0"),
    ("job.same-versions", versions({"torch": "2"}, {}, {}), "fail", "torch: node 0 (alpha) has 2, 2 others 2.13.0"),
    ("job.same-versions", versions({}, {"nvidia driver": "570.1"}), "fail", "nvidia driver: node 1 (beta) has 570.1"),
    ("job.same-versions", versions({}, {"kernel": "5.1"}), "warn", "kernel: node 1 (beta) has 5.1"),
    (
        "job.same-versions",
        versions({}, {"package rich": "1", "trackbed revision": "x"}),
        "warn",
        "package rich: node 1",
    ),
    ("job.same-versions", versions({}, {"kernel": "5.1", "torch": "1"}), "fail", "torch: node 1 (beta) has 1"),
    (
        "job.same-versions",
        versions({}, {f"p{n}": "1" for n in range(6)}),
        "fail",
        "p5: node 1 (beta) has 1, node 0 (alpha) none",
    ),
    ("job.same-versions", versions({}, {f"p{n}": "1" for n in range(8)}), "fail", "none and 2 more"),
    ("job.same-versions", ALONE, "skip", "no other node came"),
    ("job.same-versions", account(versions={"h0": {}}), "error", "makes no sense"),
    ("job.same-versions", account(versions={}), "error", "makes no sense"),
    # --- clocks ---
    ("job.clock", account(**offsets(0.0, 1.0)), "pass", "2 clocks within 1 s"),
    ("job.clock", account(**offsets(0.0, 1.01)), "warn", f"{SECOND} is 1.01 s ahead of {FIRST}"),
    ("job.clock", account(**offsets(0.0, -5.0)), "warn", f"{SECOND} is 5 s behind {FIRST}"),
    ("job.clock", account(**offsets(0.0, 5.01)), "fail", f"{SECOND} is 5.01 s ahead of {FIRST}"),
    ("job.clock", account(3, **offsets(0.0, 7.0, 7.1)), "fail", "node 0 (alpha) is 7 s behind the others"),
    ("job.clock", account(3, **offsets(0.0, 0.2, -3600.0)), "fail", "node 2 (gamma) is 3.6e+03 s behind the others"),
    ("job.clock", account(3, **offsets(0.0, -0.6, 0.6)), "warn", "s behind the others"),
    ("job.clock", account(3, **offsets(0.0, 0.7, -0.6)), "warn", "node 1 (beta) is 0.7 s ahead of the others"),
    ("job.clock", account(**offsets(0.0)), "skip", "no other node came"),
    ("job.clock", account(**offsets(0.0, NAN)), "error", "makes no sense"),
    ("job.clock", account(**offsets(0.0, "late")), "error", "makes no sense"),
    # --- every pair ---
    ("job.reachability", account(3), "pass", "6 of 6 connections"),
    (
        "job.reachability",
        cannot((1, 0)),
        "fail",
        f"{SECOND} does not reach {FIRST}: 10.0.0.2 port 41000: connection refused",
    ),
    ("job.reachability", cannot((0, 2), (2, 1), count=3), "fail", "node 2 (gamma) does not reach node 1 (beta)"),
    (
        "job.reachability",
        cannot(*((0, n) for n in range(1, 7)), count=9),
        "fail",
        "node 0 (alpha) does not reach node 6 (n6)",
    ),
    ("job.reachability", cannot(*((0, n) for n in range(1, 9)), count=9), "fail", "refused and 2 more"),
    ("job.reachability", ALONE, "skip", "no other node came"),
    # --- the sum ---
    ("job.all-reduce", account(), "pass", "right sums on 2 nodes, 2 GB/s at 32 MiB"),
    ("job.all-reduce", sums({"wrong": 0, "runs": {**FIGURES, "33554432": [0.5]}}), "pass", "0.5 GB/s at 32 MiB"),
    ("job.all-reduce", sums({"wrong": 3, "runs": FIGURES}), "fail", f"{SECOND} got 3 wrong elements"),
    (
        "job.all-reduce",
        sums({"error": "Gloo connectFullMesh failed"}),
        "fail",
        f"{SECOND}: Gloo connectFullMesh failed",
    ),
    ("job.all-reduce", sums({"wrong": 0, "runs": {}}), "error", "makes no sense"),
    ("job.all-reduce", {**account(), "all-reduce": {0: {"wrong": 0, "runs": {}}}}, "error", "makes no sense"),
    ("job.all-reduce", sums({"wrong": "few", "runs": FIGURES}), "error", "makes no sense"),
    ("job.all-reduce", sized(1048576), "pass", "1 GB/s at 1 MiB"),
    ("job.all-reduce", sized(1048575), "pass", "1 GB/s at 1023 KiB"),
    ("job.all-reduce", MISSING, "skip", "node 1 (beta) is missing"),
    ("job.all-reduce", faulty("", NO_WAY), "fail", f"{SECOND}: {NO_WAY}"),
    ("job.all-reduce", faulty(NO_WAY, ""), "skip", f"not tried: {NO_WAY}"),
    ("job.all-reduce", faulty(NO_WAY, NO_WAY), "skip", f"not tried: {NO_WAY}"),
    # --- one folder ---
    ("job.shared-folder", account(3), "pass", "/runs is one folder for 3 nodes, seen within 0.2 s"),
    ("job.shared-folder", folder({"seen": 30.0, "skew": 0}), "pass", "within 30.0 s"),
    (
        "job.shared-folder",
        folder({"seen": 30.1, "skew": 0}),
        "fail",
        f"{SECOND} does not see in /other what {FIRST} writes",
    ),
    ("job.shared-folder", folder({"seen": None}), "fail", f"{SECOND} does not see in /other what {FIRST} writes"),
    ("job.shared-folder", folder({"seen": NAN}), "fail", f"{SECOND} does not see"),
    (
        "job.shared-folder",
        folder({"seen": None, "error": "EACCES"}),
        "fail",
        f"{SECOND} cannot write in /other: EACCES",
    ),
    (
        "job.shared-folder",
        folder({"seen": None}, seen=None, error="EROFS"),
        "fail",
        f"{FIRST} cannot write in /runs: EROFS",
    ),
    (
        "job.shared-folder",
        folder({"seen": 1.0}, {1: {"seen": False}}),
        "fail",
        f"{FIRST} does not see what {SECOND} writes",
    ),
    ("job.shared-folder", folder({"seen": None}, {1: {"seen": False}}), "fail", "does not see in /other"),
    ("job.shared-folder", {**account(), "returned": None}, "error", "makes no sense"),
    ("job.shared-folder", UNSHARED, "skip", "not meant to be shared (TRACKBED_RUNS_SHARED=no)"),
    # --- its clock ---
    ("job.mtime", account(), "pass", "within 0 s"),
    ("job.mtime", folder({"seen": 0.1, "skew": 2.0}), "pass", "within 2 s"),
    (
        "job.mtime",
        folder({"seen": 0.1, "skew": 2.01}),
        "warn",
        f"files that {SECOND} writes are 2.01 s ahead of its clock",
    ),
    ("job.mtime", folder({"seen": 0.1, "skew": -9.0}), "warn", f"files that {SECOND} writes are 9 s behind its clock"),
    ("job.mtime", folder({"seen": 0.1, "skew": NAN}), "error", "makes no sense"),
    ("job.mtime", folder({"seen": 0.1, "skew": "old"}), "error", "makes no sense"),
    ("job.mtime", folder({"seen": None}), "skip", "no shared folder"),
    ("job.mtime", {**folder({"seen": 0.1, "skew": 9.0}), **offsets(0.0, 9.0)}, "skip", "the nodes' own clocks differ"),
    ("job.mtime", {**folder({"seen": 0.1, "skew": 3.0}), **offsets(0.0, 3.0)}, "skip", "the nodes' own clocks differ"),
    ("job.mtime", UNSHARED, "skip", "not meant to be shared"),
]
TEXTS: list[tuple[str, Any, str, str]] = [
    ("job.world-size", {"nodes": 0, "error": "x"}, "remedy", "srun --ntasks-per-node=1"),
    ("job.world-size", lost("rendezvous", rank=0), "remedy", "MASTER_PORT="),
    ("job.world-size", lost("rendezvous"), "remedy", "firewall"),
    ("job.world-size", MISSING, "remedy", "TRACKBED_JOB_WAIT"),
    ("job.world-size", MISSING, "evidence", r"^node 0 \(alpha\)$"),
    ("job.same-versions", versions({}, {"kernel": "5.1", "torch": "1"}), "evidence", "kernel: node 1 .* torch: node 1"),
    ("job.clock", account(**offsets(0.0, 9.0)), "remedy", "chronyc makestep"),
    ("job.clock", account(**offsets(0.0, 9.0)), "evidence", r"node 1 \(beta\) \+9.0000 s"),
    ("job.clock", account(), "remedy", "^$"),
    ("job.reachability", cannot(*((0, n) for n in range(1, 9)), count=9), "evidence", r"node 8 \(n8\)"),
    ("job.reachability", cannot(*((0, n) for n in range(1, 7)), count=9), "observed", r"node 6 \(n6\): .* refused$"),
    ("job.reachability", cannot(*((0, n) for n in range(1, 8)), count=9), "observed", r"node 6 \(n6\): .* and 1 more$"),
    ("job.shared-folder", folder({"seen": None}, seen=None, error="EROFS"), "observed", "EROFS$"),
    ("job.all-reduce", faulty("", NO_WAY), "remedy", "on that node, do what its network.host-name says"),
    ("job.all-reduce", faulty(NO_WAY, ""), "remedy", "do what network.host-name says"),
    ("job.all-reduce", sums({"error": "x"}), "remedy", "GLOO_SOCKET_IFNAME"),
    ("job.all-reduce", sums({"wrong": 1, "runs": FIGURES}), "remedy", "take that node out"),
    ("job.all-reduce", account(), "evidence", '"4 KiB": {"value": 0.5, "unit": "GB/s", "better": "higher"}'),
    ("job.shared-folder", folder({"seen": None}), "remedy", "TRACKBED_RUNS_SHARED=no"),
]

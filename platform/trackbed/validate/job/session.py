"""A job's nodes meet, tell each other what they are, and try what a job needs. One account comes of it.

Each phase ends with a roll: what every node that is still there has to say, read by node 0 and published by it.
Verdicts are made from rolls alone, so every node prints the same. A node that is silent in a phase stands in that
phase's roll as None and takes no part in the next ones.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from trackbed.validate import Context
from trackbed.validate.job import ring
from trackbed.validate.job.facts import facts
from trackbed.validate.job.folder import LIMIT, Folder
from trackbed.validate.job.place import Place, place
from trackbed.validate.job.wire import Lost, Wire, within

WAIT = "TRACKBED_JOB_WAIT"
# Node 0 gives up on the others a little before they give up on node 0.
MARGIN = 3.0
# Seconds: of all phases after the nodes have met, and of each.
TOTAL = LIMIT + 2 * MARGIN
CLOCK, REACH, REDUCE, FAREWELL = 10.0, 12.0, 30.0, 4.0
ROUNDS = 5
# Seconds of it all, as the node that came first counts them. What was spent on waiting is taken from the phases, which
# need theirs only where something is wrong; they, and node 0's own wait for who comes after it, keep the least.
BUDGET, LEAST_PHASES, LEAST_WAIT = 48.0, 15.0, 5.0


def wait_seconds(environment: Mapping[str, str] = os.environ) -> float:
    """How long the nodes wait for each other; 20 s, or what the variable says."""
    with suppress(ValueError):
        return max(1.0, float(environment.get(WAIT, "")))
    return 20.0


def attend(context: Context, environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """This node's account of the job; it never raises, and takes no longer than `most`, beside importing torch."""
    try:
        here = place(environment)
    except ValueError as error:
        return {"nodes": 0, "error": str(error)}
    if here.nodes == 1:
        return {"nodes": 1}
    import torch.distributed  # noqa: F401 - the seconds that this takes are not the network's

    session = Session(here, context, wait_seconds(environment))
    thread = threading.Thread(target=session.run, daemon=True)
    thread.start()
    thread.join(most(session.wait))
    if thread.is_alive():
        session.account["lost"] = "it takes longer than it may"
    return dict(session.account)


def budget(wait: float) -> float:
    """Seconds from the first one's coming to the last phase's end; a longer wait is added."""
    return max(BUDGET, wait + LEAST_WAIT + LEAST_PHASES + 2 * MARGIN)


def most(wait: float) -> float:
    """Seconds that all of it takes at most."""
    return budget(wait) + MARGIN + FAREWELL


class Session:
    """One node's part. `account` is what it knows so far: whoever looks at it after the time is up finds that."""

    def __init__(self, here: Place, context: Context, wait: float) -> None:
        self.here, self.context, self.wait = here, context, wait
        self.alive = list(range(here.nodes))
        self.began = time.monotonic()
        self.end = self.looked = self.limit = 0.0
        self.account: dict[str, Any] = {
            "nodes": here.nodes,
            "rank": here.rank,
            "host": socket.gethostname(),
            "store": f"{here.address}:{here.port}",
            "names": list(here.names),
            "wait": wait,
            "phase": "rendezvous",
            "skipped": {},
        }

    def run(self) -> None:
        """All phases; what ends it early is in the account."""
        try:
            self._run()
        except Lost as error:
            self.account["lost"] = str(error)
        except Exception as error:  # noqa: BLE001 - this is a thread: what it does not say is never known
            self.account["error"] = " ".join(f"{type(error).__name__}: {error}".split())[:300]

    def _run(self) -> None:
        self.wire = Wire(self.here, self.wait)
        with ring.Door() as door, Folder(self.here.rank, self.context.output) as folder:
            self._meet(door)
            self.limit = self.account["meeting"]["left"] - 2 * MARGIN
            self.looked = time.monotonic()
            folder.look(self.account["facts"][0], self.limit)
            self._phase("clock", self._clock)
            self._phase("reachability", lambda: self._reach(door))
            self._phase("all-reduce", self._reduce)
            self._phase("shared-folder", lambda: self._shared(folder))
            self._part()

    # --- the phases ---

    def _meet(self, door: ring.Door) -> None:
        """Everybody comes and says what it is."""
        started = time.monotonic()
        self.account["phase"] = "facts"
        self.wire.put(f"waited/{self.here.rank}", repr(started - self.began))
        mine = facts(self.context, self.here.nodes) | {"doors": door.addresses(self.here)}
        self.wire.put(f"versions/{mine['hash']}", json.dumps(mine.pop("versions")))
        if self.wire.add(f"came/{self.here.rank}") > 1:
            self.wire.put("twice", f"node {self.here.rank} on {mine['host']}")
            raise Lost(f"another process has come as node {self.here.rank}")
        if self.here.rank == 0:
            mine["token"] = f"{os.getpid()}-{time.time_ns()}" if mine["shared"] else ""
        self.wire.put(f"facts/{self.here.rank}", json.dumps(mine))
        # One message, so that a node has all of it or nothing.
        met = self._agree("meeting", self.wait + MARGIN, lambda: self._meeting(started))
        self.account |= {name: met[name] for name in ("meeting", "versions")}
        self._note("facts", met["facts"])
        self.end = time.monotonic() + self.account["meeting"]["left"] - MARGIN

    def _meeting(self, started: float) -> dict[str, Any]:
        """Who has come, what they run, whether two came as one, and how long is left: what node 0 says first."""
        # Who came before node 0 has waited already, and all of that is part of the wait.
        before = max(float(self.wire.take(f"waited/{rank}", started) or 0) for rank in self.alive)
        said = self._words("facts", max(LEAST_WAIT, self.wait - before))
        spent = before + time.monotonic() - started
        hashes = sorted({each["hash"] for each in said.values() if each})
        texts = {each: self.wire.take(f"versions/{each}", time.monotonic()) for each in hashes}
        twice = self.wire.take("twice", time.monotonic())
        return {
            "facts": said,
            "versions": {each: json.loads(text or "{}") for each, text in texts.items()},
            "meeting": {
                "seconds": time.monotonic() - started,
                "twice": twice or "",
                "left": min(TOTAL, max(LEAST_PHASES, budget(self.wait) - spent)),
            },
        }

    def _clock(self) -> None:
        """Node 0 asks each node for its time, and knows how long the answer took."""
        for turn in range(ROUNDS if self.here.rank else 0):
            if self.wire.take(f"ask/{self.here.rank}/{turn}", time.monotonic() + CLOCK) is None:
                break
            self.wire.put(f"time/{self.here.rank}/{turn}", repr(time.time()))
        self._roll("clock", CLOCK, lambda: {rank: self._ask(rank) for rank in self.alive})

    def _ask(self, rank: int) -> dict[str, float] | None:
        """The offset of a node's clock from this one's, in seconds, and how far off it may be; None when it is silent.

        The quickest of a few rounds: half of its time there and back is the most that the offset can be wrong by.
        """
        if rank == self.here.rank:
            return {"offset": 0.0, "within": 0.0}
        best = {"offset": 0.0, "within": float("inf")}
        for turn in range(ROUNDS):
            wall, sent = time.time(), time.monotonic()
            self.wire.put(f"ask/{rank}/{turn}", "")
            said = self.wire.take(f"time/{rank}/{turn}", sent + MARGIN)
            half = (time.monotonic() - sent) / 2
            if said is None:
                return None
            if half < best["within"]:
                best = {"offset": float(said) - (wall + half), "within": half}
        return best

    def _reach(self, door: ring.Door) -> None:
        """Every node calls at every other's door."""
        roll = self.account["facts"]
        doors = {rank: roll[rank]["doors"] for rank in self.alive if rank != self.here.rank}
        if 0 in doors:
            # Where this node has found node 0's store is where it is, whatever node 0 thinks.
            doors[0] = [[self.here.address, doors[0][0][1]], *doors[0]]
        self._gather("reachability", {"cannot": ring.visit(doors)}, REACH)

    def _reduce(self) -> None:
        if gone := sorted(set(range(self.here.nodes)) - set(self.alive)):
            self.account["skipped"]["all-reduce"] = gone
            return
        facts_of = self.account["facts"]
        if any(facts_of[rank]["fault"] for rank in self.alive):
            # gloo would not start there, and the others would wait for it.
            self.account["all-reduce"] = {rank: {"fault": facts_of[rank]["fault"]} for rank in self.alive}
            return
        started = time.monotonic()
        try:
            # gloo keeps to its time limit only once it has connected.
            limit = max(MARGIN, min(REDUCE, self.end - started) - MARGIN)
            mine = within(limit, lambda: ring.all_reduce(self.here, self.wire, limit))
        except Exception as error:  # noqa: BLE001 - whatever a library raises is this node's word
            mine = {"error": " ".join(str(error).split())[:300]}
        self._gather("all-reduce", mine, max(MARGIN, REDUCE - (time.monotonic() - started)))

    def _shared(self, folder: Folder) -> None:
        """Who has seen node 0's file, and whose file node 0 sees."""
        if not self.account["facts"][0]["token"]:
            self.account["skipped"]["shared-folder"] = []
            return
        self._gather("shared-folder", folder.seen(), max(MARGIN, self.looked + self.limit + MARGIN - time.monotonic()))
        self._roll("returned", MARGIN, lambda: {rank: folder.returned(rank) for rank in self.alive})

    def _part(self) -> None:
        """The store is node 0's: it stays until the others have read what they need."""
        self.account["phase"] = "done"
        if self.here.rank:
            self.wire.put(f"bye/{self.here.rank}", "")
            return
        end = time.monotonic() + FAREWELL
        for rank in self.alive[1:]:
            self.wire.take(f"bye/{rank}", end)

    # --- rolls ---

    def _phase(self, name: str, work: Callable[[], None]) -> None:
        """One phase; a node that the others have given up on does nothing more."""
        if self.here.rank not in self.alive:
            raise Lost("the others have gone on without this node")
        self.account["phase"] = name
        work()

    def _gather(self, phase: str, mine: Any, seconds: float) -> dict[int, Any]:
        """Everybody's word; None for who is silent."""
        self.wire.put(f"{phase}/{self.here.rank}", json.dumps(mine))
        return self._roll(phase, seconds, lambda: self._words(phase, seconds))

    def _words(self, phase: str, seconds: float) -> dict[int, Any]:
        end = min(time.monotonic() + seconds, self.end or time.monotonic() + seconds)
        said = {rank: self.wire.take(f"{phase}/{rank}", end) for rank in self.alive}
        return {rank: json.loads(text) if text else None for rank, text in said.items()}

    def _roll(self, phase: str, seconds: float, make: Callable[[], dict[int, Any]]) -> dict[int, Any]:
        return self._note(phase, self._agree(f"roll/{phase}", seconds + MARGIN, make))

    def _note(self, phase: str, raw: Mapping[str, Any]) -> dict[int, Any]:
        """A roll as JSON has it, whose numbers are texts, into the account; who is silent in it is gone."""
        roll = {int(rank): said for rank, said in raw.items()}
        self.account[phase] = roll
        self.alive = [rank for rank in self.alive if roll.get(rank) is not None]
        return roll

    def _agree(self, key: str, seconds: float, make: Callable[[], Any]) -> Any:
        """Something that node 0 makes and all others read."""
        if self.here.rank == 0:
            text = json.dumps(make())
            self.wire.put(key, text)
        else:
            found = self.wire.take(key, time.monotonic() + seconds)
            if found is None:
                raise Lost(f"node 0 says nothing for {seconds:.0f} s")
            text = found
        return json.loads(text)

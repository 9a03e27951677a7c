"""Messages between the nodes of a job, through torch's TCPStore on node 0. Nothing here waits for longer than it says.

A connection that is cut says nothing at all, and a call into the store would then wait for ever: every call has a
time limit of its own, and after one that was late the store is lost.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from typing import Any, TypeVar

from trackbed.validate.job.place import Place

Answer = TypeVar("Answer")
# A store on a busy node answers in milliseconds; this long without an answer, its node or the network is gone.
PATIENCE = 4.0
LONGEST_PAUSE = 0.05


class Lost(Exception):
    """The store cannot be reached, or not any more; the text says why."""


class Wire:
    """What this node says to the others and hears from them. Raises Lost when node 0 cannot be reached."""

    def __init__(self, place: Place, seconds: float) -> None:
        self.where = f"{place.address}:{place.port}"
        self._place = place
        self._dead = ""
        end = time.monotonic() + seconds
        if place.rank:
            knock(place.address, place.port, end)
        self.store = self._connect(server=place.rank == 0, end=end)

    def second(self, seconds: float) -> Any:
        """A connection of its own, for a library that waits as long as it likes."""
        return self._connect(server=False, end=time.monotonic() + seconds)

    def put(self, key: str, text: str) -> None:
        self._within(PATIENCE, lambda: self.store.set(key, text))

    def add(self, key: str) -> int:
        """How many have added to this key, with this one."""
        return int(self._within(PATIENCE, lambda: self.store.add(key, 1)))

    def take(self, key: str, end: float) -> str | None:
        """The text of a key, waited for until `end` (time.monotonic); None when nobody has put it by then."""
        pause = 0.001
        # Not the store's own waiting: when that is late it looks up names for its warning, and without a network that
        # takes ten seconds more.
        while not self._within(PATIENCE, lambda: self.store.check([key])):
            if time.monotonic() >= end:
                return None
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        return bytes(self._within(PATIENCE, lambda: self.store.get(key))).decode()

    def _connect(self, *, server: bool, end: float) -> Any:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        left = max(0.5, end - time.monotonic())
        # Node 0 meets itself on its loopback: that stays up when its network goes.
        address = "127.0.0.1" if self._place.rank == 0 else self._place.address
        options: Any = {"is_master": server, "wait_for_workers": False, "timeout": timedelta(seconds=left)}
        return self._within(left + PATIENCE, lambda: TCPStore(address, self._place.port, **options))

    def _within(self, seconds: float, call: Callable[[], Answer]) -> Answer:
        """What a call into the store gives; one that is late or fails is the last one."""
        if self._dead:
            raise Lost(self._dead)
        try:
            return within(seconds, call)
        except Exception as error:
            self._dead = _cause(error)
            raise Lost(self._dead) from error


def within(seconds: float, call: Callable[[], Answer]) -> Answer:
    """What a call gives or raises; TimeoutError when it is late, and then its thread is left behind."""
    done: list[Answer] = []
    failed: list[Exception] = []

    def work() -> None:
        try:
            done.append(call())
        except Exception as error:  # noqa: BLE001 - it is raised again by the thread that asked
            failed.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    if failed:
        raise failed[0]
    if not done:
        raise TimeoutError(f"no answer within {seconds:.0f} s")
    return done[0]


def knock(address: str, port: int, end: float) -> None:
    """Wait until something listens there; Lost, with the reason of the last try, when nothing does by `end`."""
    while True:
        try:
            with closing(socket.create_connection((address, port), timeout=2)):
                return
        except OSError as error:
            said = _named(error)
        if time.monotonic() >= end:
            raise Lost(said)
        time.sleep(0.1)


def _named(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return "its name does not resolve"
    return "no answer" if isinstance(error, TimeoutError) else (error.strerror or str(error)).lower()


def _cause(error: Exception) -> str:
    """The first line of what torch says; it appends a C++ stack."""
    text = str(error).strip()
    if "EADDRINUSE" in text:
        return "that port is in use on node 0"
    return (text.splitlines() or [type(error).__name__])[0][:200]

"""Whether nodes reach each other: every pair over TCP, and a sum over all of them by gloo."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from datetime import timedelta
from types import TracebackType
from typing import Any

import psutil

from trackbed.validate import MIB
from trackbed.validate.job.place import Place
from trackbed.validate.job.wire import Wire

# Larger than any network's packet: where only small ones pass (an MTU that is too large), this one does not.
PAYLOAD = bytes(range(256)) * 256
VISITS_AT_ONCE = 32
CONNECT, EXCHANGE = 3.0, 3.0
SIZES = (4096, 256 * 1024, 4 * MIB, 32 * MIB)
REPEATS = 5


class Door:
    """An ephemeral port that gives back what it is sent."""

    def __init__(self) -> None:
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        self._listener = socket.create_server(("", 0), family=family, dualstack_ipv6=both, backlog=512)

    def __enter__(self) -> Door:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._listener.close()

    def addresses(self, here: Place) -> list[list[Any]]:
        """Where others may find this door: the address this node uses towards node 0; on node 0 all that it has."""
        port = self._listener.getsockname()[1]
        if here.rank:
            return [[_towards(here.address, here.port), port]]
        return [[address, port] for address in _own_addresses()] or [["127.0.0.1", port]]

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                caller, _ = self._listener.accept()
                threading.Thread(target=_echo, args=(caller,), daemon=True).start()


def visit(doors: Mapping[int, Sequence[Sequence[Any]]]) -> dict[str, str]:
    """The nodes whose door does not answer rightly, with the reason; each may have several addresses."""
    with ThreadPoolExecutor(min(VISITS_AT_ONCE, len(doors) or 1)) as pool:
        said = pool.map(_first_that_answers, doors.values())
        return {str(rank): why for rank, why in zip(doors, said, strict=True) if why}


def _first_that_answers(addresses: Sequence[Sequence[Any]]) -> str:
    """Empty when one answers, else what is wrong with the first."""
    reasons = []
    for address, port in addresses[:3]:
        if not (why := _call(address, port)):
            return ""
        reasons.append(why)
    return reasons[0] if reasons else "it has no address"


def _call(address: str, port: int) -> str:
    try:
        connection = socket.create_connection((address, port), timeout=CONNECT)
    except OSError as error:
        said = "no answer" if isinstance(error, TimeoutError) else (error.strerror or str(error)).lower()
        return f"{address} port {port}: {said}"
    with closing(connection):
        try:
            connection.settimeout(EXCHANGE)
            connection.sendall(struct.pack("!I", len(PAYLOAD)) + PAYLOAD)
            if _receive(connection, len(PAYLOAD)) == PAYLOAD:
                return ""
        except OSError:
            return f"{address} port {port}: it connects, but {len(PAYLOAD)} bytes do not come back (MTU?)"
    return f"{address} port {port}: something else answers there"


def _echo(caller: socket.socket) -> None:
    with closing(caller), suppress(OSError):
        caller.settimeout(2 * EXCHANGE)
        (length,) = struct.unpack("!I", _receive(caller, 4).ljust(4, b"\0"))
        caller.sendall(_receive(caller, min(length, len(PAYLOAD))))


def _receive(connection: socket.socket, length: int) -> bytes:
    """So many bytes, or fewer when the other side closes. Raises OSError when they do not come in time."""
    found = bytearray()
    while len(found) < length and (chunk := connection.recv(length - len(found))):
        found += chunk
    return bytes(found)


def _towards(address: str, port: int) -> str:
    """This node's own address on the way to another; nothing is sent."""
    family, kind, _, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_DGRAM)[0]
    with closing(socket.socket(family, kind)) as probe:
        probe.connect(where)
        return str(probe.getsockname()[0])


def _own_addresses() -> list[str]:
    kinds = {socket.AF_INET, socket.AF_INET6}
    found = [each.address for cards in psutil.net_if_addrs().values() for each in cards if each.family in kinds]
    # A link-local address means nothing without the name of this machine's interface.
    return [address for address in found if not address.startswith(("127.", "::1", "fe80"))]


def all_reduce(here: Place, wire: Wire, seconds: float) -> dict[str, Any]:
    """Sum over all nodes by gloo: wrong elements and GB/s a node moves, by message size. Raises what torch raises."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    store = dist.PrefixStore("gloo", wire.second(seconds))  # type: ignore[attr-defined]
    limit = timedelta(seconds=seconds)
    dist.init_process_group("gloo", store=store, rank=here.rank, world_size=here.nodes, timeout=limit)
    end = time.monotonic() + seconds
    wrong, runs = 0, {}
    for size in SIZES:
        started = time.monotonic()
        bad, times = _sums(here, size)
        wrong += bad
        runs[str(size)] = [rate(size, each, here.nodes) for each in times]
        # The next message is 64 times as large at most, and on a slow network not worth the wait.
        if not _all_agree(64 * (time.monotonic() - started) < end - time.monotonic()):
            break
    dist.destroy_process_group()
    return {"wrong": wrong, "runs": runs}


def _sums(here: Place, size: int) -> tuple[int, list[float]]:
    """Wrong elements, and seconds of each repeat; the first of a size also sets up buffers and is not counted."""
    import torch
    import torch.distributed as dist

    # Small whole numbers: their sums over a thousand nodes are exact in 32 bits.
    pattern = torch.arange(size // 4, dtype=torch.int64) % 8
    wanted = (pattern * sum(range(1, here.nodes + 1))).float()
    wrong, times = 0, []
    for _ in range(REPEATS + 1):
        values = (pattern * (here.rank + 1)).float()
        started = time.monotonic()
        dist.all_reduce(values)
        times.append(time.monotonic() - started)
        wrong += int((values != wanted).sum())
    return wrong, times[1:]


def _all_agree(here: bool) -> bool:
    """Whether it holds on every node: no node may leave the others waiting in a sum."""
    import torch
    import torch.distributed as dist

    vote = torch.tensor([float(here)])
    dist.all_reduce(vote, op=dist.ReduceOp.MIN)
    return bool(vote.item())


def rate(size: int, seconds: float, ranks: int) -> float:
    """GB/s that each rank sends and receives in a ring: 2 (n - 1) / n of the message, as nccl-tests' bus bandwidth."""
    return 2 * (ranks - 1) / ranks * size / max(seconds, 1e-9) / 1e9


def size_name(count: int) -> str:
    return f"{count // MIB} MiB" if count >= MIB else f"{count // 1024} KiB"

"""monitor.*: what TensorBoard is given is what it reads back and serves, quickly, and to nobody else."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from trackbed.validate import LEVELS, Check, Context, Outcome, Status, number, skip, unreadable
from trackbed.validate.machine.filesystems import existing
from trackbed.validate.stack.monitor_server import TAG, broken, deferred, judge_server, measure_server

# Values a 32-bit float holds exactly, so that equal means equal.
WRITTEN = [(step, 4.0 - step / 8) for step in range(16)]


SLOW_WRITE = 0.05  # seconds; a step of a small model takes about that long
EVERYWHERE = {"0.0.0.0", "::"}


@dataclass(frozen=True, kw_only=True)
class Roundtrip:
    """(step, value) pairs written and read; `broken` says why TensorBoard's messages cannot be imported."""

    written: list[tuple[int, float]]
    read: list[tuple[int, float]]
    broken: str = ""


def measure_roundtrip(context: Context) -> Roundtrip:
    """Write a curve with torch's SummaryWriter, read it with TensorBoard's own reader."""
    if fault := broken():
        return Roundtrip(written=[], read=[], broken=fault)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with tempfile.TemporaryDirectory(prefix="trackbed-") as folder:
        with SummaryWriter(folder) as writer:
            for step, value in WRITTEN:
                writer.add_scalar(TAG, value, step)
        events = EventAccumulator(folder)
        events.Reload()
        scalars = events.Scalars(TAG) if TAG in events.Tags()["scalars"] else []
        return Roundtrip(written=WRITTEN, read=[(event.step, event.value) for event in scalars])


def judge_roundtrip(trip: Roundtrip) -> Outcome:
    """Equal, in order, none lost."""
    if trip.broken:
        return deferred(trip.broken)
    if not trip.written:
        return unreadable("what was written", trip.written)
    expected = f"{len(trip.written)} values read back equal"
    same = sum(read == wrote for wrote, read in zip(trip.written, trip.read, strict=False))
    if trip.read == trip.written:
        return Outcome(status="pass", observed=expected, expected=expected)
    return Outcome(
        status="fail",
        observed=f"{len(trip.read)} values read, {same} of {len(trip.written)} equal",
        expected=expected,
        evidence=f"read {trip.read[:3]}...",
        remedy="TensorBoard and torch do not agree: make setup, or look at stack.imports",
    )


def measure_log_folder(context: Context, writes: int = 200) -> dict[str, Any]:
    """Seconds that the slowest hundredth of small appends takes where runs log; an error's name, when one cannot."""
    folder = existing(context.output)
    path = folder / f".trackbed-validate-{os.getpid()}"
    seconds = []
    try:
        with path.open("xb") as file:
            for _ in range(writes):
                started = time.perf_counter()
                file.write(b"x" * 256)
                file.flush()
                seconds.append(time.perf_counter() - started)
    except OSError as error:
        return {"folder": str(folder), "error": error.strerror or str(error), "p99": None}
    finally:
        with suppress(OSError):
            path.unlink()
    return {"folder": str(folder), "error": "", "p99": sorted(seconds)[int(0.99 * len(seconds))]}


def judge_log_folder(measured: object) -> Outcome:
    """Measurements are written between steps; a folder that cannot be written at all is storage.commit's to fail."""
    found = measured if isinstance(measured, Mapping) else {}
    if found.get("error"):
        why = f"{found.get('folder')} cannot be written ({found['error']}): see storage.commit"
        return skip(why, "do what storage.commit says")
    slowest = number(found.get("p99"))
    if slowest is None:
        return unreadable("the time of a small write", measured)
    status: Status = "warn" if slowest > SLOW_WRITE else "pass"
    return Outcome(
        status=status,
        observed=f"99 of 100 small writes to {found.get('folder')} take under {1000 * slowest:.2g} ms",
        expected=f"{1000 * SLOW_WRITE:g} ms or less",
        remedy=""
        if status == "pass"
        else "set TRACKBED_RUNS to a local disk, and copy events to the shared one "
        "after the run; look at the server's load and the mount's options (sync, noac)",
    )


def measure_exposed(context: Context, root: Path = Path("/")) -> dict[str, Any]:
    """TensorBoard servers of this user that listen beyond this machine, and whether this is a container."""
    marks = (root / ".dockerenv", root / "run/.containerenv")
    inside = any(mark.exists() for mark in marks) or "KUBERNETES_SERVICE_HOST" in os.environ
    return {"container": inside, "servers": [server for server in _listening() if server["address"] in EVERYWHERE]}


def judge_exposed(measured: object) -> Outcome:
    """TensorBoard has no password; in a container, what is published decides who reaches it, and that is not seen."""
    found = measured if isinstance(measured, Mapping) else {}
    servers = found.get("servers")
    if not isinstance(servers, list) or not isinstance(found.get("container"), bool):
        return unreadable("the listening servers", measured)
    if any(not isinstance(each, Mapping) or number(each.get("port")) is None for each in servers):
        return unreadable("a listening server", servers)
    expected = "TensorBoard on 127.0.0.1: it asks nobody for a password"
    if not servers:
        return Outcome(status="pass", observed="no TensorBoard listens to other machines", expected=expected)
    named = ", ".join(f"process {each.get('pid')} on {each.get('address')}:{each['port']}" for each in servers)
    if found["container"]:
        observed = f"{named}, in a container: who reaches it is decided by -p, which should say 127.0.0.1"
        return Outcome(status="pass", observed=observed, expected=expected)
    return Outcome(
        status="warn",
        observed=f"TensorBoard is open to the network: {named}",
        expected=expected,
        remedy="trackbed monitor --host 127.0.0.1 (for others: ssh -L 6006:127.0.0.1:6006 HOST); in compose "
        "`ports: [127.0.0.1:6006:6006]`; tensorboard without --bind_all and --host 0.0.0.0",
    )


def _listening() -> Iterator[dict[str, Any]]:
    """Listening sockets of processes whose command line names TensorBoard; other users' are not ours to see."""
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if "tensorboard" not in " ".join(process.cmdline()[:4]):
                continue
            look = getattr(process, "net_connections", None) or process.connections
            for socket in look(kind="tcp"):
                if socket.status == psutil.CONN_LISTEN:
                    yield {"pid": process.pid, "address": socket.laddr.ip, "port": socket.laddr.port}


CHECKS = (
    Check(
        id="monitor.tensorboard-roundtrip",
        title="TensorBoard reads what was written",
        measure=measure_roundtrip,
        judge=judge_roundtrip,
        deadline=60,
        levels=LEVELS,
        child="torch",
        why="`Descriptors cannot be created directly.` or `'MessageFactory' object has no attribute 'GetPrototype'`, "
        "at the first measurement; or a curve that is empty.",
        rule="Fails when one value is not read back equal. Skipped when TensorBoard cannot be imported: stack.imports "
        "or stack.drift says why.",
    ),
    Check(
        id="monitor.tensorboard-server",
        title="TensorBoard's server shows a scalar",
        measure=measure_server,
        judge=judge_server,
        deadline=70,
        levels=("job", "deep"),
        why="`No dashboards are active for the current data set.`: the port answers, and the page is empty.",
        rule="Fails when it does not start on a free port, does not show a scalar within 15 s of that, or does not end "
        "at SIGTERM.",
    ),
    Check(
        id="monitor.log-folder",
        title="small writes where runs log",
        measure=measure_log_folder,
        judge=judge_log_folder,
        deadline=30,
        child="host",
        why="No error: every step waits for its line of measurements. A plain SummaryWriter on a full disk ends the "
        "training with `OSError: [Errno 28] No space left on device`; Trackbed's goes quiet instead.",
        rule="Warns when one small write in a hundred takes more than 50 ms. Skipped where nothing can be written, "
        "which storage.commit fails.",
    ),
    Check(
        id="monitor.exposed",
        title="TensorBoard is not open to the network",
        measure=measure_exposed,
        judge=judge_exposed,
        deadline=20,
        child="host",
        why="No error: anyone who reaches the port reads every run's text and curves, for there is no password.",
        rule="Warns when a TensorBoard of this user listens on all addresses outside a container.",
    ),
)

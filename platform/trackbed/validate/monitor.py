"""monitor.*: what TensorBoard is given is what it reads back."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass

from trackbed.validate import Check, Context, Outcome, unreadable

TAG = "validate/loss"
# Values a 32-bit float holds exactly, so that equal means equal.
WRITTEN = [(step, 4.0 - step / 8) for step in range(16)]


@dataclass(frozen=True, kw_only=True)
class Roundtrip:
    """(step, value) pairs written and read."""

    written: list[tuple[int, float]]
    read: list[tuple[int, float]]


def measure_roundtrip(context: Context) -> Roundtrip:
    """Write a curve with torch's SummaryWriter, read it with TensorBoard's own reader."""
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


CHECKS = (
    Check(
        id="monitor.tensorboard-roundtrip",
        title="TensorBoard reads what was written",
        measure=measure_roundtrip,
        judge=judge_roundtrip,
        deadline=60,
        child="torch",
    ),
)

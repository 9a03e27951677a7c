"""What a scan of a data set has found: every fault counted, the first of each severity kept, and the rule over it."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from trackbed.validate import MIB, Outcome, Status, amount, skip, unreadable

LIMIT = 20


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault: which file (a member as SHARD!MEMBER), line from 1 and byte from 0 where there are any."""

    kind: str
    file: str
    what: str
    remedy: str = ""
    line: int | None = None
    offset: int | None = None
    severity: Literal["fail", "warn"] = "fail"

    def __str__(self) -> str:
        line = f":{self.line}" if self.line else ""
        offset = f" (byte {self.offset})" if self.offset is not None else ""
        return f"{self.file}{line}{offset}: {self.what}"


@dataclass(kw_only=True)
class Scan:
    """A scan under way and its result. `until` is a time of the monotonic clock at which it stops."""

    path: Path
    of: str
    limit: int = LIMIT
    until: float = float("inf")
    files: int = 0
    items: int = 0
    bytes: int = 0
    complete: bool = True
    faults: list[Fault] = field(default_factory=list)
    totals: Counter[str] = field(default_factory=Counter)
    missing: str = ""
    """Why there was nothing to scan."""

    def add(self, fault: Fault) -> None:
        self.totals[fault.severity] += 1
        if sum(each.severity == fault.severity for each in self.faults) < self.limit:
            self.faults.append(fault)

    def late(self) -> bool:
        """Whether the time is used up; the scan is then not complete."""
        if time.monotonic() > self.until:
            self.complete = False
        return not self.complete


def judge(scan: object) -> Outcome:
    """Any fault that stops or silently changes a training fails; what is only untidy warns."""
    if not isinstance(scan, Scan):
        return unreadable("the scan", scan)
    if scan.missing:
        return skip(scan.missing, "name the data to have it read: TRACKBED_CHECK_DATA=PATH trackbed validate")
    if not scan.items and not scan.totals["fail"]:
        return unreadable(f"the number of {scan.of}", scan.items)
    parts = "" if scan.complete else "first "
    size = f"{scan.bytes} bytes" if scan.bytes < MIB else amount(scan.bytes)
    read = f"{parts}{scan.items} {scan.of} in {scan.files} files, {size}"
    status: Status = "fail" if scan.totals["fail"] else "warn" if scan.totals["warn"] else "pass"
    expected = f"no fault in any of the {scan.of}"
    if status == "pass":
        more = "" if scan.complete else "; --level deep reads all of it"
        return Outcome(status="pass", observed=f"{read}{more}", expected=expected)
    worst = [fault for fault in scan.faults if fault.severity == status]
    count = scan.totals[status]
    shown = "; ".join(map(str, worst[:3])) + (f"; and {count - 3} more" if count > 3 else "")
    return Outcome(
        status=status,
        observed=f"{count} faults in {read}: {shown}",
        expected=expected,
        evidence="\n".join(f"{fault.kind} {fault}" for fault in scan.faults),
        remedy=f"{worst[0].remedy or 'write that file again'}; the first {scan.limit}: trackbed validate --json",
    )

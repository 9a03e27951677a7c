"""Lines of the kernel log with their age. $TRACKBED_KERNEL_LOG names a file in its place: a mounted kern.log."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from trackbed.validate.hardware.shared import run, text

SECONDS = 5.0
STAMP = re.compile(r"^(?:<\d+>)?\[\s*(\d+\.\d+)\]\s*")


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line; `age` is seconds since it was written, None when the line does not say."""

    age: float | None
    text: str


def read(root: Path = Path("/")) -> list[Line] | None:
    """The log, oldest first; None when it may not be read here (a container without CAP_SYSLOG)."""
    uptime = text(root / "proc/uptime").split()
    up = float(uptime[0]) if uptime else None
    named = os.environ.get("TRACKBED_KERNEL_LOG")
    if named:
        path = Path(named)
        return parse(path.read_text("utf-8", "replace").splitlines(), up) if path.is_file() else None
    done = run(["dmesg"], SECONDS)
    return parse(done.output.splitlines(), up) if done.code == 0 else None


def parse(lines: Iterable[str], uptime: float | None) -> list[Line]:
    """Lines with their age, from the seconds since boot that dmesg writes before each."""
    made = []
    for line in lines:
        match = STAMP.match(line)
        age = max(0.0, uptime - float(match[1])) if match and uptime is not None else None
        made.append(Line(age=age, text=line[match.end() :] if match else line))
    return made


def newest(lines: Iterable[Line], seconds: float) -> list[str]:
    """Texts that are not older; a line without a time counts as new."""
    return [line.text for line in lines if line.age is None or line.age <= seconds]

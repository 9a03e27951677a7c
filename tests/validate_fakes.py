"""A catalogue of checks that misbehave, for the runner's children to load."""

from __future__ import annotations

import ctypes
import os
import subprocess
import time
from typing import Any

from trackbed.errors import Problem, ReleaseError
from trackbed.validate import Check, Context, Outcome


def judge(value: Any) -> Outcome:
    return Outcome(status="pass", observed=str(value))


def fine(context: Context) -> int:
    print('{"not": "a result"}')  # what a library prints must not be taken for a report
    os.system("printf noise")  # no line end: it would spoil the next line
    return context.ranks


def hang(context: Context) -> None:
    stray = subprocess.Popen(["sleep", "600"], start_new_session=True)
    (context.output / "stray").write_text(str(stray.pid), "utf-8")
    time.sleep(600)


def touch(context: Context) -> bool:
    return context.output.exists()


def crash(context: Context) -> None:
    ctypes.string_at(0)


def raise_value(context: Context) -> None:
    raise ValueError("bad\nvalue")


def raise_missing(context: Context) -> None:
    raise ModuleNotFoundError("No module named 'gone'")


def raise_no_temporary_folder(context: Context) -> None:
    raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")


def raise_ours(context: Context) -> None:
    raise ReleaseError(Problem(id="release.unknown", what="there is no release 9", wanted="26.11", remedy="pick one"))


CHECKS = (
    Check(id="fake.first", title="", measure=fine, judge=judge, deadline=20, child="shared"),
    Check(id="fake.hang", title="", measure=hang, judge=judge, deadline=1, child="shared"),
    Check(id="fake.after", title="", measure=fine, judge=judge, deadline=20, child="shared"),
    Check(id="fake.touch", title="", measure=touch, judge=judge, deadline=1, child="touch"),
    Check(id="fake.crash", title="", measure=crash, judge=judge, deadline=20, child="other"),
    Check(id="fake.value", title="", measure=raise_value, judge=judge, deadline=20, child="other"),
    Check(id="fake.missing", title="", measure=raise_missing, judge=judge, deadline=20, child="other"),
    Check(id="fake.full", title="", measure=raise_no_temporary_folder, judge=judge, deadline=20, child="other"),
    Check(id="fake.ours", title="", measure=raise_ours, judge=judge, deadline=20, child="other"),
)

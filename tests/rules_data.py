"""Rules of data, storage, checkpoints, DeepSpeed, DALI and TensorBoard: check, measured, status, what it says."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from trackbed.validate import GIB, MIB
from trackbed.validate.data.leftovers import Leftover
from trackbed.validate.data.scan import Fault, Scan
from trackbed.validate.machine.storage import Commit

INF, NAN = float("inf"), float("nan")


def space(free: Any, used: Any, **more: Any) -> dict[str, Any]:
    return {"folder": "/runs", "free": free, "used": used, "bytes": None, "keep": 2, **more}


def inodes(free: Any, total: Any) -> dict[str, Any]:
    return {"folder": "/runs", "free": free, "total": total}


def network(*mounts: Any, lustre: Any = "") -> dict[str, Any]:
    return {"mounts": list(mounts), "lustre": lustre}


def mount(seconds: Any = 0.01, **more: Any) -> dict[str, Any]:
    return {"where": "/data", "type": "nfs4", "options": "rw,hard", "seconds": seconds, "error": "", **more}


def rate(**more: Any) -> dict[str, Any]:
    return {"rate": 100 * MIB, "bytes": 1000 * MIB, "every_seconds": 100, **more}


def run(*faults: str, good: str = "", **more: Any) -> dict[str, Any]:
    return {"run": "/runs/r", "newest": "step-00000006", "faults": list(faults), "good": good, **more}


def newest(*runs: Any, hashes: bool = False, resuming: bool = False, named: str = "") -> dict[str, Any]:
    return {"runs": list(runs), "hashes": hashes, "resuming": resuming, "named": named}


def left(size: Any = 3 * MIB, age: Any = 7200.0) -> Leftover:
    return Leftover(path="/runs/r/checkpoints/.step-00000006.partial", kind="half-written", size=size, age=age, run="r")


def workers(count: Any, cpus: Any = 4, ranks: Any = 2) -> dict[str, Any]:
    return {"workers": count, "threads": count, "ranks": ranks, "cpus": cpus}


def memory(free: Any, **more: Any) -> dict[str, Any]:
    return {"workers": 4, "prefetch": 2, "batch_bytes": 10 * MIB, "ranks": 2, "free": free, **more}


def scan(*faults: Fault, items: int = 5, of: str = "lines", size: int = MIB, **more: Any) -> Scan:
    totals = Counter(fault.severity for fault in faults)
    return Scan(
        path=Path("/d"), of=of, files=1, items=items, bytes=size, faults=list(faults), totals=totals, **more,
    )  # fmt: skip


def compiler(**more: Any) -> dict[str, Any]:
    good = {"compiler": "c++", "found": "/usr/bin/c++", "ninja": True, "error": "", "wanted": False}
    return {**good, **more}


def lock(age: Any, builder: Any = 0) -> dict[str, Any]:
    return {"path": "/ext/cpu_adam/lock", "age": age, "builder": builder}


def removed(*used: str, gone: Any = ("elasticity",), path: Any = "/c.json", installed: bool = True) -> dict[str, Any]:
    return {"path": path, "used": list(used), "gone": list(gone), "installed": installed}


def order(**more: Any) -> dict[str, Any]:
    good = {"same_seed": True, "other_seed": False, "shards": {1: list(range(23))}, "restored": True}
    return {**good, **more}


def server(**more: Any) -> dict[str, Any]:
    return {"url": "http://127.0.0.1:1/", "shown": 0.4, "stopped": True, "said": "a\nno module", **more}


def listening(*servers: Any, container: Any = False) -> dict[str, Any]:
    return {"container": container, "servers": list(servers)}


BAD = Fault(kind="not-utf8", file="/d/a.jsonl", line=5, offset=123, what="byte 0xff is not UTF-8", remedy="iconv")
BLANK = Fault(kind="empty-line", file="/d/a.jsonl", line=2, what="the line is empty", severity="warn")
OPEN = {"pid": 7, "address": "0.0.0.0", "port": 6006}
NEED = 2 * 4 * 2 * 10 * MIB * 1.2
JOB = {"bytes": 10 * GIB, "keep": 2}

RULES: list[tuple[str, Any, str, str]] = [
    # 128 MiB is the least; a share of a disk counts only when under 10 GiB are free.
    ("storage.free-space", space(45 * GIB, 55 * GIB), "pass", "45 GiB free, 55 % used in /runs"),
    ("storage.free-space", space(128 * MIB, 0), "pass", "128 MiB free, 0 % used"),
    ("storage.free-space", space(128 * MIB - 1, 0), "fail", "128 MiB free, 0 % used"),
    ("storage.free-space", space(0, 10 * GIB), "fail", "0 MiB free, 100 % used"),
    ("storage.free-space", space(0, 0), "fail", "100 % used"),
    ("storage.free-space", space(5 * GIB, 95 * GIB), "fail", "95 % used"),
    ("storage.free-space", space(5 * GIB + MIB, 95 * GIB), "warn", "95 % used"),
    ("storage.free-space", space(8 * GIB, 32 * GIB), "warn", "80 % used"),
    ("storage.free-space", space(8 * GIB + MIB, 32 * GIB), "pass", "80 % used"),
    ("storage.free-space", space(10 * GIB - 1, 1000 * GIB), "fail", "99 % used"),
    ("storage.free-space", space(10 * GIB, 1000 * GIB), "pass", "10 GiB free, 99 % used"),
    ("storage.free-space", space(10 * GIB - 1, 50 * GIB), "warn", "10 GiB free, 83 % used"),
    ("storage.free-space", space(10 * GIB, 50 * GIB), "pass", "10 GiB free, 83 % used"),
    ("storage.free-space", space(36 * GIB + 1, 40 * GIB, **JOB), "pass", "3 checkpoints of 10 GiB and 20 % are 36 GiB"),
    ("storage.free-space", space(36 * GIB, 40 * GIB, **JOB), "pass", "36 GiB free"),
    ("storage.free-space", space(36 * GIB - 1, 40 * GIB, **JOB), "fail", "36 GiB free"),
    ("storage.free-space", space("all", 0), "error", "makes no sense"),
    ("storage.free-space", space(GIB, 0, bytes="big"), "error", "makes no sense"),
    ("storage.free-space", space(GIB, 0, bytes=0), "error", "makes no sense"),
    ("storage.free-space", space(GIB, 0, keep=0), "error", "makes no sense"),
    ("storage.free-space", space(GIB, None), "error", "makes no sense"),
    ("storage.free-space", None, "error", "could not be read"),
    ("storage.inodes", inodes(9_000_000, 10_000_000), "pass", "(90 %)"),
    ("storage.inodes", inodes(0, 0), "skip", "does not count inodes"),
    ("storage.inodes", inodes(5, 0), "skip", "does not count inodes"),
    ("storage.inodes", inodes(100, 100), "pass", "100 of 100"),
    ("storage.inodes", inodes(99, 99), "fail", "99 of 99"),
    ("storage.inodes", inodes(100, 1000), "pass", "(10 %)"),
    ("storage.inodes", inodes(100, 1001), "warn", "100 of 1001"),
    ("storage.inodes", inodes(99_999, 1_000_000), "warn", "(10 %)"),
    ("storage.inodes", inodes(100_000, 1_100_000), "pass", "(9 %)"),
    ("storage.inodes", inodes(200, 10_000), "warn", "(2 %)"),
    ("storage.inodes", inodes(200, 10_001), "fail", "(2 %)"),
    ("storage.inodes", inodes(9_999, 1_000_000), "fail", "(1 %)"),
    ("storage.inodes", inodes(10_000, 1_000_000), "warn", "(1 %)"),
    ("storage.inodes", inodes(2, 1), "error", "makes no sense"),
    ("storage.inodes", inodes("many", 1), "error", "makes no sense"),
    ("storage.inodes", None, "error", "could not be read"),
    ("storage.network-file-systems", network(), "skip", "no network file system"),
    ("storage.network-file-systems", network(mount()), "pass", "1 answer, the slowest in 0.01 s"),
    ("storage.network-file-systems", network(mount(1.0)), "pass", "slowest in 1 s"),
    ("storage.network-file-systems", network(mount(1.01)), "warn", "took 1 s to answer"),
    ("storage.network-file-systems", network(mount(options="rw,soft")), "warn", "mounted soft"),
    ("storage.network-file-systems", network(mount(type="cifs", options="rw,soft")), "pass", "1 answer"),
    ("storage.network-file-systems", network(mount(), mount(None)), "fail", "/data (nfs4) does not answer within 5 s"),
    ("storage.network-file-systems", network(mount(error="Stale file handle")), "fail", "Stale file handle"),
    ("storage.network-file-systems", network(mount(error="stat: '/x': Permission denied")), "skip", "no network"),
    ("storage.network-file-systems", network(mount(), mount(error="x: Permission denied")), "pass", "1 answer"),
    ("storage.network-file-systems", network(mount("soon")), "fail", "does not answer"),
    ("storage.network-file-systems", network(lustre="healthy"), "pass", "0 answer"),
    ("storage.network-file-systems", network(mount(), lustre="NOT HEALTHY"), "fail", "Lustre says"),
    ("storage.network-file-systems", network("garbage"), "error", "makes no sense"),
    ("storage.network-file-systems", network(lustre=None), "error", "makes no sense"),
    ("storage.network-file-systems", None, "error", "could not be read"),
    ("storage.commit", Commit(folder="f", no_room="1 MiB free, see storage.free-space"), "skip", "storage.free-space"),
    ("storage.commit", Commit(folder="/f", error="EACCES", squashed="nfs4"), "skip", "root may not write in /f: nfs4"),
    ("storage.commit", None, "error", "could not be read"),
    ("storage.commit", "garbage", "error", "makes no sense"),
    ("storage.write-rate", rate(), "pass", "100 MiB/s: a checkpoint of 1000 MiB takes 10 s, 10 % of"),
    ("storage.write-rate", rate(every_seconds=99), "warn", "10 % of the 99 s"),
    ("storage.write-rate", rate(every_seconds=10), "warn", "1e+02 % of the 10 s"),
    ("storage.write-rate", rate(every_seconds=9), "fail", "of the 9 s"),
    ("storage.write-rate", rate(every_seconds=9.95), "fail", "of the 9.95 s"),
    ("storage.write-rate", rate(every_seconds=None), "pass", "takes 10 s"),
    ("storage.write-rate", rate(rate=None, why="under 1 GiB is free"), "skip", "under 1 GiB"),
    ("storage.write-rate", rate(every_seconds=0), "error", "makes no sense"),
    ("storage.write-rate", rate(rate=0), "error", "makes no sense"),
    ("storage.write-rate", rate(bytes="big"), "error", "makes no sense"),
    ("storage.write-rate", None, "error", "could not be read"),
    ("storage.leftovers", [], "pass", "left nothing behind"),
    (
        "storage.leftovers",
        [left()],
        "warn",
        "3 MiB left behind: /runs/r/checkpoints/.step-00000006.partial (half-written",
    ),
    ("storage.leftovers", [left(age=172799), left()], "warn", "48.0 hours old), and 1 more"),
    ("storage.leftovers", [left(age=172800)], "warn", "2 days old)"),
    ("storage.leftovers", [left(size="much")], "error", "makes no sense"),
    ("storage.leftovers", [left(age=-1)], "error", "makes no sense"),
    ("storage.leftovers", ["garbage"], "error", "makes no sense"),
    ("storage.leftovers", None, "error", "could not be read"),
    ("checkpoint.newest", newest(), "skip", "no unfinished run has a checkpoint"),
    ("checkpoint.newest", newest(named="r7"), "skip", "r7 has no checkpoint"),
    ("checkpoint.newest", newest(run()), "pass", "newest of 1 whole (sizes against the manifest"),
    ("checkpoint.newest", newest(run(), hashes=True), "pass", "every byte hashed"),
    ("checkpoint.newest", newest({"run": "/runs/b", "busy": True}), "pass", "newest of 0 whole"),
    ("checkpoint.newest", newest(run(), {"run": "/runs/b", "busy": True}), "pass", "1 running and left alone"),
    (
        "checkpoint.newest",
        newest(run(), run("a.pt has 5 bytes, not 9", good="step-00000003")),
        "fail",
        "r/step-00000006: a.pt has 5 bytes, not 9; the newest whole one is step-00000003",
    ),
    ("checkpoint.newest", newest(run("a", "b")), "fail", "a and 1 more; no other one is whole"),
    ("checkpoint.newest", newest(run("a", good="step-3"), resuming=True), "warn", "step-3"),
    ("checkpoint.newest", newest(run("a"), resuming=True), "fail", "no other one is whole"),
    ("checkpoint.newest", newest({"run": "/runs/b"}), "error", "makes no sense"),
    ("checkpoint.newest", newest("garbage"), "error", "makes no sense"),
    ("checkpoint.newest", None, "error", "could not be read"),
    ("checkpoint.unlisted-pickles", [], "pass", "is in a manifest"),
    (
        "checkpoint.unlisted-pickles",
        [{"file": "/r/x.pt", "why": "the manifest does not name it"}],
        "warn",
        "/r/x.pt: the manifest does not name it",
    ),
    ("checkpoint.unlisted-pickles", [{"file": "a"}, {"file": "b"}, {"file": "c"}], "warn", "and 2 more"),
    ("checkpoint.unlisted-pickles", ["garbage"], "error", "makes no sense"),
    ("checkpoint.unlisted-pickles", [{"why": "no file"}], "error", "makes no sense"),
    ("checkpoint.unlisted-pickles", [{"file": "a", "why": "new"}, {"file": "b"}], "warn", "a: new, and 1 more"),
    ("checkpoint.unlisted-pickles", None, "error", "could not be read"),
    ("loader.workers", workers(None), "skip", "no data workers are asked for"),
    ("loader.workers", workers(0), "skip", "no data workers are asked for"),
    ("loader.workers", workers(2), "pass", "2 ranks x 2 data workers = 4 for 4 usable CPUs"),
    ("loader.workers", workers(2, cpus=3.9), "warn", "for 3.9 usable"),
    ("loader.workers", workers(8), "warn", "= 16 for 4"),
    ("loader.workers", workers(9), "fail", "= 18 for 4"),
    ("loader.workers", workers("many"), "error", "makes no sense"),
    ("loader.workers", workers(2, cpus=INF), "error", "makes no sense"),
    ("loader.workers", workers(2, cpus=0), "error", "makes no sense"),
    ("loader.workers", workers(2, ranks=0), "error", "makes no sense"),
    ("loader.workers", {}, "error", "makes no sense"),
    ("loader.workers", None, "error", "could not be read"),
    ("loader.dali-threads", workers(None), "skip", "no DALI threads are asked for"),
    ("loader.dali-threads", workers(2), "pass", "2 DALI threads = 4"),
    ("loader.dali-threads", workers(3), "warn", "3 DALI threads = 6"),
    ("loader.dali-threads", workers(100), "warn", "= 200"),
    ("loader.dali-threads", workers(-1), "error", "makes no sense"),
    ("loader.dali-threads", None, "error", "could not be read"),
    ("loader.shared-memory", memory(NEED), "pass", "2 ranks x 4 workers x 2 batches x 10 MiB + 20 % = 192 MiB"),
    ("loader.shared-memory", memory(NEED - 1), "fail", "192 MiB free in /dev/shm"),
    ("loader.shared-memory", memory(0), "fail", "0 MiB free"),
    ("loader.shared-memory", memory(NEED, prefetch=None), "pass", "x 2 batches"),
    ("loader.shared-memory", memory(NEED, prefetch=3), "fail", "x 3 batches"),
    ("loader.shared-memory", memory(0, workers=None), "skip", "no data workers"),
    ("loader.shared-memory", memory(0, workers=0), "skip", "no data workers"),
    ("loader.shared-memory", memory(0, batch_bytes=None), "skip", "no data workers"),
    ("loader.shared-memory", memory(None), "error", "makes no sense"),
    ("loader.shared-memory", memory(0, workers="4x"), "error", "makes no sense"),
    ("loader.shared-memory", memory(0, batch_bytes=0), "error", "makes no sense"),
    ("loader.shared-memory", {}, "error", "makes no sense"),
    ("loader.shared-memory", None, "error", "could not be read"),
    ("data.jsonl", scan(), "pass", "5 lines in 1 files, 1 MiB"),
    ("data.jsonl", scan(complete=False), "pass", "first 5 lines in 1 files, 1 MiB; --level deep reads all"),
    ("data.jsonl", scan(BLANK), "warn", "1 faults in 5 lines in 1 files, 1 MiB: /d/a.jsonl:2: the line is empty"),
    ("data.jsonl", scan(BLANK, BAD), "fail", "/d/a.jsonl:5 (byte 123): byte 0xff is not UTF-8"),
    ("data.jsonl", scan(BAD, BAD, BAD, BAD), "fail", "and 1 more"),
    ("data.jsonl", scan(size=MIB - 1), "pass", "1 files, 1048575 bytes"),
    ("data.jsonl", scan(BAD, items=0), "fail", "1 faults in 0 lines"),
    ("data.jsonl", scan(missing="no data is named"), "skip", "no data is named"),
    ("data.jsonl", scan(items=0), "error", "makes no sense: 0"),
    ("data.jsonl", "garbage", "error", "makes no sense"),
    ("data.jsonl", None, "error", "could not be read"),
    ("data.images", scan(of="images"), "pass", "5 images"),
    ("data.images", scan(BAD, of="images"), "fail", "1 faults in 5 images"),
    ("data.images", scan(BLANK, of="images"), "warn", "1 faults in 5 images"),
    ("data.images", {}, "error", "makes no sense"),
    ("data.images", None, "error", "could not be read"),
    ("data.dali-package", {"dali": ["130"], "torch": "13.0"}, "pass", "nvidia-dali-cuda130, torch for CUDA 13.0"),
    ("data.dali-package", {"dali": ["130"], "torch": None}, "pass", "CPU build"),
    ("data.dali-package", {"dali": ["120"], "torch": "13.0"}, "fail", "nvidia-dali-cuda120, torch for CUDA 13.0"),
    ("data.dali-package", {"dali": ["130"], "torch": "1.3"}, "fail", "torch for CUDA 1.3"),
    ("data.dali-package", {"dali": ["120", "130"], "torch": "13.0"}, "fail", "2 DALI packages"),
    ("data.dali-package", {"dali": [], "torch": "13.0"}, "fail", "0 DALI packages: none"),
    ("data.dali-package", {"dali": ["130"], "torch": "new"}, "error", "makes no sense"),
    ("data.dali-package", {"dali": ["x"], "torch": "13.0"}, "error", "makes no sense"),
    ("data.dali-package", {"dali": ["130"], "torch": ""}, "error", "makes no sense"),
    ("data.dali-package", {"dali": ["130"]}, "error", "makes no sense"),
    ("data.dali-package", None, "error", "could not be read"),
    (
        "data.dali-bad-images",
        {"bad": ["a"], "named": ["a"], "dali": {"a": "in a: no"}},
        "pass",
        "1 of 1 bad images; DALI itself names 1",
    ),
    ("data.dali-bad-images", {"bad": ["a"], "named": ["a"], "dali": {"a": "#4"}}, "pass", "DALI itself names 0"),
    ("data.dali-bad-images", {"bad": ["a", "b"], "named": ["a"], "dali": {}}, "fail", "the scan names a"),
    ("data.dali-bad-images", {"bad": ["a"], "named": ["a", "good"], "dali": {}}, "fail", "the scan names a, good"),
    ("data.dali-bad-images", {"bad": ["a"], "named": [], "dali": {}}, "fail", "none"),
    ("data.dali-bad-images", {"bad": [], "named": [], "dali": {}}, "error", "makes no sense"),
    ("data.dali-bad-images", {"bad": ["a"], "named": "a", "dali": {}}, "error", "makes no sense"),
    ("data.dali-bad-images", None, "error", "could not be read"),
    ("data.dali-order", order(), "pass", "a restored pipeline goes on"),
    ("data.dali-order", order(restored=None), "pass", "no checkpoints to restore"),
    ("data.dali-order", order(restored=False), "fail", "goes on with other samples"),
    ("data.dali-order", order(same_seed=False), "fail", "the same seed gives another order"),
    ("data.dali-order", order(other_seed=True), "fail", "another seed gives the same order"),
    ("data.dali-order", order(shards={2: list(range(22))}), "fail", "2 ranks lose 1 samples and see 0 twice"),
    ("data.dali-order", order(shards={3: [*range(23), 0]}), "fail", "3 ranks lose 0 samples and see 1 twice"),
    ("data.dali-order", order(shards={}), "error", "makes no sense"),
    ("data.dali-order", order(shards={1: None}), "error", "makes no sense"),
    ("data.dali-order", order(restored="yes"), "error", "makes no sense"),
    ("data.dali-order", {}, "error", "makes no sense"),
    ("data.dali-order", None, "error", "could not be read"),
    ("deepspeed.compiler", compiler(), "pass", "/usr/bin/c++ compiles and links"),
    ("deepspeed.compiler", compiler(found=""), "skip", "there is no compiler c++; no job here needs one"),
    ("deepspeed.compiler", compiler(found="", wanted=True), "fail", "there is no compiler c++"),
    ("deepspeed.compiler", compiler(error="fatal error: Python.h: No such file"), "skip", "Python.h"),
    ("deepspeed.compiler", compiler(error="fatal error: Python.h: No such file", wanted=True), "fail", "Python.h"),
    ("deepspeed.compiler", compiler(ninja=False, wanted=True), "fail", "there is no ninja"),
    ("deepspeed.compiler", compiler(ninja=False), "skip", "there is no ninja"),
    ("deepspeed.compiler", compiler(found=None), "error", "makes no sense"),
    ("deepspeed.compiler", "garbage", "error", "makes no sense"),
    ("deepspeed.compiler", None, "error", "could not be read"),
    ("deepspeed.stale-lock", [], "pass", "no build has left a lock"),
    ("deepspeed.stale-lock", [lock(600.0)], "pass", "1 locks, of builds that are going on"),
    ("deepspeed.stale-lock", [lock(601.0)], "fail", "/ext/cpu_adam/lock is 10 minutes old and nobody builds"),
    ("deepspeed.stale-lock", [lock(601.0, builder=7)], "pass", "going on"),
    ("deepspeed.stale-lock", [lock("old")], "error", "makes no sense"),
    ("deepspeed.stale-lock", [lock(1.0, builder=None)], "error", "makes no sense"),
    ("deepspeed.stale-lock", ["garbage"], "error", "makes no sense"),
    ("deepspeed.stale-lock", None, "error", "could not be read"),
    ("deepspeed.removed-features", removed("optimizer"), "pass", "/c.json uses nothing that was removed"),
    ("deepspeed.removed-features", removed("elasticity", gone=()), "pass", "nothing that was removed"),
    ("deepspeed.removed-features", removed("elasticity"), "fail", "/c.json uses elasticity"),
    ("deepspeed.removed-features", removed("x", installed=False), "fail", "DeepSpeed is not installed"),
    ("deepspeed.removed-features", removed(path=""), "skip", "no DeepSpeed configuration"),
    ("deepspeed.removed-features", removed(path=3), "error", "makes no sense"),
    ("deepspeed.removed-features", None, "error", "could not be read"),
    (
        "deepspeed.operators",
        {"operators": {"a": {"installed": False, "compatible": False}}, "error": ""},
        "pass",
        "0 built before (none), 1 compiled",
    ),
    (
        "deepspeed.operators",
        {"operators": {"a": {"installed": True, "compatible": True}}, "error": ""},
        "pass",
        "1 built before (a), 0",
    ),
    (
        "deepspeed.operators",
        {"operators": {"a": {"installed": True, "compatible": False}}, "error": ""},
        "fail",
        "built, but not fit: a",
    ),
    ("deepspeed.operators", {"operators": {}, "error": "No module named deepspeed"}, "fail", "No module"),
    ("deepspeed.operators", {"operators": {}, "error": ""}, "error", "makes no sense"),
    ("deepspeed.operators", {"operators": {"a": "garbage"}}, "error", "makes no sense"),
    ("deepspeed.operators", None, "error", "could not be read"),
    ("deepspeed.cpu-adam", {"difference": 2e-6, "prebuilt": False}, "pass", "compiled here, is off by 2e-06"),
    ("deepspeed.cpu-adam", {"difference": 0.0, "prebuilt": True}, "pass", "built before, is off by 0"),
    ("deepspeed.cpu-adam", {"difference": 2.1e-6}, "fail", "off by 2.1e-06"),
    ("deepspeed.cpu-adam", {"difference": 2.01e-6}, "fail", "off by 2e-06"),
    ("deepspeed.cpu-adam", {"error": "fatal error: Python.h"}, "fail", "Python.h"),
    ("deepspeed.cpu-adam", {"missing": "there is no compiler c++", "wanted": False}, "skip", "no job here needs it"),
    ("deepspeed.cpu-adam", {"missing": "there is no compiler c++", "wanted": True}, "fail", "no compiler"),
    ("deepspeed.cpu-adam", {"difference": NAN}, "error", "makes no sense"),
    ("deepspeed.cpu-adam", {"difference": "little"}, "error", "makes no sense"),
    ("deepspeed.cpu-adam", None, "error", "could not be read"),
    ("monitor.tensorboard-server", server(), "pass", "a scalar is shown after 0.4 s"),
    ("monitor.tensorboard-server", server(shown=15.0), "pass", "after 15.0 s"),
    ("monitor.tensorboard-server", server(shown=15.6), "fail", "shown after 16 s"),
    ("monitor.tensorboard-server", server(shown=15.1), "fail", "shown after 15 s"),
    ("monitor.tensorboard-server", server(shown=None), "fail", "not shown"),
    ("monitor.tensorboard-server", server(stopped=False), "fail", "does not end at SIGTERM"),
    ("monitor.tensorboard-server", server(url="", shown=None), "fail", "does not start: no module"),
    ("monitor.tensorboard-server", server(url="", shown=None, said=""), "fail", "it says nothing"),
    ("monitor.tensorboard-server", server(shown="soon"), "error", "makes no sense"),
    ("monitor.tensorboard-server", server(stopped=None), "error", "makes no sense"),
    ("monitor.tensorboard-server", {}, "error", "makes no sense"),
    ("monitor.tensorboard-server", None, "error", "could not be read"),
    ("monitor.log-folder", {"folder": "/runs", "error": "", "p99": 0.05}, "pass", "under 50 ms"),
    ("monitor.log-folder", {"folder": "/runs", "error": "", "p99": 0.0502}, "warn", "under 50 ms"),
    (
        "monitor.log-folder",
        {"folder": "/runs", "error": "Read-only file system", "p99": None},
        "skip",
        "storage.commit",
    ),
    ("monitor.log-folder", {"folder": "/runs", "error": "", "p99": None}, "error", "makes no sense"),
    ("monitor.log-folder", {"folder": "/runs", "error": "", "p99": "slow"}, "error", "makes no sense"),
    ("monitor.log-folder", None, "error", "could not be read"),
    ("monitor.exposed", listening(), "pass", "no TensorBoard listens"),
    ("monitor.exposed", listening(OPEN), "warn", "open to the network: process 7 on 0.0.0.0:6006"),
    ("monitor.exposed", listening(OPEN, container=True), "pass", "decided by -p"),
    ("monitor.exposed", listening({"pid": 7}), "error", "makes no sense"),
    ("monitor.exposed", listening(container=None), "error", "makes no sense"),
    ("monitor.exposed", listening("garbage"), "error", "makes no sense"),
    ("monitor.exposed", None, "error", "could not be read"),
]

TEXTS: list[tuple[str, Any, str, str]] = [
    ("loader.workers", workers(8), "remedy", r"^2 data workers a rank \(TRACKBED_LOADER_WORKERS=2\); or more CPUs"),
    ("loader.workers", workers(9, cpus=1), "remedy", r"^0 data workers a rank .*--cpus=18"),
    ("loader.dali-threads", workers(3), "remedy", r"^2 DALI threads a rank"),
    ("loader.dali-threads", workers(3, cpus=1), "remedy", r"^more CPUs: docker run --cpus=6"),
    ("storage.leftovers", [left()], "observed", r"2\.0 hours old\)$"),
    ("storage.leftovers", [left(), left()], "observed", r"\), and 1 more$"),
    ("checkpoint.unlisted-pickles", [{"file": "a", "why": "new"}], "observed", r"a: new$"),
    ("checkpoint.unlisted-pickles", [{"file": "a", "why": "new"}, {"file": "b"}], "observed", r", and 1 more$"),
    ("data.jsonl", scan(BAD, BAD, BAD), "observed", r"not UTF-8$"),
    ("data.jsonl", scan(BAD, BAD, BAD, BAD), "observed", r"; and 1 more$"),
    ("data.jsonl", scan(BAD), "remedy", r"^iconv; "),
    ("data.jsonl", scan(BLANK), "remedy", r"^write that file again; "),
    ("checkpoint.newest", newest(run("a", good="step-3")), "remedy", r"mv \S+/step-00000006 \S+/bad-step-00000006"),
    ("checkpoint.newest", newest(run("a")), "remedy", r"from a backup"),
    ("deepspeed.stale-lock", [lock(601.0)], "remedy", r"^rm /ext/cpu_adam/lock$"),
    ("storage.commit", Commit(folder="/f", step="write", error="EROFS"), "remedy", r"docker run -v runs:/f "),
    ("storage.commit", Commit(folder="/f", step="write", error="EACCES"), "remedy", r"chown \d+:\d+ /f "),
    ("storage.write-rate", rate(every_seconds=99), "remedy", r"checkpoint.every: 101 s apart"),
]

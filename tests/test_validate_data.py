"""Storage, checkpoints, left-overs, data sets and TensorBoard, measured: real files broken in real ways."""

from __future__ import annotations

import fcntl
import io
import json
import os
import subprocess
import sys
import tarfile
import time
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from PIL import Image

from trackbed.validate import GIB, MIB, Context, Level
from trackbed.validate.data import checkpoints, dali, dali_order, datasets, leftovers, loader
from trackbed.validate.data.images import scan_images
from trackbed.validate.data.jsonl import scan_jsonl
from trackbed.validate.data.leftovers import Leftover
from trackbed.validate.data.scan import judge
from trackbed.validate.machine import filesystems, storage
from trackbed.validate.machine.mounts import Mount
from trackbed.validate.stack import monitor, monitor_server


def context(folder: Path, level: Level = "node", **expect: Any) -> Context:
    return Context(output=folder, level=level, expect=expect)


# --- storage ---


def disk(monkeypatch: pytest.MonkeyPatch, *, free: int, size: int = 100 * GIB, files: int = 10**7) -> None:
    """A file system of that size, as statvfs would tell of it."""
    values = [4096, 4096, size // 4096, free // 4096, free // 4096, 10**7, files, files, 0, 255]
    monkeypatch.setattr(os, "statvfs", lambda folder: os.statvfs_result(values))


def test_space_is_that_of_the_nearest_folder_and_a_job_says_what_it_needs(tmp_path: Path) -> None:
    found = filesystems.measure_space(context(tmp_path / "not" / "yet", checkpoint={"bytes": 5, "keep": 3}))
    assert found["folder"] == str(tmp_path)
    assert (found["bytes"], found["keep"]) == (5, 3)
    stat = os.statvfs(tmp_path)
    assert abs(found["used"] - (stat.f_blocks - stat.f_bfree) * stat.f_frsize) < GIB


def test_a_full_disk_fails_once_and_the_commit_is_not_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk(monkeypatch, free=100 * MIB)
    assert filesystems.judge_space(filesystems.measure_space(context(tmp_path))).status == "fail"
    commit = storage.judge_commit(storage.measure_commit(context(tmp_path)))
    assert (commit.status, "storage.free-space" in commit.observed) == ("skip", True)
    assert storage.judge_rate(storage.measure_rate(context(tmp_path))).status == "skip"


def test_a_disk_without_inodes_fails_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk(monkeypatch, free=50 * GIB, files=3)
    assert filesystems.judge_inodes(filesystems.measure_inodes(context(tmp_path))).status == "fail"
    commit = storage.judge_commit(storage.measure_commit(context(tmp_path)))
    assert (commit.status, "storage.inodes" in commit.observed) == ("skip", True)
    assert filesystems.judge_space(filesystems.measure_space(context(tmp_path))).status == "pass"


def test_root_that_a_server_takes_for_nobody_says_nothing_of_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prolog runs as root, and runs lie on NFS: with root_squash every good node would be drained."""

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(storage, "_commit", refuse)
    assert storage.judge_commit(storage.measure_commit(context(tmp_path))).status == "fail"
    monkeypatch.setattr(storage, "mount_of", lambda _: Mount(point=PurePosixPath("/"), kind="nfs4"))
    outcome = storage.judge_commit(storage.measure_commit(context(tmp_path)))
    assert outcome.status == ("skip" if os.getuid() == 0 else "fail")
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    assert storage.judge_commit(storage.measure_commit(context(tmp_path))).status == "fail"


def test_the_write_rate_is_measured_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "RATE_BLOCKS", 4)
    found = storage.measure_rate(context(tmp_path / "new", checkpoint={"bytes": MIB, "every_seconds": 3600}))
    assert found["rate"] > MIB
    assert storage.judge_rate(found).status == "pass"
    assert list(tmp_path.iterdir()) == []


def test_the_name_of_a_mount_is_whole(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text(
        "30 22 0:40 / /mnt/dönér\\040set rw - nfs4 server:/data rw\n", "utf-8"
    )
    found = filesystems.measure_network(context(tmp_path), tmp_path, probe=("true",))
    assert [mount["where"] for mount in found["mounts"]] == ["/mnt/dönér set"]


MOUNTS = """22 1 8:1 / / rw,relatime - ext4 /dev/vda rw
30 22 0:40 / /mnt/data\\040set rw,relatime - nfs4 server:/data rw,vers=4.2,soft
31 22 0:41 / /mnt/other rw - lustre mgs@tcp:/fs rw
"""


def mounts(root: Path) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/mountinfo").write_text(MOUNTS)
    return root


def test_network_file_systems_are_asked_each_in_a_process_of_its_own(tmp_path: Path) -> None:
    found = filesystems.measure_network(context(tmp_path), mounts(tmp_path), probe=("true",))
    assert [(mount["where"], mount["type"]) for mount in found["mounts"]] == [
        ("/mnt/data set", "nfs4"),
        ("/mnt/other", "lustre"),
    ]
    outcome = filesystems.judge_network(found)
    assert (outcome.status, outcome.observed) == (
        "warn",
        "/mnt/data set is mounted soft: a write that times out is lost",
    )


def test_a_network_file_system_that_hangs_does_not_hang_the_check(tmp_path: Path) -> None:
    started = time.monotonic()
    hang = (sys.executable, "-c", "import signal; signal.pause()")
    found = filesystems.measure_network(context(tmp_path), mounts(tmp_path), probe=hang, patience=0.5)
    assert time.monotonic() - started < 5
    assert "does not answer" in filesystems.judge_network(found).observed


def test_what_a_network_file_system_says_is_told(tmp_path: Path) -> None:
    outcome = filesystems.judge_network(filesystems.measure_network(context(tmp_path), mounts(tmp_path)))
    assert outcome.status == "fail"
    assert "No such file" in outcome.observed


# --- checkpoints: a real run, really broken ---


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """The checkpoints' folder of a run made by training the tiny model; copied, never changed."""
    from conftest import conversation, environ, write_jsonl

    folder = tmp_path_factory.mktemp("trained")
    files = {name: str(write_jsonl(folder / f"{name}.jsonl", [conversation(i) for i in range(24)]))
             for name in ("train", "heldout")}  # fmt: skip
    content = {
        "name": "tiny",
        "model": {"name": str(tiny_model), "precision": "fp32"},
        "data": {**files, "max_length": 96, "row_length": 192},
        "train": {"steps": 2},
        "evaluate": {"every": 9, "samples": 2, "answers": 0},
        "checkpoint": {"every": 1, "keep": 2},
        "resources": {"ranks": 1, "timeout_minutes": 2},
    }
    (folder / "job.yaml").write_text(json.dumps(content))
    words = ("submit", folder / "job.yaml", "--skip-validation", "--run-name", "r")
    done = subprocess.run(
        [sys.executable, "-m", "trackbed", *map(str, words)], env=environ(folder), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "runs" / "r"


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of that run as it was before it had finished."""
    import shutil

    copy = tmp_path / "runs" / "r"
    shutil.copytree(trained, copy)
    (copy / "summary.json").unlink()
    return copy


def newest(folder: Path, level: Level = "node", **expect: Any) -> Any:
    return checkpoints.judge_newest(checkpoints.measure_newest(context(folder, level, **expect)))


def shard(run: Path, step: int = 2) -> Path:
    return next((run / "checkpoints" / f"step-{step:08d}" / "engine").glob("*model_states.pt"))


@pytest.mark.parametrize("level", ["node", "deep"])
def test_a_whole_checkpoint_passes(run: Path, level: Level) -> None:
    assert newest(run.parent, level).status == "pass"


def test_a_truncated_checkpoint_fails_names_the_good_one_and_its_remedy_mends_it(run: Path) -> None:
    with shard(run).open("r+b") as file:
        file.truncate(1000)
    outcome = newest(run.parent)
    assert outcome.status == "fail"
    assert f"{shard(run).name} has 1000 bytes, not" in outcome.observed
    assert "the newest whole one is step-00000001" in outcome.observed
    command = outcome.remedy.partition(": ")[2].partition(" (")[0]
    subprocess.run(command.split(), check=True)
    assert newest(run.parent).status == "pass"


def test_flipped_bytes_are_seen_at_level_deep(run: Path) -> None:
    with shard(run).open("r+b") as file:
        file.seek(500)
        file.write(b"\xff" * 16)
    assert newest(run.parent).status == "pass"
    outcome = newest(run.parent, "deep")
    assert (outcome.status, "other content than was written" in outcome.observed) == ("fail", True)


def test_a_run_that_is_resumed_from_an_older_checkpoint_is_warned(run: Path) -> None:
    shard(run).unlink()
    assert newest(run).status == "warn"
    shard(run, 1).unlink()
    outcome = newest(run)
    assert (outcome.status, "no other one is whole" in outcome.observed) == ("fail", True)


@pytest.mark.parametrize("text", ["", "[]", '{"files": []}', '{"files": {}}', '{"files": {"a": 1}}'])
def test_a_manifest_that_makes_no_sense_is_a_fault(run: Path, text: str) -> None:
    (shard(run).parents[1] / "manifest.json").write_text(text)
    assert newest(run.parent).status == "fail"


def test_a_manifest_that_is_missing_and_checkpoints_that_are_gone(run: Path) -> None:
    (shard(run).parents[1] / "manifest.json").unlink()
    assert "manifest.json is missing" in newest(run.parent).observed
    for path in (run / "checkpoints").glob("step-*"):
        path.rename(run / path.name)
    assert "the checkpoints are gone" in newest(run.parent).observed


def test_finished_and_running_runs_are_left_alone_and_one_can_be_named(run: Path) -> None:
    shard(run).unlink()
    with (run / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        outcome = newest(run.parent)
        assert (outcome.status, "1 running and left alone" in outcome.observed) == ("pass", True)
    (run / "summary.json").write_text("{}")
    assert newest(run.parent).status == "skip"
    assert newest(run.parent, run="r").status == "fail"
    assert newest(run.parent.parent, run=str(run)).status == "fail"
    assert "none has no checkpoint" in newest(run.parent, run="none").observed


def test_looking_leaves_the_lock_free(run: Path) -> None:
    (run / ".lock").touch()
    newest(run.parent)
    with (run / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_planted_pickle_is_named_and_never_loaded(run: Path) -> None:
    look = lambda: checkpoints.judge_pickles(checkpoints.measure_pickles(context(run.parent)))  # noqa: E731
    assert look().status == "pass"
    planted = shard(run).with_name("extra.pt")
    planted.write_bytes(b"cos\nsystem\n(S'touch loaded'\ntR.")
    outcome = look()
    assert (outcome.status, str(planted) in outcome.observed) == ("warn", True)
    assert not Path("loaded").exists()
    planted.unlink()
    (shard(run).parents[1] / "manifest.json").write_text("cut")
    assert "no readable manifest" in look().observed


# --- left-overs ---


def old(path: Path, seconds: float = 7200) -> Path:
    """Made to look older: the path and what is in it."""
    when = time.time() - seconds
    for each in (*path.rglob("*"), path):
        os.utime(each, (when, when))
    return path


def litter(run: Path) -> set[str]:
    """What killed runs leave, in every place, two hours ago."""
    made = [run / "checkpoints" / ".step-00000009.partial", run / "checkpoints" / "bad-step-00000004"]
    half = run / "checkpoints" / "step-00000008"
    for folder in (*made, half):
        folder.mkdir(parents=True)
        (folder / "x.pt").write_bytes(b"x" * 10)
    (half / "zero.pt").touch()
    files = [run / "checkpoints" / ".latest.partial", run / ".job.yaml.partial-77", run.parent / ".trackbed-validate-9"]
    for file in files:
        file.write_text("x")
    everything = [*made, half, *files]
    return {str(old(path)) for path in everything}


def test_leftovers_are_named_and_cleaned_and_nothing_else(run: Path, tmp_path: Path) -> None:
    before = {str(path) for path in tmp_path.rglob("*")}
    made = litter(run)
    found = leftovers.find(run.parent, tmp_path)
    assert {each.path for each in found} == made
    assert leftovers.judge(found).status == "warn"
    removed = leftovers.clean(found)
    assert {each.path for each in removed} == made
    assert {str(path) for path in tmp_path.rglob("*")} == before
    assert leftovers.judge(leftovers.find(run.parent, tmp_path)).status == "pass"


def test_young_leftovers_and_those_of_a_running_run_stay(run: Path, tmp_path: Path) -> None:
    made = litter(run)
    (run / ".lock").touch()
    found = leftovers.find(run.parent, tmp_path)
    with (run / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        inside = {each.path for each in found if each.run}
        assert {each.path for each in leftovers.clean(found)} == made - inside
        assert {each.path for each in leftovers.find(run.parent, tmp_path)} == set()
    assert all(Path(path).exists() for path in inside)
    for path in inside:
        old(Path(path), 599)
    assert leftovers.clean(found) == []
    assert leftovers.find(run.parent, tmp_path) == []


def test_files_of_another_user_and_links_stay(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "precious"
    target.mkdir()
    (run / "checkpoints" / "bad-step-00000001").symlink_to(target)
    os.utime(run / "checkpoints" / "bad-step-00000001", (1, 1), follow_symlinks=False)
    assert leftovers.find(run.parent, tmp_path) == []
    litter(run)
    found = leftovers.find(run.parent, tmp_path)
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    assert leftovers.find(run.parent, tmp_path) == []
    assert found
    assert leftovers.clean(found) == []


def test_what_is_no_leftover_is_never_removed_whatever_is_asked(run: Path) -> None:
    asked = [
        Leftover(path=str(path), kind="", size=0, age=9999, run=str(run))
        for path in (run / "job.yaml", run / "checkpoints" / "step-00000002", run)
    ]
    assert leftovers.clean(asked) == []
    assert (run / "checkpoints" / "step-00000002").is_dir()


def test_shared_memory_of_ended_runs_is_found_and_that_of_live_ones_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = Path(f"/dev/shm/trackbed-test-{os.getpid()}")
    shared.mkdir()
    try:
        stale, used, other = (shared / name for name in ("nccl-abc123", f"torch_{os.getpid()}_7_0", "psm_theirs"))
        for path in (stale, used, other):
            path.write_bytes(b"x" * 4096)
            old(path)
        with used.open("rb"), monkeypatch.context() as patch:
            # As in another container on the same /dev/shm (--ipc=host): its processes are not seen from here.
            patch.setattr(leftovers, "_used", lambda _: set())
            assert [each.path for each in leftovers.find(tmp_path, shared)] == [str(stale)]
        with used.open("rb"):
            found = leftovers.find(tmp_path, shared)
            assert [each.path for each in found] == [str(stale)]
            assert [each.path for each in leftovers.clean(found)] == [str(stale)]
        assert used.exists()
        assert other.exists()
    finally:
        for path in shared.iterdir():
            path.unlink()
        shared.rmdir()


# --- the loader's settings ---


def test_loader_settings_come_from_the_expectation_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert loader.judge_workers(loader.measure_workers(context(tmp_path))).status == "skip"
    huge = context(tmp_path, loader={"workers": 10_000, "batch_bytes": GIB})
    outcome = loader.judge_workers(loader.measure_workers(huge))
    assert outcome.status == "fail"
    shm = loader.judge_shared_memory(loader.measure_shared_memory(huge))
    assert (shm.status, "2 ranks x 10000 workers x 2 batches x 1 GiB" in shm.observed) == ("fail", True)
    monkeypatch.setenv("TRACKBED_LOADER_WORKERS", "1")
    monkeypatch.setenv("TRACKBED_LOADER_BATCH_BYTES", "4096")
    small = loader.measure_shared_memory(huge)
    assert (small["workers"], small["batch_bytes"]) == (1, 4096)
    monkeypatch.setenv("TRACKBED_LOADER_WORKERS", "many")
    assert loader.judge_workers(loader.measure_workers(context(tmp_path))).status == "error"


def test_the_loader_remedy_says_a_size_and_a_number_that_fit(tmp_path: Path) -> None:
    asked = {"workers": 8, "prefetch": 2, "batch_bytes": 100 * MIB, "ranks": 2, "free": GIB}
    outcome = loader.judge_shared_memory(asked)
    assert "--shm-size=4g" in outcome.remedy
    assert outcome.remedy.endswith("or 2 workers a rank")
    assert loader.judge_shared_memory({**asked, "workers": 2}).status == "pass"
    assert loader.judge_shared_memory({**asked, "free": 4 * GIB}).status == "pass"


def test_no_shared_memory_is_not_free_shared_memory(tmp_path: Path) -> None:
    assert loader.measure_shared_memory(context(tmp_path), tmp_path / "none")["free"] is None


# --- JSONL ---

GOOD = b'{"text": "one", "n": 1}\n{"text": "two", "n": 2.5}\n'


@pytest.mark.parametrize(
    ("content", "kind", "line", "offset"),
    [
        (GOOD + b'{"text": "caf\xe9"}\n', "not-utf8", 3, len(GOOD) + 13),
        (b"\xef\xbb\xbf" + GOOD, "bom", 1, 0),
        ("\ufeff{}\n".encode("utf-16-le"), "utf-16", 1, 0),
        (GOOD + b"\n" + GOOD, "empty-line", 3, len(GOOD)),
        (GOOD + b'{"text" "three"}\n', "not-json", 3, len(GOOD) + 8),
        (GOOD + b'{"text": "thr', "cut", 3, len(GOOD) + 9),
        (GOOD + b'{"text": 3}\n', "type-drift", 3, len(GOOD)),
        (GOOD + b'["text"]\n', "not-an-object", 3, len(GOOD)),
        (GOOD + b'{"n": NaN}\n', "not-json", 3, len(GOOD)),
        (GOOD + b'{"text": "\\ud800"}\n', "not-text", 3, len(GOOD)),
        (GOOD + b'{"text": "' + b"x" * 2000 + b'"}\n' + GOOD, "huge-line", 3, len(GOOD)),
        (GOOD + b"[" * 100_000 + b"\n", "huge-line", 3, len(GOOD)),
        (b"", "empty-file", None, None),
    ],
)
def test_every_fault_of_a_line_has_its_line_and_byte(
    tmp_path: Path, content: bytes, kind: str, line: int | None, offset: int | None
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    scan = scan_jsonl(path, longest=1000)
    assert [(fault.kind, fault.line, fault.offset) for fault in scan.faults] == [(kind, line, offset)]
    assert judge(scan).status == ("warn" if kind == "empty-line" else "fail")
    assert scan.bytes == (len(content) if kind != "utf-16" else scan.bytes)


def test_good_lines_pass_with_null_missing_keys_and_no_last_line_end(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(GOOD + b'{"text": null}\r\n{"m": [{"role": "x"}, {"role": "y"}]}')
    scan = scan_jsonl(tmp_path)
    assert (scan.faults, scan.items, scan.files) == ([], 4, 1)
    assert judge(scan).status == "pass"


def test_a_deeply_nested_line_is_a_fault_and_no_crash(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"[" * 200_000 + b"]" * 200_000 + b"\n")
    assert [fault.kind for fault in scan_jsonl(tmp_path).faults] == ["not-json"]


def test_drift_names_the_rare_type_inside_lists_and_over_files(tmp_path: Path) -> None:
    usual = b'{"m": [{"content": "a"}]}\n'
    (tmp_path / "a.jsonl").write_bytes(b'{"m": [{"content": 7}]}\n')
    (tmp_path / "b.jsonl").write_bytes(usual * 5)
    (fault,) = scan_jsonl(tmp_path).faults
    assert fault.file.endswith("a.jsonl")
    assert "m[].content is a number in 1 places, first here, and a string in 5" in fault.what


def test_many_faults_are_counted_and_the_first_are_kept(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"\n" * 50 + b"x\n" * 30)
    scan = scan_jsonl(tmp_path, limit=4)
    assert (scan.totals["warn"], scan.totals["fail"], len(scan.faults)) == (50, 30, 8)
    assert "30 faults in 80 lines" in judge(scan).observed


def test_a_scan_stops_at_its_time_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(GOOD * 100)
    scan = scan_jsonl(tmp_path, until=0)
    assert not scan.complete
    assert judge(scan).status == "error"


def test_memory_is_bounded_by_the_longest_line(tmp_path: Path) -> None:
    import tracemalloc

    path = tmp_path / "a.jsonl"
    with path.open("wb") as file:
        for index in range(50):
            file.write(b'{"text": "' + b"x" * 100_000 + b'", "k%d": 1}\n' % index)
        file.write(b"y" * (20 * MIB) + b"\n")
    tracemalloc.start()
    scan = scan_jsonl(path, longest=MIB)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [fault.kind for fault in scan.faults] == ["huge-line"]
    assert peak < 8 * MIB


def test_a_path_that_is_not_there_fails_once(tmp_path: Path) -> None:
    named = context(tmp_path, data=str(tmp_path / "none.jsonl"))
    lines, images = datasets.measure_jsonl(named), datasets.measure_images(named)
    assert (judge(lines).status, judge(images).status) == ("fail", "skip")
    assert "No such file" in judge(lines).observed


def test_data_is_named_by_the_environment_and_each_scan_takes_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert judge(datasets.measure_jsonl(context(tmp_path))).status == "skip"
    (tmp_path / "text").write_bytes(GOOD)
    (tmp_path / "img").mkdir()
    (tmp_path / "img" / "a.jpg").write_bytes(jpeg())
    monkeypatch.setenv(datasets.VARIABLE, f"{tmp_path / 'text'}{os.pathsep}{tmp_path / 'img'}")
    lines, images = datasets.measure_jsonl(context(tmp_path)), datasets.measure_images(context(tmp_path))
    assert (lines.items, images.items) == (2, 1)
    assert {judge(lines).status, judge(images).status} == {"pass"}


# --- images ---


def jpeg(mode: str = "RGB", size: tuple[int, int] = (64, 48), format: str = "JPEG") -> bytes:
    buffer = io.BytesIO()
    Image.effect_noise(size, 50).convert(mode).save(buffer, format)
    return buffer.getvalue()


BROKEN: list[tuple[str, bytes, str]] = [
    ("a.jpg", b"", "zero-byte"),
    ("a.jpg", jpeg()[:900], "truncated"),
    ("a.png", jpeg(format="PNG")[:500], "truncated"),
    ("a.jpg", b"<html>404</html>", "wrong-magic"),
    ("a.jpg", jpeg(format="PNG"), "wrong-suffix"),
    ("a.jpeg", jpeg("CMYK"), "cmyk"),
    ("a.png", jpeg(format="PNG", size=(200, 200)), "huge"),
]


@pytest.mark.parametrize(("name", "content", "kind"), BROKEN)
@pytest.mark.parametrize("tarred", [False, True], ids=["file", "shard"])
def test_every_broken_image_is_named(tmp_path: Path, name: str, content: bytes, kind: str, tarred: bool) -> None:
    write = shard_of if tarred else files_of
    write(tmp_path, {"good.jpg": jpeg(), name: content, "notes.txt": b"x"})
    scan = scan_images(tmp_path, most_pixels=200 * 199)
    assert [fault.kind for fault in scan.faults] == [kind]
    assert name in scan.faults[0].file
    assert scan.items == 2
    assert judge(scan).status == ("warn" if kind in ("cmyk", "wrong-suffix") else "fail")


def files_of(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).write_bytes(content)


def shard_of(folder: Path, files: dict[str, bytes]) -> None:
    with tarfile.open(folder / "000.tar", "w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


@pytest.mark.parametrize(
    ("cut", "says"), [(-1024, "after b.jpg"), (-300, "after b.jpg"), (2100, "at b.jpg"), (900, "at a.jpg")]
)
def test_a_shard_that_breaks_off_is_named_with_its_last_member(tmp_path: Path, cut: int, says: str) -> None:
    shard_of(tmp_path, {"a.jpg": jpeg(size=(8, 8)), "b.jpg": jpeg()})
    path = tmp_path / "000.tar"
    length = tarfile_end(path)
    path.write_bytes(path.read_bytes()[: cut if cut > 0 else length + 1024 + cut])
    outcome = judge(scan_images(path))
    assert outcome.status == "fail"
    assert f"000.tar: the shard breaks off {says}" in outcome.observed


def tarfile_end(path: Path) -> int:
    """Where the last member ends and the two blocks of zeros begin."""
    with tarfile.open(path) as tar:
        last = tar.getmembers()[-1]
        return last.offset_data + -(-last.size // 512) * 512


def test_more_pixels_than_pil_itself_takes_are_no_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.png").write_bytes(jpeg(format="PNG", size=(200, 200)))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10_000)
    assert [fault.kind for fault in scan_images(tmp_path).faults] == ["huge"]


def test_good_images_pass(tmp_path: Path) -> None:
    files_of(tmp_path, {"a.jpg": jpeg(), "b.PNG": jpeg(format="PNG"), "c.webp": jpeg(format="WEBP")})
    outcome = judge(scan_images(tmp_path))
    assert (outcome.status, outcome.observed.startswith("3 images in 3 files")) == ("pass", True)


# --- DALI ---


def test_bad_images_are_named_by_our_scan_where_dali_names_fewer(tmp_path: Path) -> None:
    found = dali.measure_bad_images(context(tmp_path))
    assert found["named"] == ["empty.jpg", "garbage.jpg", "truncated.jpg"]
    assert found["dali"]["garbage.jpg"]
    assert "garbage.jpg" not in found["dali"]["garbage.jpg"]


def test_dalis_package_and_torchs_cuda_are_read_without_importing_them() -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from trackbed.validate import Context; from trackbed.validate.data import dali\n"
        "found = dali.measure_package(Context(output=Path()))\n"
        "print(found['dali'], {'torch', 'nvidia.dali'} & set(sys.modules))"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(dali.__file__).parents[3])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['130'] set()"


def test_dalis_order_is_seen_when_it_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert dali_order.judge(dali_order.measure(context(tmp_path))).status == "pass"
    real = dali_order._pipeline

    def all_to_everyone(files: list[str], **words: Any) -> Any:
        return real(files, **{**words, "shard": 0, "shards": 1})

    monkeypatch.setattr(dali_order, "_pipeline", all_to_everyone)
    outcome = dali_order.judge(dali_order.measure(context(tmp_path)))
    assert (outcome.status, "2 ranks lose" in outcome.observed) == ("fail", True)


def test_an_older_dali_without_checkpoints_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = dali_order._pipeline

    def older(files: list[str], **words: Any) -> Any:
        if "enable_checkpointing" in words:
            raise TypeError("unexpected keyword")
        return real(files, **words)

    monkeypatch.setattr(dali_order, "_pipeline", older)
    assert "no checkpoints" in dali_order.judge(dali_order.measure(context(tmp_path))).observed


# --- TensorBoard ---


@pytest.mark.parametrize(
    ("measure", "judge"),
    [(monitor.measure_roundtrip, monitor.judge_roundtrip), (monitor.measure_server, monitor.judge_server)],
)
def test_messages_that_another_protobuf_breaks_are_left_to_the_stack(
    measure: Any, judge: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "made_by_another_protobuf.py").write_text("raise TypeError('Descriptors cannot be created')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(monitor_server, "MESSAGES", "made_by_another_protobuf")
    outcome = judge(measure(context(tmp_path)))
    assert (outcome.status, "TypeError: Descriptors cannot" in outcome.observed) == ("skip", True)
    assert "stack.imports" in outcome.remedy


def test_the_server_shows_a_scalar_and_stops(tmp_path: Path) -> None:
    outcome = monitor.judge_server(monitor.measure_server(context(tmp_path)))
    assert outcome.status == "pass", outcome


def test_a_server_that_cannot_start_fails_with_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tensorboard.py").write_text("raise SystemExit('no TensorBoard today')")
    monkeypatch.setattr(monitor_server, "environment", lambda: {**os.environ, "PYTHONPATH": str(tmp_path)})
    outcome = monitor.judge_server(monitor.measure_server(context(tmp_path)))
    assert outcome.status == "fail"
    assert "no TensorBoard today" in outcome.observed


def test_log_writes_are_timed_and_leave_nothing(tmp_path: Path) -> None:
    found = monitor.measure_log_folder(context(tmp_path / "new"))
    assert 0 < found["p99"] < 1
    assert list(tmp_path.iterdir()) == []


def test_a_tensorboard_open_to_the_network_is_seen(tmp_path: Path) -> None:
    code = "import socket, time\ns = socket.create_server(('0.0.0.0', 0))\nprint(s.getsockname()[1], flush=True)\n" \
        "time.sleep(600)"  # fmt: skip
    with subprocess.Popen([sys.executable, "-c", code, "tensorboard"], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout
            port = int(server.stdout.readline())
            found = monitor.measure_exposed(context(tmp_path), tmp_path)
            assert {"pid": server.pid, "address": "0.0.0.0", "port": port} in found["servers"]
            assert monitor.judge_exposed(found).status == "warn"
            (tmp_path / ".dockerenv").touch()
            inside = monitor.measure_exposed(context(tmp_path), tmp_path)
            assert monitor.judge_exposed(inside).status == "pass"
        finally:
            server.kill()

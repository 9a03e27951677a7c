"""Prepared data: the ids of the plain way, made once, in parallel, in little memory; killed, it goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import Command, conversation, environ, write_jsonl
from trackbed.data.chat import jsonl, lines
from trackbed.data.chat.check import Effort, scan
from trackbed.data.chat.encode import Dropped, Sample, fit, load_tokenizer, nothing_left, tokenise
from trackbed.data.chat.prepare import prepare
from trackbed.data.chat.prepared import Prepared, open_prepared
from trackbed.data.chat.recipe import Recipe, gather
from trackbed.data.config import DataConfig
from trackbed.errors import DataError, ModelError

PART = 4096
COUNT = 200
MakeJob = Callable[..., Path]
GOOD = json.dumps(conversation(1)).encode() + b"\n"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRACKBED_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "data" / "prepared"


@pytest.fixture
def recipe(tmp_path: Path, tiny_model: Path) -> Recipe:
    data = write_jsonl(tmp_path / "chat.jsonl", [conversation(index) for index in range(COUNT)])
    return Recipe(data, tiny_model, 96, "drop", part_bytes=PART)


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> Any:
    return load_tokenizer(tiny_model)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def left_over(cache: Path) -> list[str]:
    """What is in the cache beside locks and the index."""
    return sorted(path.name for path in cache.iterdir() if path.suffix != ".lock" and path.name != "index")


@pytest.mark.parametrize("workers", [1, 2])
def test_prepared_samples_are_those_of_the_plain_way(recipe: Recipe, tokenizer: Any, workers: int) -> None:
    prepared = prepare(recipe, workers=workers)
    conversations = jsonl.read(recipe.data)
    plain = list(tokenise(conversations, tokenizer))
    assert len(prepared) == len(plain) == COUNT
    for index, (mine, other) in enumerate(zip(prepared, plain, strict=True)):
        assert mine.ids.dtype == np.int64
        assert mine.supervised.dtype == np.bool_
        assert np.array_equal(mine.ids, other.ids)
        assert np.array_equal(mine.supervised, other.supervised)
        assert mine.where == other.where == f"{recipe.data}:{index + 1}"
        assert prepared.conversation(index) == conversations[index]
    assert prepared.lengths.tolist() == [len(sample.ids) for sample in plain]
    assert prepared.targets.tolist() == [sample.supervised[1:].sum() for sample in plain]
    assert prepared.tokens == sum(len(sample.ids) for sample in plain)
    assert prepared.supervised_tokens == sum(sample.supervised.sum() for sample in plain)
    assert prepared.format == "chatml"


def test_workers_and_other_parts_make_no_difference_to_what_is_prepared(recipe: Recipe) -> None:
    one = content(prepare(recipe, workers=1).folder)
    other = content(prepare(replace(recipe, part_bytes=9000), workers=2).folder)
    assert one == other


def test_ids_are_mapped_and_small(recipe: Recipe) -> None:
    prepared = prepare(recipe)
    assert (prepared.folder / "ids.bin").stat().st_size == 2 * prepared.tokens
    assert isinstance(prepared.lengths, np.memmap)
    assert left_over(prepared.folder.parent) == [prepared.folder.name]


def test_ranks_open_what_was_prepared_and_nothing_else(recipe: Recipe) -> None:
    with pytest.raises(DataError, match="not prepared") as caught:
        open_prepared(recipe, "jobs/my.yaml")
    assert caught.value.problems[0].id == "data.not-prepared"
    assert caught.value.problems[0].remedy == "trackbed data prepare jobs/my.yaml"
    made = prepare(recipe)
    assert open_prepared(recipe).digest == made.digest
    assert made.fresh
    assert not prepare(recipe).fresh


def test_damaged_files_are_said_and_made_again(recipe: Recipe) -> None:
    made = prepare(recipe)
    before = content(made.folder)
    os.truncate(made.folder / "ids.bin", 100)
    with pytest.raises(DataError, match="is damaged"):
        open_prepared(recipe)
    assert content(prepare(recipe).folder) == before


FAULTS = {
    "faults in every part": b"".join((GOOD * 30 + b'{"messages": []}\n') for _ in range(6)),
    "more than are named": GOOD + b"{\n" * 500,
    "nothing but faults": b"{}\n{}\n[]\n",
    "no format before line three": b"{}\nnot json\n" + GOOD * 40,
    "two formats fit": GOOD.replace(b'"messages"', b'"conversations": [], "messages"') + GOOD,
    "a mark of UTF-16": b"\xff\xfe\n" + GOOD,
    "a mark in the middle": GOOD * 50 + b"\xef\xbb\xbf" + GOOD,
    "cut off": GOOD * 50 + GOOD[:40],
    "blank": b"\n \n",
    "empty": b"",
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_reported_as_reading_reports_them_and_nothing_is_kept(
    recipe: Recipe, cache: Path, name: str
) -> None:
    recipe.data.write_bytes(FAULTS[name])
    with pytest.raises(DataError) as plain:
        jsonl.read(recipe.data)
    with pytest.raises(DataError) as caught:
        prepare(recipe, workers=2)
    assert caught.value.problems == plain.value.problems
    assert not cache.exists() or left_over(cache) == []


def test_what_the_template_refuses_is_named_between_the_faulty_lines(recipe: Recipe, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    for path in recipe.model.iterdir():
        (model / path.name).write_bytes(path.read_bytes())
    refuse = "{% if 'number 7 ' in messages[0]['content'] %}{{ raise_exception('no seven') }}{% endif %}"
    template = model / "chat_template.jinja"
    template.write_text(refuse + template.read_text())
    raw = recipe.data.read_bytes().splitlines(keepends=True)
    recipe.data.write_bytes(b"".join([*raw[:4], b"[]\n", *raw[4:], b"[]\n"]))
    with pytest.raises(DataError, match="no seven") as caught:
        prepare(replace(recipe, model=model), workers=2)
    assert [problem.where for problem in caught.value.problems] == [f"{recipe.data}:{n}" for n in (5, 9, COUNT + 2)]


def cut_off(recipe: Recipe, too_long: str, max_length: int) -> DataConfig:
    """Data of which every third sample has a long last turn of the user, and a config that cuts there."""
    records = [conversation(index) for index in range(COUNT)]
    for record in records[::3]:
        record["messages"].append({"role": "user", "content": "and then, " * 40})
    write_jsonl(recipe.data, records)
    limits = {"max_length": max_length, "too_long": too_long, "row_length": 100}
    return DataConfig.model_validate({"train": "t", "heldout": "h", **limits})


def test_what_is_dropped_and_why_is_that_of_encoding_the_whole_file(recipe: Recipe, tokenizer: Any) -> None:
    config = cut_off(recipe, "truncate_left", 60)
    whole = list(tokenise(jsonl.read(recipe.data), tokenizer))
    plain = [fit(sample, config) for sample in whole]
    kept = [item for item in plain if isinstance(item, Sample)]
    prepared = prepare(Recipe.of(recipe.data, recipe.model, config))
    assert len(prepared.dropped) == len(range(0, COUNT, 3))
    assert list(prepared.dropped) == [item for item in plain if isinstance(item, Dropped)]
    assert prepared.truncated == sum(fitted is not item for fitted, item in zip(plain, whole, strict=True)) - len(
        prepared.dropped
    )
    assert [sample.where for sample in prepared] == [sample.where for sample in kept]
    assert all((mine.ids == other.ids).all() for mine, other in zip(prepared, kept, strict=True))


@pytest.mark.parametrize(("too_long", "max_length"), [("drop", 8), ("truncate_left", 8)])
def test_nothing_left_is_refused_as_encoding_refuses_it(
    recipe: Recipe, tokenizer: Any, cache: Path, too_long: str, max_length: int
) -> None:
    config = cut_off(recipe, too_long, max_length)
    if too_long == "truncate_left":
        write_jsonl(recipe.data, [json.loads(line) for line in recipe.data.read_text().splitlines()[::3]])
    lost = [fit(sample, config) for sample in tokenise(jsonl.read(recipe.data), tokenizer)]
    with pytest.raises(DataError) as caught:
        prepare(Recipe.of(recipe.data, recipe.model, config))
    dropped = [item for item in lost if isinstance(item, Dropped)]
    assert caught.value.problems == [nothing_left(recipe.data, dropped, config)]
    assert left_over(cache) == []


def test_a_missing_file_is_named(recipe: Recipe) -> None:
    recipe.data.unlink()
    with pytest.raises(DataError, match="cannot be read: No such file"):
        prepare(recipe)


def test_a_line_without_end_is_a_fault_and_is_not_held(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "LONGEST", 10_000)
    recipe.data.write_bytes(GOOD + b'{"messages": "' + b"x" * 50_000 + b'"}\n' + GOOD * 30 + b"[]\n")
    with pytest.raises(DataError) as caught:
        prepare(recipe, workers=1)
    wheres = [(problem.id, problem.where) for problem in caught.value.problems]
    assert wheres == [("data.long-line", f"{recipe.data}:2"), ("data.no-messages", f"{recipe.data}:33")]


def long_samples(recipe: Recipe) -> None:
    long = conversation(1)
    long["messages"][0]["content"] = "word " * 120
    write_jsonl(recipe.data, [conversation(0), long, conversation(2), long])


def test_long_samples_are_dropped_cut_or_refused(recipe: Recipe) -> None:
    long_samples(recipe)
    dropped = prepare(recipe)
    assert len(dropped) == 2
    assert [item.where for item in dropped.dropped] == [f"{recipe.data}:2", f"{recipe.data}:4"]
    assert dropped.dropped[0].reason.endswith("tokens, at most 96")
    with pytest.raises(IndexError):
        dropped[2]
    cut = prepare(replace(recipe, too_long="truncate_left"))
    assert cut.truncated == 2
    assert cut.lengths.max() == 96
    with pytest.raises(DataError) as caught:
        prepare(replace(recipe, too_long="fail"))
    assert [problem.where for problem in caught.value.problems] == [f"{recipe.data}:2", f"{recipe.data}:4"]


def test_shards_are_one_set_in_the_order_of_their_names(recipe: Recipe, tmp_path: Path) -> None:
    folder = tmp_path / "shards"
    folder.mkdir()
    for name, start in (("b.jsonl", 50), ("a.jsonl", 0)):
        write_jsonl(folder / name, [conversation(index) for index in range(start, start + 50)])
    (folder / "notes.txt").write_text("not data")
    whole = prepare(replace(recipe, data=folder), workers=2)
    assert whole.where(0) == f"{folder}/a.jsonl:1"
    assert whole.where(99) == f"{folder}/b.jsonl:50"
    assert "number 99 " in whole.conversation(99).messages[0].content
    assert prepare(replace(recipe, data=folder / "*.jsonl")).digest == whole.digest
    (folder / "b.jsonl").write_bytes(GOOD + b"[]\n")
    with pytest.raises(DataError, match=r"shards/b.jsonl:2: "):
        prepare(replace(recipe, data=folder))


def test_a_folder_without_data_is_named(recipe: Recipe) -> None:
    with pytest.raises(DataError, match=r"no file here is named \*.jsonl"):
        prepare(replace(recipe, data=recipe.model))


def test_a_changed_byte_setting_or_template_has_another_key(recipe: Recipe, tmp_path: Path) -> None:
    before = prepare(recipe)
    keys = {before.folder}
    keys.add(prepare(replace(recipe, max_length=95)).folder)
    keys.add(prepare(replace(recipe, too_long="truncate_left")).folder)
    model = tmp_path / "model"
    model.mkdir()
    for path in recipe.model.iterdir():
        (model / path.name).write_bytes(path.read_bytes())
    assert prepare(replace(recipe, model=model)).folder in keys
    template = model / "chat_template.jinja"
    template.write_text(template.read_text().replace("assistant\n", "assistant: \n"))
    keys.add(prepare(replace(recipe, model=model)).folder)
    raw = recipe.data.read_bytes()
    recipe.data.write_bytes(raw.replace(b"it is 8", b"it is 9", 1))
    changed = prepare(recipe)
    keys.add(changed.folder)
    assert len(keys) == 5
    assert changed.digest != before.digest


def test_the_same_bytes_elsewhere_are_prepared_already(recipe: Recipe, tmp_path: Path) -> None:
    prepare(recipe)
    other = tmp_path / "copy.jsonl"
    other.write_bytes(recipe.data.read_bytes())
    prepared = prepare(replace(recipe, data=other))
    assert not prepared.fresh
    assert prepared[3].where == f"{other}:4"


def hashed(recipe: Recipe) -> bool:
    """Whether opening reads the data, and not only the index."""
    stages: list[str] = []
    prepare(recipe, lambda stage, done, total: stages.append(stage))
    return any(stage.startswith("hash") for stage in stages)


def settle(cache: Path) -> None:
    """Make the index believe that the data was left alone before it was read."""
    for path in (cache / "index").iterdir():
        entry = json.loads(path.read_bytes())
        path.write_text(json.dumps({**entry, "began_ns": max(entry["identity"][2:]) + 3_000_000_000}))


def test_a_second_start_reads_only_the_index(recipe: Recipe, cache: Path) -> None:
    assert hashed(recipe)
    assert hashed(recipe), "the file is younger than 2 s: its times prove nothing"
    settle(cache)
    assert not hashed(recipe)
    status = recipe.data.stat()
    raw = recipe.data.read_bytes()
    recipe.data.write_bytes(raw.replace(b"number 7 ", b"number 8 "))
    os.utime(recipe.data, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert hashed(recipe), "the same size, inode and time of writing, and other bytes"
    assert "number 8 " in open_prepared(recipe).conversation(7).messages[0].content


def test_a_conversation_of_data_that_changed_is_refused(recipe: Recipe) -> None:
    prepared = prepare(recipe)
    recipe.data.write_bytes(b"x" + recipe.data.read_bytes())
    with pytest.raises(DataError, match=r"chat.jsonl:10: the data has changed since it was prepared"):
        prepared.conversation(9)


@pytest.mark.parametrize("stage", ["hash", "prepare"])
def test_data_that_is_written_to_meanwhile_is_refused(recipe: Recipe, cache: Path, stage: str) -> None:
    """Samples of bytes that are not those of the key would be kept under it for ever."""
    raw = recipe.data.read_bytes()

    def write(now: str, done: int, total: int) -> None:
        if now.startswith(stage):
            recipe.data.write_bytes(raw.replace(b"number 150 ", b"number 151 "))

    with pytest.raises(DataError, match="was written to while it was read"):
        prepare(recipe, write, workers=1)
    assert not cache.exists() or left_over(cache) == []


def test_a_model_that_cannot_be_used_is_said(recipe: Recipe, tmp_path: Path, cache: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    for path in recipe.model.glob("tokenizer*"):
        (model / path.name).write_bytes(path.read_bytes())
    with pytest.raises(ModelError, match="no chat template"):
        prepare(replace(recipe, model=model), workers=2)
    assert left_over(cache) == []


# VmHWM and not getrusage: exec takes over the peak of the process that was forked, here pytest with torch in it.
SCRIPT = """
import json, sys
from pathlib import Path
from trackbed.data.chat.prepare import prepare
from trackbed.data.chat.recipe import Recipe, gather
def peak(process):
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)
def workers_peak():
    found = Path("/proc/self/task").glob("*/children")
    return max((peak(pid) for path in found for pid in path.read_text().split()), default=0)
peaks = []
def say(stage, done, total):
    peaks.append(workers_peak())
    print(json.dumps([stage, done, total]), flush=True)
data, model, workers, part = sys.argv[1:]
made = prepare(Recipe(Path(data), Path(model), 8192, "drop", part_bytes=int(part)), say, int(workers))
said = {"parent": peak("self"), "worker": max(peaks), "torch": "torch" in sys.modules}
print(json.dumps({**said, "folder": str(made.folder), "fresh": made.fresh}))
"""


def start(data: Path, model: Path, cache_of: Path, workers: int = 2, part: int = PART) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SCRIPT, str(data), str(model), str(workers), str(part)]
    return subprocess.Popen(
        command,
        env=environ(cache_of),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finished(process: subprocess.Popen[str]) -> tuple[list[list[Any]], dict[str, Any]]:
    """The progress that a process told, and what it said at its end."""
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    *progress, last = [json.loads(line) for line in out.splitlines()]
    return progress, last


def parts(cache_of: Path) -> list[Path]:
    return sorted((cache_of / "cache" / "data" / "prepared").glob(".*.parts/0*.npz"))


def until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.fixture
def larger(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "larger.jsonl", [conversation(index) for index in range(4000)])


def test_a_killed_prepare_goes_on_and_its_files_are_the_same(larger: Path, tiny_model: Path, tmp_path: Path) -> None:
    _, whole = finished(start(larger, tiny_model, tmp_path / "whole", part=16 * PART))
    process = start(larger, tiny_model, tmp_path / "killed", part=16 * PART)
    until(lambda: len(parts(tmp_path / "killed")) >= 2, process)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    kept = {path: path.stat().st_mtime_ns for path in parts(tmp_path / "killed")}
    folder = tmp_path / "killed" / "cache" / "data" / "prepared" / Path(whole["folder"]).name
    assert not folder.exists()
    assert kept
    progress, again = finished(start(larger, tiny_model, tmp_path / "killed", part=16 * PART))
    (_, done, total) = next(item for item in progress if item[0].startswith("prepare"))
    assert 16 * PART < done < total
    assert again["folder"] == str(folder)
    assert content(folder) == content(Path(whole["folder"]))
    assert left_over(folder.parent) == [folder.name]


def test_a_damaged_part_is_made_again(larger: Path, tiny_model: Path, tmp_path: Path) -> None:
    _, whole = finished(start(larger, tiny_model, tmp_path / "whole", part=16 * PART))
    process = start(larger, tiny_model, tmp_path / "killed", part=16 * PART)
    until(lambda: len(parts(tmp_path / "killed")) >= 2, process)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    first, second = parts(tmp_path / "killed")[:2]
    raw = bytearray(first.read_bytes())
    raw[len(raw) // 4] ^= 1
    first.write_bytes(raw)
    second.write_bytes(second.read_bytes()[:1000])
    _, again = finished(start(larger, tiny_model, tmp_path / "killed", part=16 * PART))
    assert content(Path(again["folder"])) == content(Path(whole["folder"]))


def test_two_at_once_make_it_once(larger: Path, tiny_model: Path, tmp_path: Path) -> None:
    first = start(larger, tiny_model, tmp_path, workers=1)
    until(lambda: len(parts(tmp_path)) >= 1, first)
    second = start(larger, tiny_model, tmp_path, workers=1)
    _, made = finished(first)
    progress, waited = finished(second)
    assert made["fresh"]
    assert not waited["fresh"]
    assert made["folder"] == waited["folder"]
    assert ["wait for another job that prepares this data", 0, 1] in progress
    assert not [item for item in progress if item[0].startswith("prepare")]


def children(pid: int) -> list[int]:
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        found += [int(word) for word in path.read_text().split()]
    return found


def test_a_worker_that_is_killed_is_said_and_leaves_what_is_done(
    larger: Path, tiny_model: Path, tmp_path: Path
) -> None:
    process = start(larger, tiny_model, tmp_path)
    until(lambda: len(parts(tmp_path)) >= 1, process)
    os.kill(children(process.pid)[0], signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "ended before its time (signal 9)" in err
    assert parts(tmp_path)
    finished(start(larger, tiny_model, tmp_path))


def test_workers_of_a_killed_parent_end(larger: Path, tiny_model: Path, tmp_path: Path) -> None:
    process = start(larger, tiny_model, tmp_path)
    until(lambda: len(parts(tmp_path)) >= 1, process)
    workers = children(process.pid)
    assert len(workers) == 2
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 30
    while any(alive(pid) for pid in workers):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def paragraphs(path: Path, count: int) -> Path:
    """About 10 kB a conversation."""
    text = " ".join(f"what follows the number {index}" for index in range(350))
    with path.open("w") as file:
        for index in range(count):
            messages = [{"role": "user", "content": f"{index} {text}"}, {"role": "assistant", "content": "ok"}]
            file.write(json.dumps({"messages": messages}) + "\n")
    return path


def test_memory_does_not_grow_with_the_file(tiny_model: Path, tmp_path: Path) -> None:
    small, large = paragraphs(tmp_path / "small.jsonl", 220), paragraphs(tmp_path / "large.jsonl", 2200)
    assert large.stat().st_size > 20e6
    peaks = []
    for path in (small, large):
        _, said = finished(start(path, tiny_model, tmp_path, part=1 << 20))
        assert not said["torch"]
        peaks.append(said)
    less, more = peaks
    assert more["parent"] - less["parent"] < 8 * 1024, "KiB: the parent holds one part at a time"
    assert more["worker"] - less["worker"] < 16 * 1024, "KiB: a worker holds one part at a time"


def test_a_worker_loads_no_torch(tiny_model: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from trackbed.data.chat import part; "
        f"part.load_tokenizer(Path({str(tiny_model)!r})); print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ(tmp_path), capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("workers", [1, 2])
def test_a_file_is_looked_at_without_a_tokenizer(recipe: Recipe, workers: int) -> None:
    bad = recipe.data.with_name("bad.jsonl")
    bad.write_bytes(b"".join(GOOD * 20 + b"[]\n" + GOOD + b"{\n" for _ in range(30)))
    found = scan(bad, "auto", 25, Effort(workers=workers))
    assert found["conversations"] == 30 * 21
    assert found["faults"] == 60
    assert found["kinds"] == {"data.no-messages": 30, "data.cut": 30}
    numbers = [number + place for number in range(0, 30 * 23, 23) for place in (21, 23)]
    assert [problem.where for problem in found["problems"]] == [f"{bad}:{number}" for number in numbers[:25]]


def test_the_command_prepares_once_and_says_what_it_made(job: MakeJob, trackbed: Command) -> None:
    path = job()
    first = trackbed("data", "prepare", path)
    assert first.returncode == 0, first.stderr
    assert "train: 100 samples, " in first.stdout
    assert "% filled; 0 dropped, 0 truncated" in first.stdout
    assert "format chatml; made in " in first.stdout
    again = json.loads(trackbed("data", "prepare", path, "--json").stdout)
    assert [again[part]["made"] for part in ("train", "heldout")] == [False, False]
    other = json.loads(
        trackbed("data", "prepare", path, "--json", "--workers", "2", "--set", "data.max_length=90").stdout
    )
    assert other["train"]["made"]
    assert other["train"]["prepared"] != again["train"]["prepared"]


def test_checking_a_job_leaves_it_prepared(job: MakeJob, trackbed: Command, recipe: Recipe) -> None:
    path = job()
    done = trackbed("data", "check", path, "--json")
    counts = json.loads(done.stdout)
    wanted = {"file", "samples", "tokens", "supervised_tokens", "rows", "filled", "truncated", "dropped"}
    assert wanted | {"dropped_samples"} <= set(counts["train"])
    opened: Prepared = open_prepared(replace(recipe, data=Path(counts["train"]["file"]), part_bytes=0))
    assert opened.tokens == counts["train"]["tokens"]
    assert str(opened.folder) == counts["train"]["prepared"]


def test_faults_of_both_parts_are_said_at_once(job: MakeJob, trackbed: Command, tmp_path: Path) -> None:
    path = job()
    for name in ("train", "heldout"):
        (tmp_path / f"{name}.jsonl").write_bytes(GOOD + b"[]\n")
    done = trackbed("data", "prepare", path, "--json")
    assert done.returncode == 2
    problems = json.loads(done.stdout)["problems"]
    assert [problem["where"] for problem in problems] == [f"{tmp_path}/{name}.jsonl:2" for name in ("train", "heldout")]
    assert "Traceback" not in done.stderr


def test_the_command_checks_lines(trackbed: Command, recipe: Recipe) -> None:
    good = trackbed("data", "check", recipe.data)
    assert good.returncode == 0
    assert good.stdout == f"{recipe.data}: {COUNT} conversations in the format chatml, 0 faulty\n"
    with recipe.data.open("ab") as file:
        file.write(b"[]\n{\n[]\n")
    bad = trackbed("data", "check", recipe.data, "--most", "2")
    assert bad.returncode == 2
    assert f"{recipe.data}:{COUNT + 1}: " in bad.stderr
    assert "and 1 more faulty lines; --most N names more" in bad.stderr
    assert "3 faulty (2 data.no-messages, 1 data.cut)" in bad.stdout
    said = json.loads(trackbed("data", "check", recipe.data, "--json").stdout)
    assert (said["faults"], len(said["problems"])) == (3, 3)


@pytest.fixture
def full_disk(tmp_path: Path) -> Path:
    """A cache that is a file: nothing can be made below it, whoever asks."""
    path = tmp_path / "no-folder"
    path.write_text("")
    return path


def test_a_cache_that_cannot_be_written_is_said(
    recipe: Recipe, full_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKBED_CACHE", str(full_disk))
    with pytest.raises(DataError, match="the cache cannot be written: Not a directory"):
        prepare(recipe)


def test_a_faulty_file_before_the_one_that_shows_the_format_is_counted_once(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"[]\n{bad\n")
    (tmp_path / "b.jsonl").write_bytes(GOOD + b"[]\n")
    found = scan(tmp_path, "auto", 20, Effort())
    assert found["faults"] == 3
    assert [problem.where.rsplit("/", 1)[1] for problem in found["problems"]] == ["a.jsonl:1", "a.jsonl:2", "b.jsonl:2"]


def test_a_killed_submitter_leaves_nothing_that_prepares(job: MakeJob, tmp_path: Path) -> None:
    path = job()
    data = tmp_path / "train.jsonl"
    data.write_bytes(data.read_bytes() * 2000)
    command = [sys.executable, "-m", "trackbed", "submit", str(path), "--dry-run"]
    with subprocess.Popen(command, env=environ(tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as one:
        deadline = time.monotonic() + 60
        while not (checks := _naming(path)) and time.monotonic() < deadline:
            time.sleep(0.1)
        one.kill()
    assert checks
    while _naming(path) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _naming(path)
    assert not list((tmp_path / "cache" / "data" / "prepared").glob("[!.]*/meta.json"))


def _naming(job_file: Path) -> list[int]:
    """Process ids of `trackbed data check` for a job."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if str(job_file).encode() in words and b"check" in words:
                found.append(int(entry.name))
    return found


def test_a_lock_that_cannot_be_held_is_said(recipe: Recipe, cache: Path) -> None:
    ingredients = gather(recipe, lambda stage, done, total: None)
    ingredients.folder.with_name(f".{ingredients.folder.name}.lock").mkdir(parents=True)
    with pytest.raises(DataError, match="the cache cannot be written") as caught:
        prepare(recipe)
    assert caught.value.problems[0].id == "data.cache-write"

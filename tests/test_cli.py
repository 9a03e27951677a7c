"""Bad input at the command line: one clear error, exit 2, no traceback, nothing half-written."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import Command, write_jsonl
from test_data import BAD_LINES, GOOD, LONG

MakeJob = Callable[..., Path]


def refused(trackbed: Command, tmp_path: Path, job: Path, *words: str) -> str:
    done = trackbed("submit", job, "--skip-validation", *words)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert done.stderr.startswith("error: ")
    assert not list((tmp_path / "runs").rglob("*")) if (tmp_path / "runs").is_dir() else True
    return done.stderr


def test_several_job_errors_at_once(trackbed: Command, job: MakeJob, tmp_path: Path) -> None:
    text = refused(trackbed, tmp_path, job(train={"stepz": 3, "steps": "many"}))
    assert text.count("error: ") == 2
    assert "did you mean `steps`?" in text


def test_a_missing_data_file(trackbed: Command, job: MakeJob, tmp_path: Path) -> None:
    text = refused(trackbed, tmp_path, job(), "--set", "data.train=nowhere.jsonl")
    assert "nowhere.jsonl: the data file cannot be read" in text


def test_a_set_that_was_not_built_names_the_command(trackbed: Command, job: MakeJob, tmp_path: Path) -> None:
    text = refused(trackbed, tmp_path, job(), "--set", "data.train=pydocs:train")
    assert "mend:   trackbed data build pydocs" in text


@pytest.mark.parametrize("id", ["data.not-utf8", "data.role"])
def test_faulty_data_stops_a_job_before_it_starts(trackbed: Command, job: MakeJob, tmp_path: Path, id: str) -> None:
    """test_data.py has every faulty line; the way from there to the command line is the same for all."""
    path = job()
    (tmp_path / "train.jsonl").write_bytes(GOOD + BAD_LINES[id][0])
    text = refused(trackbed, tmp_path, path)
    assert f"{tmp_path}/train.jsonl:2" in text
    assert BAD_LINES[id][1] in text


def test_faults_of_both_files_are_shown_together(trackbed: Command, job: MakeJob, tmp_path: Path) -> None:
    path = job()
    (tmp_path / "train.jsonl").write_bytes(b"\xef\xbb\xbf" + GOOD)
    (tmp_path / "heldout.jsonl").write_bytes(GOOD + BAD_LINES["data.cut"][0])
    text = refused(trackbed, tmp_path, path)
    assert f"{tmp_path}/train.jsonl:1: the file begins with a byte-order mark" in text
    assert f"{tmp_path}/heldout.jsonl:2: the line is cut off" in text


def test_every_sample_too_long(trackbed: Command, job: MakeJob, tmp_path: Path) -> None:
    path = job()
    write_jsonl(tmp_path / "train.jsonl", [LONG] * 5)
    assert "every one of the 5 samples was dropped" in refused(trackbed, tmp_path, path)


def test_dropped_samples_are_counted_and_named_in_the_plan(trackbed: Command, job: MakeJob, tmp_path: Path) -> None:
    path = job()
    with (tmp_path / "train.jsonl").open("a") as file:
        file.write(json.dumps(LONG) + "\n")
    done = trackbed("submit", path, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "1 dropped" in done.stdout
    assert f"{tmp_path}/train.jsonl:101" in done.stdout.replace("\n", "")


def test_an_output_folder_that_cannot_be_written(trackbed: Command, job: MakeJob, tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file where the folder should be")
    text = refused(trackbed, tmp_path, job())
    assert "the output folder cannot be written" in text
    assert "TRACKBED_RUNS" in text


def test_a_model_folder_without_a_tokenizer(trackbed: Command, job: MakeJob, tmp_path: Path, tiny_model: Path) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(tiny_model, bare)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (bare / name).unlink()
    text = refused(trackbed, tmp_path, job(model={"name": str(bare)}))
    assert f"{bare}: the model folder has no tokenizer" in text


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("smollm2-135m", "mend:   trackbed model fetch smollm2-135m"),
        ("nobody/no-such-model", "hub model nobody/no-such-model is not in this machine's cache"),
        ("./nowhere", "there is no model `./nowhere`"),
    ],
)
def test_a_model_that_is_not_here(trackbed: Command, job: MakeJob, tmp_path: Path, name: str, wanted: str) -> None:
    text = refused(trackbed, tmp_path, job(model={"name": name}))
    assert wanted in text
    assert text.count("error: ") == 1


def test_fetching_an_unknown_hub_model_offline_is_one_error(trackbed: Command) -> None:
    done = trackbed("model", "fetch", "nobody/no-such-model", HF_HUB_OFFLINE="1")
    assert done.returncode == 2
    assert done.stderr.count("error: ") == 1
    assert "Traceback" not in done.stderr


def test_a_dry_run_prints_the_command_and_starts_nothing(trackbed: Command, job: MakeJob, tmp_path: Path) -> None:
    done = trackbed("submit", job(), "--dry-run", "--run-name", "planned")
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "runs").exists()
    words = shlex.split(done.stdout.split("command:\n", 1)[1])
    assert "torch.distributed.run" in words
    assert words[-3:] == ["trackbed", "train", str(tmp_path / "runs" / "planned" / "job.yaml")]
    assert words[words.index("--nproc-per-node") + 1] == "2"


def test_a_run_is_never_written_over(trackbed: Command, job: MakeJob, tmp_path: Path) -> None:
    (tmp_path / "runs" / "old").mkdir(parents=True)
    (tmp_path / "runs" / "old" / "job.yaml").write_text("name: old")
    done = trackbed("submit", job(), "--run-name", "old", "--skip-validation")
    assert done.returncode == 2
    assert "there is already a run" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("submit",),
        ("submit", "--resume", "nothing"),
        ("submit", "--resume", "x", "--set", "a=1"),
        ("monitor", "--port", "x"),
    ],
)
def test_wrong_usage_exits_2(trackbed: Command, words: tuple[str, ...]) -> None:
    done = trackbed(*words)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_an_edited_rendered_file_is_found(trackbed: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from conftest import ROOT

    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "docs").mkdir()
    for name in ("Dockerfile", "compose.yaml", "compose.gpu.yaml", "README.md", "docs/releases.md"):
        shutil.copy(ROOT / name, copy / name)
    shutil.copytree(ROOT / "requirements", copy / "requirements")
    monkeypatch.chdir(copy)
    assert trackbed("release", "render", "--check").returncode == 0
    pins = copy / "requirements" / "23.06" / "cpu.in"
    pins.write_text(pins.read_text().replace("numpy==", "numpy==9"))
    done = trackbed("release", "render", "--check")
    assert done.returncode == 2
    assert "cpu.in: differs from the release" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("submit", "jobs/finetune-smollm2.yaml"),
        ("demo",),
        ("data", "check", "jobs/finetune-smollm2.yaml"),
        ("job", "schema"),
    ],
)
def test_a_release_that_runs_no_jobs_says_so_first(
    trackbed: Command, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKBED_RELEASE", "23.06")
    done = trackbed(*words)
    assert done.returncode == 2
    assert "release 23.06 runs no job templates" in done.stderr
    assert "cannot train on a CPU" in done.stderr
    assert "use the image of release 26.11" in done.stderr

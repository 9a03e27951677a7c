"""Real runs: two gloo ranks, DeepSpeed, a tiny model. What a run leaves, how it ends, and how it goes on."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import Command, conversation, environ, write_jsonl
from runs import events, lines, losses, ranks_of, stop_at, submit

MakeJob = Callable[..., Path]


def test_a_checkpoint_that_cannot_be_written_ends_the_run_at_once(
    job: MakeJob, trackbed: Command, tmp_path: Path
) -> None:
    """A limit of 200 KiB on the size of files stands for a full disk: the writer fails in the middle."""
    path = job(checkpoint={"every": 2, "keep": 1})
    words = [sys.executable, "-m", "trackbed", "submit", str(path), "--run-name", "full", "--skip-validation"]
    command = ["bash", "-c", 'ulimit -f 200; exec "$@"', "bash", *words]
    # Python itself would leave cut-off bytecode behind, which breaks every later start.
    environment = environ(tmp_path, PYTHONDONTWRITEBYTECODE="1")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 1, done.stdout + done.stderr
    run = tmp_path / "runs" / "full"
    assert json.loads((run / "failure.json").read_text())["id"] == "checkpoint.not-written"
    assert not list((run / "checkpoints").glob("step-*"))
    assert not (run / "checkpoints" / "latest").exists()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> tuple[Path, str]:
    """One finished run, with validation, and what it printed."""
    import yaml

    folder = tmp_path_factory.mktemp("finished")
    write_jsonl(folder / "train.jsonl", [conversation(i) for i in range(200)])
    write_jsonl(folder / "heldout.jsonl", [conversation(i) for i in range(200, 230)])
    content = {
        "name": "tiny",
        "model": {"name": str(tiny_model), "precision": "bf16"},
        "data": {"train": "train.jsonl", "heldout": "heldout.jsonl", "max_length": 96, "row_length": 192},
        "train": {"steps": 12, "accumulate": 2, "learning_rate": 0.004, "warmup_steps": 2, "zero_stage": 2},
        "evaluate": {"every": 6, "samples": 9, "answers": 2, "max_new_tokens": 8},
        "checkpoint": {"every": 5, "keep": 2},
        "resources": {"ranks": 2},
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(content))
    command = [sys.executable, "-m", "trackbed", "submit", "job.yaml", "--run-name", "first"]
    done = subprocess.run(command, env=environ(folder), cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "runs" / "first", done.stdout


def test_a_run_leaves_everything_that_explains_it(finished: tuple[Path, str]) -> None:
    run, printed = finished
    names = {path.name for path in run.iterdir()}
    wanted = {"job.yaml", "plan.json", "provenance.json", "validation.json", "metrics.jsonl", "summary.json", "model"}
    assert wanted <= names
    assert "failure.json" not in names
    assert not [name for name in names if "partial" in name]
    assert "held-out loss" in printed
    assert str(run) in printed


def test_training_learns(finished: tuple[Path, str]) -> None:
    run, _ = finished
    summary = json.loads((run / "summary.json").read_text())
    assert summary["after"]["loss"] < 0.9 * summary["before"]["loss"]
    assert summary["after"]["samples"] == 9


def test_tensorboard_and_metrics_file_say_the_same(finished: tuple[Path, str]) -> None:
    run, _ = finished
    board = events(run)
    wanted = {"train/loss", "train/learning_rate", "train/gradient_norm", "heldout/loss", "heldout/exact_match"}
    wanted |= {f"speed/{name}" for name in ("tokens_per_second", "supervised_tokens_per_second", "data_wait_share")}
    assert wanted | {"speed/step_seconds", "memory/peak_gib_per_rank"} == set(board.Tags()["scalars"])
    for name in wanted:
        shown = {event.step: event.value for event in board.Scalars(name)}
        written = {line["step"]: line[name] for line in lines(run) if name in line}
        assert shown == pytest.approx(written, rel=1e-6)
    texts = set(board.Tags()["tensors"])
    assert {f"{name}/text_summary" for name in ("answers", "run/job", "run/plan", "run/validation")} <= texts


def test_evaluation_is_before_during_and_after(finished: tuple[Path, str]) -> None:
    run, _ = finished
    assert [line["step"] for line in lines(run) if "heldout/loss" in line] == [0, 6, 12]


def test_the_learning_rate_rises_and_falls(finished: tuple[Path, str]) -> None:
    run, _ = finished
    rates = [line["train/learning_rate"] for line in lines(run) if "train/learning_rate" in line]
    assert rates[0] > 0
    assert max(rates) == rates[2] == pytest.approx(0.004)
    assert rates[2:] == sorted(rates[2:], reverse=True)


def test_the_final_model_loads_with_transformers(finished: tuple[Path, str], tiny_model: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    run, _ = finished
    tuned, base = (
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32) for folder in (run / "model", tiny_model)
    )
    assert list((run / "model").glob("*.safetensors"))
    assert AutoTokenizer.from_pretrained(run / "model").chat_template
    assert not torch.equal(tuned.get_input_embeddings().weight, base.get_input_embeddings().weight)


def test_old_checkpoints_are_pruned_and_the_pointer_names_the_newest(finished: tuple[Path, str]) -> None:
    run, _ = finished
    folder = run / "checkpoints"
    assert sorted(path.name for path in folder.glob("step-*")) == ["step-00000010", "step-00000012"]
    assert (folder / "latest").read_text().strip() == "step-00000012"
    assert not list(folder.glob(".*"))


def test_15_steps_and_a_kill_and_15_more_equal_30(job: MakeJob, trackbed: Command, tmp_path: Path) -> None:
    path = job(
        # Slow enough for the run to be far from its end when a word of its eighteenth step arrives.
        train={"steps": 30, "learning_rate": 0.003, "accumulate": 4},
        evaluate={"every": 30, "samples": 4, "answers": 0, "max_new_tokens": 2},
        checkpoint={"every": 15, "keep": 1},
    )
    assert submit(trackbed, path, "whole").returncode == 0
    runs = tmp_path / "runs"

    def kill_a_rank(process: subprocess.Popen[str]) -> None:
        os.kill(ranks_of(runs / "killed")[-1], signal.SIGKILL)

    words = ["submit", str(path), "--run-name", "killed", "--skip-validation"]
    assert stop_at(tmp_path, words, "step 18/30", kill_a_rank) == 1
    failure = json.loads((runs / "killed" / "failure.json").read_text())
    assert failure["id"] == "run.rank-lost"
    assert "SIGKILL" in failure["what"]
    assert ranks_of(runs / "killed") == []
    resumed = trackbed("submit", "--resume", "killed", "--skip-validation")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert "resumed from step 15" in resumed.stdout
    assert losses(runs / "killed") == losses(runs / "whole")
    weights = [(runs / name / "model" / "model.safetensors").read_bytes() for name in ("whole", "killed")]
    assert weights[0] == weights[1]
    shown = [event.step for event in events(runs / "killed").Scalars("train/loss")]
    assert shown == list(range(1, 31))


def test_a_stop_signal_leaves_a_committed_checkpoint(job: MakeJob, trackbed: Command, tmp_path: Path) -> None:
    path = job(train={"steps": 500}, checkpoint={"every": 500, "keep": 1}, evaluate={"every": 500, "samples": 2})
    words = ["submit", str(path), "--run-name", "stopped", "--skip-validation"]
    code = stop_at(tmp_path, words, "step 4/500", lambda process: process.send_signal(signal.SIGTERM))
    run = tmp_path / "runs" / "stopped"
    failure = json.loads((run / "failure.json").read_text())
    assert code == 1
    assert failure["id"] == "run.interrupted"
    assert f"--resume {run}" in failure["remedy"]
    (saved,) = (run / "checkpoints").glob("step-*")
    assert int(saved.name.removeprefix("step-")) >= 4
    assert ranks_of(run) == []


def test_a_killed_submitter_leaves_no_rank_behind(job: MakeJob, tmp_path: Path) -> None:
    path = job(train={"steps": 500}, checkpoint={"every": 500, "keep": 1}, evaluate={"every": 500, "samples": 2})
    words = ["submit", str(path), "--run-name", "orphans", "--skip-validation"]
    run = tmp_path / "runs" / "orphans"
    assert stop_at(tmp_path, words, "step 3/500", lambda process: process.kill()) == -signal.SIGKILL
    gone = threading.Event()
    for _ in range(600):
        if not ranks_of(run):
            break
        gone.wait(0.1)
    assert ranks_of(run) == []
    assert list((run / "checkpoints").glob("step-*"))


def copy_of(finished: tuple[Path, str], tmp_path: Path, name: str) -> Path:
    """The finished run under another name, its result taken away, as if it had just been cut off."""
    run = tmp_path / "runs" / name
    shutil.copytree(finished[0], run)
    (run / "summary.json").unlink()
    return run


def test_damaged_checkpoints_are_named_and_never_loaded(
    finished: tuple[Path, str], trackbed: Command, tmp_path: Path
) -> None:
    run = copy_of(finished, tmp_path, "damaged")
    shard = next((run / "checkpoints" / "step-00000012").glob("engine/*optim_states.pt"))
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    again = trackbed("submit", "--resume", run, "--skip-validation")
    assert again.returncode == 0, again.stdout + again.stderr
    assert f"step-00000012 is not whole and is passed over: {shard.name} has other content" in again.stdout
    assert "resumed from step 10" in again.stdout
    assert losses(run) == losses(finished[0])
    assert (run / "checkpoints" / "bad-step-00000012").is_dir()
    for checkpoint in (run / "checkpoints").glob("step-*"):
        (checkpoint / "manifest.json").unlink()
    refused = trackbed("submit", "--resume", run, "--skip-validation")
    assert refused.returncode == 2
    assert "none of the 2 checkpoints is whole" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_run_does_not_go_on_with_other_data_or_twice_at_once(
    finished: tuple[Path, str], trackbed: Command, tmp_path: Path
) -> None:
    from trackbed import folders

    run = copy_of(finished, tmp_path, "changed")
    with folders.lock(run):
        busy = trackbed("submit", "--resume", run, "--skip-validation")
    assert busy.returncode == 2
    assert "another attempt of this run is still going on" in busy.stderr
    data = write_jsonl(tmp_path / "other.jsonl", [conversation(i) for i in range(50)])
    job = (run / "job.yaml").read_text()
    (run / "job.yaml").write_text(job.replace(str(finished[0].parents[1] / "train.jsonl"), str(data)))
    changed = trackbed("submit", "--resume", run, "--skip-validation")
    assert changed.returncode == 2
    assert "data_sha256 was" in changed.stderr
    (run / "job.yaml").write_text(job)
    for checkpoint in (run / "checkpoints").glob("step-*"):
        shutil.rmtree(checkpoint)
    gone = trackbed("submit", "--resume", run, "--skip-validation")
    assert gone.returncode == 2
    assert "the checkpoints are gone" in gone.stderr


def test_resuming_with_other_ranks_is_refused(finished: tuple[Path, str], trackbed: Command, tmp_path: Path) -> None:
    run = copy_of(finished, tmp_path, "world")
    job = (run / "job.yaml").read_text()
    assert "ranks: 2" in job
    (run / "job.yaml").write_text(job.replace("ranks: 2", "ranks: 1"))
    refused = trackbed("submit", "--resume", "world", "--skip-validation")
    assert refused.returncode == 2
    assert "saved by 2 ranks, this run has 1" in refused.stderr


def test_a_gradient_that_is_not_finite_ends_the_run(job: MakeJob, trackbed: Command, tmp_path: Path) -> None:
    path = job(train={"learning_rate": 1e30, "warmup_steps": 0, "gradient_clip": 1e30})
    assert submit(trackbed, path, "diverged").returncode == 1
    failure = json.loads((tmp_path / "runs" / "diverged" / "failure.json").read_text())
    assert failure["id"] == "train.gradient-not-finite"


def test_a_loss_that_is_not_finite_ends_the_run(
    job: MakeJob, trackbed: Command, tmp_path: Path, tiny_model: Path
) -> None:
    from safetensors.torch import load_file, save_file

    broken = tmp_path / "broken"
    shutil.copytree(tiny_model, broken)
    weights = load_file(broken / "model.safetensors")
    weights["model.norm.weight"][0] = float("nan")
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    done = submit(trackbed, job(model={"name": str(broken)}), "nan")
    assert done.returncode == 1
    assert "the loss of step 1 is not finite" in done.stderr
    assert json.loads((tmp_path / "runs" / "nan" / "failure.json").read_text())["id"] == "train.loss-not-finite"
    assert "Traceback" not in done.stderr


def test_a_tokenizer_without_a_padding_token_is_evaluated(
    job: MakeJob, tiny_model: Path, trackbed: Command, tmp_path: Path
) -> None:
    """As those of the Llamas are."""
    model = tmp_path / "model"
    shutil.copytree(tiny_model, model)
    settings = json.loads((model / "tokenizer_config.json").read_text())
    del settings["pad_token"]
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    train = {"steps": 1, "learning_rate": 0.001}
    done = submit(trackbed, job(model={"name": str(model)}, train=train, resources={"ranks": 1}), "unpadded")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_world_of_another_size_is_refused(job: MakeJob, tmp_path: Path) -> None:
    path = job(resources={"ranks": 4})
    command = [sys.executable, "-m", "trackbed", "train", str(path)]
    done = subprocess.run(command, env=environ(tmp_path), capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "1 ranks were started, the job asks for 4" in done.stderr

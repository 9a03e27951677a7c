"""Pictures and sounds from files to a trained network: real runs of two ranks, as a user submits them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import datasets
from conftest import Command, write_job
from runs import events, losses, ranks_of, stop_at, submit
from trackbed.data.config import AudioConfig, ImageConfig
from trackbed.data.order import Share
from trackbed.data.samples.parts import open_parts
from trackbed.data.samples.settings import shape
from trackbed.data.samples.streams import training
from trackbed.data.sets import sounds
from trackbed.errors import DataError, JobError
from trackbed.job import load

MakeJob = Callable[..., Path]
SIDE = 24


def bars(folder: Path, count: int) -> Path:
    """Pictures of a bar that stands or lies, somewhere, on noise: what a network learns in a few steps."""
    for number in range(count):
        random = np.random.default_rng((count, number))
        pixels = random.integers(0, 90, (SIDE, SIDE, 3), dtype=np.uint8)
        place = int(random.integers(4, SIDE - 8))
        upright = number % 2 == 0
        pixels[(slice(None), slice(place, place + 4)) if upright else slice(place, place + 4)] += 150
        file = folder / ("upright" if upright else "lying") / f"{number:03d}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(file, quality=95)
    return folder


@pytest.fixture
def image_job(tmp_path: Path) -> MakeJob:
    """Writes a job for pictures of bars; sections given as keywords are laid over it."""

    def make(**sections: dict[str, Any]) -> Path:
        parts = {part: str(bars(tmp_path / part, count)) for part, count in (("train", 61), ("heldout", 18))}
        content: dict[str, Any] = {
            "name": "bars",
            "model": {"architecture": "resnet", "widths": [8, 16], "depths": [1, 1]},
            "data": {**parts, "kind": "images", "size": SIDE, "resize": SIDE, "crop_area": 0.8, "flip": False},
            "train": {"steps": 30, "rows_per_rank": 8, "learning_rate": 0.01, "warmup_steps": 2},
            "evaluate": {"every": 15},
            "checkpoint": {"every": 15, "keep": 2},
            "resources": {"ranks": 2, "timeout_minutes": 2},
        }
        return write_job(tmp_path / "job.yaml", content, sections)

    return make


def test_a_network_learns_and_a_killed_run_goes_on_bit_for_bit(
    image_job: MakeJob, trackbed: Command, tmp_path: Path
) -> None:
    # Steps are quick: the run must be far from its end when a word of its eighteenth arrives.
    many = {"steps": 150, "rows_per_rank": 8, "learning_rate": 0.01, "warmup_steps": 2}
    path = image_job(train=many, evaluate={"every": 150}, checkpoint={"every": 15, "keep": 2})
    done = submit(trackbed, path, "whole")
    assert done.returncode == 0, done.stdout + done.stderr
    runs = tmp_path / "runs"
    summary = json.loads((runs / "whole" / "summary.json").read_text())
    assert summary["after"]["samples"] == 18
    assert summary["after"]["right"] >= 0.9 > summary["before"]["right"]
    assert (summary["right"], summary["unit"]) == ("accuracy", "images")
    assert "accuracy" in done.stdout
    assert {"heldout/accuracy", "speed/images_per_second"} <= set(events(runs / "whole").Tags()["scalars"])

    def kill_a_rank(process: subprocess.Popen[str]) -> None:
        os.kill(ranks_of(runs / "killed")[-1], signal.SIGKILL)

    words = ["submit", str(path), "--run-name", "killed", "--skip-validation"]
    assert stop_at(tmp_path, words, "step 18/150", kill_a_rank) == 1
    resumed = trackbed("submit", "--resume", "killed", "--skip-validation")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert re.search(r"resumed from step (15|30|45|60|75|90)\n", resumed.stdout)
    assert losses(runs / "killed") == losses(runs / "whole")
    weights = [(runs / name / "model" / "model.safetensors").read_bytes() for name in ("whole", "killed")]
    assert weights[0] == weights[1]
    must_load(runs / "whole" / "model")


def must_load(model: Path) -> None:
    from transformers import AutoModelForImageClassification

    assert AutoModelForImageClassification.from_pretrained(model).config.id2label == {0: "lying", 1: "upright"}


def test_samples_that_cannot_be_read_are_refused_before_ranks_start_or_left_out(
    image_job: MakeJob, trackbed: Command, tmp_path: Path
) -> None:
    path = image_job(train={"steps": 4, "rows_per_rank": 8, "learning_rate": 0.01})
    (tmp_path / "train" / "lying" / "cut.jpg").write_bytes(datasets.picture(1)[:-200])
    (tmp_path / "train" / "upright" / "empty.jpg").write_bytes(b"")
    refused = submit(trackbed, path, "refused")
    assert refused.returncode == 2
    assert "lying/cut.jpg: it is cut off" in refused.stderr
    assert "upright/empty.jpg: it is empty" in refused.stderr
    assert "on_corrupt: skip" in refused.stderr
    assert not (tmp_path / "runs" / "refused").exists()
    skip = ("--set", "data.on_corrupt=skip", "--set", "data.skip_at_most=0.05")
    done = submit(trackbed, path, "skipped", *skip)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "61 samples of 2 classes; 2 cannot be read" in done.stdout
    plan = json.loads((tmp_path / "runs" / "skipped" / "plan.json").read_text())
    assert [text.rsplit("/", 1)[1].split(":")[0] for text in plan["data"]["train"]["dropped_samples"]] == [
        "cut.jpg",
        "empty.jpg",
    ]


def test_damage_that_shows_when_decoding_is_named_in_the_run(
    image_job: MakeJob, trackbed: Command, tmp_path: Path
) -> None:
    path = image_job(
        data={"on_corrupt": "skip", "skip_at_most": 0.05}, train={"steps": 8, "rows_per_rank": 8, "learning_rate": 0.01}
    )
    hurt = tmp_path / "train" / "lying" / "001.jpg"
    whole = hurt.read_bytes()
    # Nothing is missing and the end is marked, but an end comes in the middle as well.
    hurt.write_bytes(whole[:700] + b"\xff\xd9" + whole[702:])
    done = submit(trackbed, path, "hurt")
    assert done.returncode == 0, done.stdout + done.stderr
    lists = [file.read_text() for file in (tmp_path / "runs" / "hurt").glob("quarantine*.jsonl")]
    assert [json.loads(text)["where"] for text in lists if text] == [str(hurt)]


def test_shards_need_the_names_of_their_classes(image_job: MakeJob, trackbed: Command, tmp_path: Path) -> None:
    shards = datasets.shards(tmp_path / "shards")
    path = image_job(data={"train": str(shards), "heldout": str(shards)})
    refused = submit(trackbed, path, "refused")
    assert refused.returncode == 2
    assert "data.classes: [cat, dog]" in refused.stderr
    named = trackbed("data", "check", path, "--set", "data.classes=[ant, bee, cat]")
    assert named.returncode == 0, named.stdout + named.stderr
    assert "samples 11" in named.stdout


def test_a_folder_of_pictures_is_looked_at_without_a_job(trackbed: Command, tmp_path: Path) -> None:
    folder = datasets.folder(tmp_path / "pictures")
    good = trackbed("data", "check", folder)
    assert (good.returncode, good.stdout) == (0, f"{folder}: 11 samples, 0 cannot be used\n")
    (folder / "ant" / "000.jpg").write_bytes(b"nonsense")
    bad = trackbed("data", "check", folder)
    assert bad.returncode == 2
    assert "ant/000.jpg: it begins with 0x6e6f6e73" in bad.stderr


def test_a_vit_is_a_job_as_well(image_job: MakeJob, trackbed: Command) -> None:
    model = {"architecture": "vit", "widths": [32], "depths": [1], "patch": 8}
    path = image_job(model=model, train={"steps": 2, "rows_per_rank": 4, "learning_rate": 0.001})
    done = submit(trackbed, path, "vit")
    assert done.returncode == 0, done.stdout + done.stderr
    path = image_job(model={**model, "depths": [1, 1]})
    assert "one each a stage" in submit(trackbed, path, "wrong").stderr


def test_sounds_have_the_shape_that_the_network_is_made_for(tmp_path: Path) -> None:
    made = tmp_path / "sounds"
    sounds.build(made, lambda stage, done, total: None)
    config = AudioConfig(kind="audio", train=str(made / "train"), heldout=str(made / "heldout"), seconds=0.5)
    parts = open_parts(config)
    stream = training(parts, config, Share(0, 1, 4), tmp_path / "quarantine.jsonl")
    (batch,) = next(stream).batches
    stream.close()
    assert tuple(batch.inputs.shape[1:]) == shape(config)
    assert parts.classes == tuple(sounds.KINDS)


def test_sounds_are_the_same_every_time_and_differ_from_each_other() -> None:
    first, rate = sounds.sound("train", "sine", 3)
    again, _ = sounds.sound("train", "sine", 3)
    other, _ = sounds.sound("heldout", "sine", 3)
    assert (first == again).all()
    assert len(first) == rate * sounds.SECONDS
    assert len(other) != len(first) or (other != first).any()


def test_without_heldout_classes_of_training_is_refused(tmp_path: Path) -> None:
    bars(tmp_path / "train", 4)
    bars(tmp_path / "heldout", 4)
    (tmp_path / "heldout" / "slanted").mkdir()
    config = {"kind": "images", "train": str(tmp_path / "train"), "heldout": str(tmp_path / "heldout")}
    with pytest.raises(DataError, match="slanted"):
        open_parts(ImageConfig(**config))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"model": {"architecture": "vit", "widths": [100], "depths": [1]}}, "model.widths: 100 is no multiple of 3"),
        ({"model": {"architecture": "vit", "widths": [32], "depths": [1], "patch": 64}}, "model.patch: 64"),
        ({"data": {"std": [0.0, 1.0, 1.0]}}, "data.std"),
        ({"data": {"classes": ["cat", "dog", "cat"]}}, "cat is there twice"),
        ({"data": {"size": 8}, "train": {"steps": 1, "rows_per_rank": 1, "learning_rate": 0.1}}, "rows_per_rank"),
    ],
)
def test_a_network_that_cannot_be_made_is_refused_by_its_key(image_job: MakeJob, given: Any, told: str) -> None:
    with pytest.raises(JobError, match=told):
        load(image_job(**given))


def test_pictures_with_colours_innermost_are_trained_on(image_job: MakeJob, trackbed: Command, tmp_path: Path) -> None:
    train = {"steps": 2, "rows_per_rank": 8, "learning_rate": 0.01}
    found = []
    for layout in ("CHW", "HWC"):
        done = submit(trackbed, image_job(data={"layout": layout}, train=train), layout)
        assert done.returncode == 0, done.stdout + done.stderr
        found.append(losses(tmp_path / "runs" / layout))
    assert found[0].keys() == found[1].keys()
    for step, loss in found[0].items():
        assert loss == pytest.approx(found[1][step], rel=1e-4)

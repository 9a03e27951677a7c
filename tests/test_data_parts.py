"""The two parts of labelled data as a job opens them: what is refused, left out, listed, and believed of the cache."""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pydantic import ValidationError

import datasets
from trackbed import folders
from trackbed.data.config import AudioConfig, ImageConfig
from trackbed.data.order import Share
from trackbed.data.samples import decode
from trackbed.data.samples.corrupt import image_fault, sound_fault
from trackbed.data.samples.parts import Parts, look, open_parts
from trackbed.data.samples.sources.folder import Folder
from trackbed.data.samples.sources.webdataset import WebDataset
from trackbed.data.samples.streams import Evaluation, Training, training
from trackbed.errors import DataError

COUNT = 12
ALONE = Share(0, 1, 4)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRACKBED_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def config(train: Path, heldout: Path | None = None, **more: Any) -> ImageConfig:
    given = {"train": str(train), "heldout": str(heldout or train), "size": 16, "resize": 18, "workers": 1}
    return ImageConfig.model_validate({"kind": "images", **given, **more})


def skipping(train: Path, heldout: Path | None = None, at_most: float = 0.5) -> ImageConfig:
    return config(train, heldout, on_corrupt="skip", skip_at_most=at_most)


def hurt(path: Path) -> Path:
    """Overwrite a Huffman table: a scan of the structure passes it, a decoder does not."""
    data = bytearray(path.read_bytes())
    table = data.index(b"\xff\xc4") + 5
    data[table : table + 16] = b"\xff" * 16
    path.write_bytes(data)
    return path


def listed(path: Path) -> list[str]:
    return [json.loads(line)["where"] for line in path.read_text("utf-8").splitlines()]


def opened(given: ImageConfig, quarantine: Path) -> tuple[Parts, Training]:
    parts = open_parts(given)
    return parts, training(parts, given, ALONE, quarantine)


@pytest.fixture
def went(tmp_path: Path) -> Iterator[Callable[..., Training]]:
    """Takes steps of a job's training, and closes it."""
    made: list[Training] = []

    def go(given: ImageConfig, steps: int, begin: int = 0) -> Training:
        made.append(opened(given, tmp_path / "run" / "quarantine.jsonl")[1])
        made[-1].restore({**made[-1].state(), "step": begin})
        for _ in range(steps):
            next(made[-1])
        return made[-1]

    (tmp_path / "run").mkdir()
    yield go
    for each in made:
        each.close()


def test_a_mended_file_of_the_same_size_is_not_left_out_for_ever(tmp_path: Path) -> None:
    path = datasets.folder(tmp_path / "set", COUNT)
    file = path / "ant" / "001.jpg"
    good = file.read_bytes()
    file.write_bytes(b"x" * len(good))
    with pytest.raises(DataError, match=r"001\.jpg"):
        open_parts(config(path))
    file.write_bytes(good)
    assert len(open_parts(config(path)).train) == COUNT


def test_a_file_replaced_by_garbage_of_the_same_size_is_found_before_the_run(tmp_path: Path) -> None:
    path = datasets.folder(tmp_path / "set", COUNT)
    open_parts(config(path))
    file = path / "ant" / "001.jpg"
    file.write_bytes(b"x" * file.stat().st_size)
    with pytest.raises(DataError, match=r"001\.jpg"):
        open_parts(config(path))


def test_a_copy_of_a_set_is_named_by_its_own_path(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (datasets.folder(tmp_path / name, COUNT) / "ant" / "empty.jpg").write_bytes(b"")
        with pytest.raises(DataError, match=f"{name}/ant/empty"):
            open_parts(config(tmp_path / name))


def test_a_damaged_cache_is_made_again(tmp_path: Path, cache: Path) -> None:
    path = datasets.shards(tmp_path / "set")
    given = config(path, classes=list(datasets.CLASSES))
    open_parts(given)
    made = [*cache.rglob("*.npz"), *cache.rglob("*.jsonl"), *cache.rglob("*.json")]
    assert len(made) >= 4
    for file in made:
        file.write_bytes(b"PK\x03\x04{")
    assert len(open_parts(given).train) == datasets.COUNT


def test_a_cache_that_cannot_be_written_costs_time_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("TRACKBED_CACHE", str(tmp_path / "file"))
    path = datasets.folder(tmp_path / "set", COUNT)
    (path / "ant" / "empty.jpg").write_bytes(b"")
    parts = open_parts(skipping(path))
    assert len(parts.train) == COUNT
    assert len(parts.left_out["train"]) == 1


def test_a_shard_of_the_same_size_and_time_is_indexed_anew(tmp_path: Path) -> None:
    shard = tmp_path / "set" / "0.tar"
    shard.parent.mkdir()

    def write(*suffixes: str) -> None:
        content = {"jpg": datasets.picture(1), "cls": b"2"}
        with tarfile.open(shard, "w") as members:
            for suffix in suffixes:
                datasets.add(members, f"a.{suffix}", content[suffix])

    write("jpg", "cls")
    before = shard.stat()
    WebDataset(shard)
    write("cls", "jpg")
    os.utime(shard, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert shard.stat().st_size == before.st_size
    assert WebDataset(shard).read(0).label == 2


@pytest.mark.parametrize("make", [datasets.shards, datasets.records])
def test_a_class_number_that_no_name_belongs_to_is_refused_before_the_run(
    tmp_path: Path, make: Callable[[Path], Path]
) -> None:
    with pytest.raises(DataError, match="its class is 2, and 2 classes are named") as caught:
        open_parts(config(make(tmp_path / "set"), classes=["ant", "bee"]))
    assert caught.value.problems[0].id == "data.corrupt"
    assert len(open_parts(config(tmp_path / "set", classes=["ant", "bee", "cat"])).train) == datasets.COUNT


def test_names_that_are_not_utf_8_are_read_and_said(tmp_path: Path) -> None:
    path = datasets.folder(tmp_path / "set", COUNT)
    for name in (b"caf\xe9.jpg", b"bad\xe9.jpg"):
        data = datasets.picture(5) if name.startswith(b"caf") else b""
        Path(os.fsdecode(os.fsencode(path / "ant") + b"/" + name)).write_bytes(data)
    parts = open_parts(skipping(path))
    assert len(parts.train) == COUNT + 1
    assert r"bad\xe9.jpg" in parts.left_out["train"][0].where


def test_a_tar_member_whose_name_is_not_utf_8_is_read(tmp_path: Path) -> None:
    shard = tmp_path / "0.tar"
    with tarfile.open(shard, "w", encoding="latin-1", format=tarfile.GNU_FORMAT) as members:
        datasets.add(members, "café.jpg", datasets.picture(1))
        datasets.add(members, "café.cls", b"1")
    assert r"caf\xe9" in WebDataset(shard).where(0)
    assert WebDataset(shard).read(0).label == 1


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda path: [(path / name).rename(path.parent / name) for name in ("bee", "cat")], "one class, ant"),
        (lambda path: (path / "dog").mkdir(), "dog: the class has no file"),
        (lambda path: datasets.folder(path / "ant" / "deep", 1), r"ant/deep/?: a folder inside a class"),
    ],
)
def test_a_folder_that_is_not_as_it_looks_is_refused(tmp_path: Path, change: Callable[[Path], Any], told: str) -> None:
    change(datasets.folder(tmp_path / "set", COUNT))
    with pytest.raises(DataError, match=told):
        open_parts(config(tmp_path / "set"))


def test_a_folder_that_is_missing_is_said_to_be(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no such folder"):
        open_parts(config(tmp_path / "nowhere"))


def test_sounds_in_shards_are_looked_at_as_sounds(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "0.tar", "w") as members:
        for number in range(3):
            datasets.add(members, f"{number}.wav", datasets.tone(400))
            datasets.add(members, f"{number}.cls", b"0")
    assert look(tmp_path, 1, lambda stage, done, total: None) == (3, [])


def test_what_the_scan_and_the_steps_leave_out_counts_together(tmp_path: Path, went: Callable[..., Training]) -> None:
    path = datasets.folder(tmp_path / "set", COUNT)
    (path / "ant" / "empty.jpg").write_bytes(b"")
    hurt(path / "ant" / "001.jpg")
    with pytest.raises(DataError, match=f"2 of {COUNT + 1} samples"):
        went(skipping(path, at_most=1.5 / (COUNT + 1)), 3)


def test_the_runs_folder_names_everything_that_was_left_out(tmp_path: Path, went: Callable[..., Training]) -> None:
    path = datasets.folder(tmp_path / "set", COUNT)
    (path / "ant" / "empty.jpg").write_bytes(b"")
    late = hurt(path / "ant" / "001.jpg")
    went(skipping(path), 3)
    assert listed(tmp_path / "run" / "quarantine.jsonl") == [str(path / "ant" / "empty.jpg")]
    assert listed(tmp_path / "run" / "quarantine.rank0.jsonl") == [str(late)]


def test_a_resumed_run_keeps_what_it_had_left_out(tmp_path: Path, went: Callable[..., Training]) -> None:
    path = datasets.folder(tmp_path / "set", 40)
    bad = [str(hurt(path / "cat" / f"{number:03}.jpg")) for number in range(10, 36, 3)]
    quarantine = tmp_path / "run" / "quarantine.rank0.jsonl"
    went(skipping(path), 3).close()
    first = listed(quarantine)
    assert 0 < len(first) < len(bad)
    went(skipping(path), 7, begin=3).close()
    assert sorted(listed(quarantine)) == bad
    went(skipping(path), 1).close()
    assert sorted(listed(quarantine)) == bad
    with pytest.raises(DataError, match=f"{len(bad)} of 40 samples"):
        went(skipping(path, at_most=(len(bad) - 0.5) / 40), 10)


def test_held_out_samples_are_left_out_by_the_same_policy(tmp_path: Path) -> None:
    train, heldout = (datasets.folder(tmp_path / name, COUNT) for name in ("train", "heldout"))
    bad = hurt(heldout / "bee" / "004.jpg")
    given = skipping(train, heldout)
    parts = open_parts(given)
    evaluation = Evaluation(parts, given, ALONE, tmp_path / "quarantine-heldout.jsonl")
    for _ in range(2):
        assert sum(int(batch.valid.sum()) for batch in evaluation) == COUNT - 1
    assert listed(tmp_path / "quarantine-heldout.rank0.jsonl") == [str(bad)]
    with pytest.raises(DataError, match=r"004\.jpg"):
        list(Evaluation(open_parts(config(train, heldout)), config(train, heldout), ALONE, tmp_path / "q.jsonl"))


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_pixels_of_16_bits_keep_their_shades(tmp_path: Path, kind: str) -> None:
    shades = np.linspace(0, 65535, 32 * 32).astype(np.uint16).reshape(32, 32)
    Image.fromarray(shades).save(tmp_path / "deep", kind)
    pixels = decode.crop((tmp_path / "deep").read_bytes(), decode.Box(0, 0, 32, 32), 32)
    assert np.abs(pixels[0].astype(int) - np.rint(shades / 257)).max() <= 1


def test_pixels_without_a_scale_are_refused(tmp_path: Path) -> None:
    Image.fromarray(np.full((32, 32), 0.25, np.float32)).save(tmp_path / "f.tif", "TIFF")
    assert "F" in image_fault((tmp_path / "f.tif").read_bytes())


def test_a_sound_without_a_sample_is_one_that_cannot_be_used() -> None:
    assert sound_fault(datasets.tone(400, 0.0)) == "it holds no sound"
    assert sound_fault(datasets.tone(400)) == ""
    assert sound_fault(b"RIFF\x04\0\0\0WAVE") == "it holds no sound"


def test_a_folder_reads_files_and_not_what_lies_beside_them(tmp_path: Path) -> None:
    path = datasets.folder(tmp_path / "set", COUNT)
    (path / "README.txt").write_text("x")
    (path / ".git").mkdir()
    (path / "ant" / ".cache").mkdir()
    assert len(Folder(path)) == COUNT


def test_two_writers_of_one_file_do_not_meet(tmp_path: Path) -> None:
    """In two containers that share a cache, two processes may well have the same number."""
    content = [str(number) * 200_000 for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            list(pool.map(lambda text: folders.replace(tmp_path / "file", text), content))
            assert (tmp_path / "file").read_text() in content
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_a_sound_is_not_cut_to_nothing() -> None:
    with pytest.raises(ValidationError, match="seconds"):
        AudioConfig(kind="audio", train="t", heldout="h", seconds=0.00001)


def test_a_picture_that_pil_takes_for_a_bomb_is_said_to_be_large(tmp_path: Path) -> None:
    Image.new("1", (20_000, 20_000)).save(tmp_path / "bomb.png")
    assert "too large" in image_fault((tmp_path / "bomb.png").read_bytes())


def test_a_killed_build_does_not_stand_in_the_way_of_the_next(tmp_path: Path) -> None:
    # In a container every process of a kind has the same number.
    (tmp_path / f".set.partial-{os.getpid()}" / "half").mkdir(parents=True)
    with folders.staged(tmp_path / "set") as staging:
        (staging / "whole").write_text("x")
    assert [each.name for each in (tmp_path / "set").iterdir()] == ["whole"]

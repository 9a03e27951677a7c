"""Samples that cannot be used: each named, and skipped or failed on, before the order is made and at a step."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from PIL import Image

import datasets
from trackbed.data.order import Share
from trackbed.data.samples import corrupt
from trackbed.data.samples.audio import Audio, AudioSettings
from trackbed.data.samples.corrupt import Policy, healthy, image_fault, scan, sound_fault
from trackbed.data.samples.images import Images, ImageSettings
from trackbed.data.samples.loader import IGNORED, Batch, Loader, Loading
from trackbed.data.samples.sources import Source
from trackbed.data.samples.sources.folder import SOUNDS, Folder
from trackbed.data.samples.sources.webdataset import WebDataset
from trackbed.errors import DataError

Decode = Literal["fast", "dali"]
GOOD, BAD = 16, ("cmyk.jpg", "cut.jpg", "empty.jpg", "garbage.jpg")
MIDDLE = "003.jpg"
SKIP = Policy(on_corrupt="skip", skip_at_most=0.5)


def bad_pictures() -> dict[str, bytes]:
    whole = datasets.picture(1)
    return {
        "cmyk.jpg": datasets.picture(2, "CMYK"),
        "cut.jpg": whole[: len(whole) * 2 // 3],
        "empty.jpg": b"",
        "garbage.jpg": b"<html>404 Not Found</html>" * 20,
    }


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """GOOD pictures, and the four bad ones among them."""
    path = datasets.folder(tmp_path / "set", GOOD)
    for name, data in bad_pictures().items():
        (path / "bee" / name).write_bytes(data)
    return path


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """GOOD pictures, one of which passes a scan of its structure: its Huffman table is overwritten."""
    path = datasets.folder(tmp_path / "set", GOOD)
    data = bytearray(datasets.picture(3))
    table = data.index(b"\xff\xc4") + 5
    data[table : table + 16] = b"\xff" * 16
    (path / "bee" / MIDDLE).write_bytes(data)
    return path


def loader(source: Source, decode: Decode, quarantine: corrupt.Quarantine, *, once: bool = True) -> Loader:
    work = Images(ImageSettings(size=32, decode=decode), train=not once)
    return Loader(source, work, Share(0, 1, 4), Loading(), quarantine=quarantine, once=once)


def batches(made: Loader, steps: int = 5) -> list[Batch]:
    try:
        return [batch for _, step in zip(range(steps), made, strict=False) for batch in step]
    finally:
        made.close()


def names(path: Path) -> list[str]:
    return [Path(json.loads(line)["where"]).name for line in path.read_text().splitlines()]


def test_fail_names_all_of_them_at_once(broken: Path, tmp_path: Path) -> None:
    listed = tmp_path / "lists" / "bad.jsonl"
    with pytest.raises(DataError) as caught:
        healthy(Folder(broken), image_fault, Policy(quarantine=listed))
    assert [Path(each.where).name for each in caught.value.problems] == list(BAD)
    said = [each.what for each in caught.value.problems]
    for told, what in zip(said, ("CMYK", "no end marker", "empty", "no image format"), strict=True):
        assert what in told
    assert names(listed) == list(BAD)


def test_skip_lists_them_and_trains_on_the_rest(broken: Path, tmp_path: Path) -> None:
    listed = tmp_path / "bad.jsonl"
    source, quarantine = healthy(Folder(broken), image_fault, Policy("skip", 0.2, listed))
    assert names(listed) == list(BAD)
    hashes = [json.loads(line)["sha256"] for line in listed.read_text().splitlines()]
    assert hashes == [hashlib.sha256(data).hexdigest() for data in bad_pictures().values()]
    given = batches(loader(source, "fast", quarantine))
    assert sorted(number for batch in given for number in batch.numbers.tolist()) == list(range(GOOD))
    assert all(batch.valid.all() for batch in given)
    assert not {Path(source.where(number)).name for number in range(len(source))} & set(BAD)


def test_too_many_to_skip_is_an_error(broken: Path) -> None:
    with pytest.raises(DataError, match="4 of 20 samples cannot be used") as caught:
        healthy(Folder(broken), image_fault, Policy("skip", 0.19))
    assert len(caught.value.problems) == 5


def test_only_the_first_are_named(tmp_path: Path) -> None:
    for number in range(30):
        datasets.folder(tmp_path, 1)
        (tmp_path / "ant" / f"bad{number:02}.jpg").write_bytes(b"")
    with pytest.raises(DataError, match="30 of 31") as caught:
        healthy(Folder(tmp_path), image_fault, Policy())
    assert len(caught.value.problems) == 21


def test_a_scan_says_how_far_it_is_and_finds_the_same_with_any_workers(broken: Path) -> None:
    told: list[int] = []
    found = [scan(Folder(broken), image_fault, workers=workers, progress=told.append) for workers in (1, 4)]
    assert found[0] == found[1]
    assert told == [GOOD + 4] * 2


def test_a_set_is_scanned_once(broken: Path, tmp_path: Path) -> None:
    policy = Policy("skip", 0.5, tmp_path / "bad.jsonl")
    first, _ = healthy(Folder(broken), image_fault, policy)

    def never(data: bytes) -> str:
        raise AssertionError("scanned again")

    again, _ = healthy(Folder(broken), never, policy)
    assert again.digest == first.digest
    (broken / "bee" / "empty.jpg").write_bytes(datasets.picture(9))
    assert len(healthy(Folder(broken), image_fault, policy)[0]) == GOOD + 1


@pytest.mark.parametrize("decode", ["fast", "dali"])
def test_one_that_does_not_decode_ends_the_run_by_name(damaged: Path, decode: Decode) -> None:
    source, quarantine = healthy(Folder(damaged), image_fault, Policy())
    with pytest.raises(DataError) as caught:
        batches(loader(source, decode, quarantine))
    assert [Path(each.where).name for each in caught.value.problems] == [MIDDLE]


@pytest.mark.parametrize("decode", ["fast", "dali"])
def test_one_that_does_not_decode_is_skipped_in_its_place(damaged: Path, tmp_path: Path, decode: Decode) -> None:
    whole, _ = healthy(Folder(datasets.folder(tmp_path / "whole", GOOD)), image_fault, SKIP)
    good = batches(loader(whole, decode, corrupt.Quarantine(SKIP, GOOD)))
    source, quarantine = healthy(Folder(damaged), image_fault, Policy("skip", 0.1, tmp_path / "bad.jsonl"))
    given = batches(loader(source, decode, quarantine))
    assert names(tmp_path / "bad.rank0.jsonl") == [MIDDLE]
    assert names(tmp_path / "bad.jsonl") == []
    for one, other in zip(given, good, strict=True):
        lost = torch.tensor([Path(source.where(number)).name == MIDDLE for number in one.numbers.tolist()])
        assert one.valid.tolist() == (~lost).tolist()
        assert not one.inputs[lost].any()
        assert one.labels[lost].tolist() == [IGNORED] * int(lost.sum())
        assert torch.equal(one.inputs[~lost], other.inputs[~lost])


@pytest.mark.parametrize("decode", ["fast", "dali"])
def test_a_resumed_run_skips_the_same(damaged: Path, tmp_path: Path, decode: Decode) -> None:
    policy = Policy("skip", 0.1, tmp_path / "bad.jsonl")
    whole = batches(
        loader(*(parts := healthy(Folder(damaged), image_fault, policy))[:1], decode, parts[1], once=False), 9
    )
    assert sum(int((~batch.valid).sum()) for batch in whole) >= 2
    source, quarantine = healthy(Folder(damaged), image_fault, policy)
    resumed = loader(source, decode, quarantine, once=False)
    resumed.restore({**resumed.state(), "step": 4})
    for one, other in zip(batches(resumed, 5), whole[4:], strict=True):
        assert torch.equal(one.inputs, other.inputs)
        assert torch.equal(one.valid, other.valid)


def test_those_of_the_scan_and_of_the_steps_count_together(damaged: Path) -> None:
    (damaged / "ant" / "empty.jpg").write_bytes(b"")
    source, quarantine = healthy(Folder(damaged), image_fault, Policy("skip", 1.5 / (GOOD + 1)))
    with pytest.raises(DataError, match=f"2 of {GOOD + 1} samples"):
        batches(loader(source, "fast", quarantine))


def test_what_failed_fails_again_when_it_is_tried_again(damaged: Path) -> None:
    source, quarantine = healthy(Folder(damaged), image_fault, Policy())
    made = loader(source, "dali", quarantine)
    for _ in range(2):
        with pytest.raises(DataError, match=MIDDLE):
            next(made)
    assert made.state()["step"] == 0
    made.close()


def test_a_sound_that_is_none(tmp_path: Path) -> None:
    path = datasets.sounds(tmp_path, 6)
    good = datasets.tone(400)
    (path / "ant" / "000.wav").write_bytes(b"RIFF\x10\0\0\0WAVEdata\x04\0\0\0what")
    assert [sound_fault(data) for data in (good, b"", good[:-1], b"ID3..")] == [
        "", "it is empty", "it is cut off: shorter than its header says",
        "it begins with 0x4944332e: no sound format that is known here",
    ]  # fmt: skip
    work = Audio(AudioSettings(seconds=0.2), train=False)
    source, quarantine = healthy(Folder(path, suffixes=SOUNDS), work.fault, SKIP)
    given = batches(Loader(source, work, Share(0, 1, 4), Loading(), quarantine=quarantine, once=True))
    assert [batch.valid.tolist() for batch in given] == [[False, True, True, True], [True, True, False, False]]
    assert "Error in WAV file" in next(iter(quarantine.late.values())).reason


def test_a_sample_without_a_component_is_handled_by_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKBED_CACHE", str(tmp_path / "cache"))
    shard = datasets.shards(tmp_path / "set") / "c-2.tar"
    with tarfile.open(shard, "w") as members:
        datasets.add(members, "odd.jpg", datasets.picture(1))
    listed = tmp_path / "bad.jsonl"
    source, quarantine = healthy(WebDataset(shard.parent), image_fault, Policy("skip", 0.1, listed))
    assert len(source) == datasets.COUNT
    assert json.loads(listed.read_text())["reason"] == "it has no component cls"
    assert all(batch.valid.all() for batch in batches(loader(source, "fast", quarantine, once=False), 5))
    with pytest.raises(DataError, match=r"c-2.tar!odd: it has no component cls"):
        healthy(WebDataset(shard.parent), image_fault, Policy(quarantine=listed))


def png(size: tuple[int, int]) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((*size, 3), 7, dtype=np.uint8)).save(file, "PNG")
    return file.getvalue()


def large() -> bytes:
    """A JPEG whose header says 60,000 x 60,000."""
    data = bytearray(datasets.picture(1))
    frame = data.index(b"\xff\xc0") + 5
    data[frame : frame + 4] = b"\xea\x60" * 2
    return bytes(data)


def thumbnail() -> bytes:
    """A JPEG that is cut off, with a whole one in its EXIF data."""
    inner, outer = datasets.picture(1), datasets.picture(2)
    segment = b"\xff\xe1" + (len(inner) + 2).to_bytes(2, "big") + inner
    return outer[:2] + segment + outer[2 : len(outer) // 2 + 200]


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: datasets.picture(1), ""),
        (lambda: datasets.picture(1, "L"), ""),
        (lambda: datasets.picture(1) + b"\0" * 5000, ""),
        (lambda: png((5, 6)), ""),
        (lambda: png((50, 60))[:-20], "damaged"),
        (large, "too large: 60000 x 60000"),
        (thumbnail, "no end marker"),
        (lambda: datasets.picture(1)[:50], "header breaks off"),
        (lambda: b"\xff\xd8", "header breaks off"),
        (lambda: datasets.picture(1)[1:], "no image format"),
    ],
)
def test_the_structure_of_an_image(make: Callable[[], bytes], told: str) -> None:
    found = image_fault(make())
    assert told in found if told else not found

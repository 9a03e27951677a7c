"""Labelled samples looked at: what is there twice is named, and what is shown is what the model is given."""

from __future__ import annotations

import base64
import io
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from conftest import Command
from datasets import folder, picture
from test_data_preview import shot
from trackbed.data.chat.fingerprint import Progress
from trackbed.data.config import AudioConfig, ImageConfig
from trackbed.data.inspection.labelled import preview, stats
from trackbed.data.inspection.labelled_page import preview_html, stats_html
from trackbed.data.inspection.preview import Choice
from trackbed.data.order import Order, Share
from trackbed.data.samples.loader import Loader, Loading
from trackbed.data.samples.parts import open_parts
from trackbed.data.samples.settings import work
from trackbed.data.sets import sounds
from trackbed.errors import DataError

JOB = """
name: tiny-pictures
model: {{architecture: resnet, widths: [8], depths: [1]}}
data: {{kind: images, train: {train}, heldout: {heldout}, size: 32, on_corrupt: {policy}, skip_at_most: 0.5}}
train: {{steps: 2, learning_rate: 0.001}}
"""
silent: Progress = lambda stage, done, total: None  # noqa: E731


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRACKBED_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def pictures(tmp_path: Path) -> tuple[Path, Path]:
    """Train has 11 pictures, held out are 3 others of the same classes."""
    train, heldout = folder(tmp_path / "train"), tmp_path / "heldout"
    for index, name in enumerate(("ant", "bee", "cat")):
        (heldout / name).mkdir(parents=True)
        (heldout / name / "new.jpg").write_bytes(picture(50 + index))
    return train, heldout


def config(pictures: tuple[Path, Path], **values: Any) -> ImageConfig:
    return ImageConfig(kind="images", train=str(pictures[0]), heldout=str(pictures[1]), size=32, **values)


def looked(pictures: tuple[Path, Path], **values: Any) -> dict[str, Any]:
    return stats(open_parts(config(pictures, **values)), silent)


def test_a_set_without_repeats_has_no_findings(pictures: tuple[Path, Path]) -> None:
    found = looked(pictures)
    assert found["findings"] == []
    train = found["parts"]["train"]
    assert train["classes"] == [{"name": name, "samples": n} for name, n in (("ant", 3), ("bee", 3), ("cat", 5))]
    sizes = [len(picture(number)) for number in range(11)]
    assert (train["bytes"]["min"], train["bytes"]["max"]) == (min(sizes), max(sizes))
    assert {each["size"] for each in train["sizes"]} <= {f"{70 + number} x 54" for number in range(11)}
    assert sum(each["samples"] for each in train["sizes"]) == 10  # one of eleven sizes is not named


def test_what_is_there_twice_is_named_inside_between_and_across_classes(pictures: tuple[Path, Path]) -> None:
    train, heldout = pictures
    shutil.copy(train / "ant" / "000.jpg", train / "ant" / "again.jpg")
    shutil.copy(train / "bee" / "003.jpg", train / "cat" / "torn.jpg")
    shutil.copy(train / "cat" / "006.jpg", heldout / "cat" / "leaked.jpg")
    found = {(each["id"], each["part"]): each for each in looked(pictures)["findings"]}
    assert {key: each["count"] for key, each in found.items()} == {
        ("leak.bytes", "heldout"): 1, ("repeat.exact", "train"): 2, ("repeat.label", "train"): 1,
    }  # fmt: skip
    (leak,) = found["leak.bytes", "heldout"]["named"]
    assert (leak["where"], leak["same_as"]) == (str(heldout / "cat" / "leaked.jpg"), str(train / "cat" / "006.jpg"))
    (torn,) = found["repeat.label", "train"]["named"]
    assert (torn["where"], torn["same_as"]) == (str(train / "cat" / "torn.jpg"), str(train / "bee" / "003.jpg"))
    assert found["leak.bytes", "heldout"]["what"].startswith("1 of 4 held-out samples are in train as well")


def test_what_the_scan_left_out_is_said(pictures: tuple[Path, Path]) -> None:
    (pictures[0] / "ant" / "empty.jpg").write_bytes(b"")
    found = looked(pictures, on_corrupt="skip", skip_at_most=0.5)
    assert found["parts"]["train"]["samples"] == 11
    (line,) = found["parts"]["train"]["left_out"]
    assert "empty.jpg" in line
    assert "it is empty" in line
    assert "empty.jpg" in stats_html(found, "job")


def pixels(uri: str) -> Any:
    kind, _, encoded = uri.partition(",")
    assert kind == "data:image/png;base64"
    with Image.open(io.BytesIO(base64.b64decode(encoded))) as opened:
        return np.array(opened)


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
@pytest.mark.parametrize("layout", ["CHW", "HWC"])
def test_pictures_are_what_the_first_epoch_trains_on(pictures: tuple[Path, Path], dtype: Any, layout: Any) -> None:
    settings = config(pictures, seed=3, dtype=dtype, layout=layout)
    parts = open_parts(settings)
    seen = preview(parts, settings, Choice(samples=11))
    loader = Loader(parts.train, work(settings, train=True), Share(0, 1, rows=11), Loading(seed=3))
    (batch,) = next(loader)
    loader.close()
    for row, number in enumerate(Order(11, 3).at(0, 11).tolist()):
        assert seen[number].where == parts.train.where(number)
        trained = batch.inputs[row].float().numpy()
        trained = trained.transpose(1, 2, 0) if layout == "CHW" else trained
        if dtype == "float32":
            trained = 255 * (trained * np.array(settings.std) + np.array(settings.mean))
        assert np.abs(pixels(seen[number].pictures["training"]) - trained).max() <= 0.51
        assert pixels(seen[number].pictures["original"]).shape == (54, 70 + number, 3)
        assert pixels(seen[number].pictures["evaluation"]).shape == (32, 32, 3)


@pytest.mark.parametrize("decode", ["fast", "dali"])
def test_a_sample_that_does_not_decode_is_named(pictures: tuple[Path, Path], decode: Any) -> None:
    data = bytearray(picture(0))
    table = data.index(b"\xff\xc4") + 5
    data[table : table + 16] = b"\xff" * 16  # a Huffman table, which no scan of the structure reads
    (pictures[0] / "ant" / "000.jpg").write_bytes(data)
    settings = config(pictures, decode=decode)
    parts = open_parts(settings)
    assert len(parts.train) == 11
    with pytest.raises(DataError, match=r"ant/000\.jpg: "):
        preview(parts, settings, Choice(samples=11))


def test_sounds_are_shown_as_spectrograms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sounds, "PER_CLASS", {"train": 2, "heldout": 1})
    sounds.build(tmp_path / "set", silent)
    settings = AudioConfig(
        kind="audio", train=str(tmp_path / "set" / "train"), heldout=str(tmp_path / "set" / "heldout")
    )  # fmt: skip
    parts = open_parts(settings)
    rising, falling = (
        next(each for each in preview(parts, settings, Choice(samples=16)) if each.label == label)
        for label in ("rising", "falling")
    )
    courses = []
    for each in (rising, falling):
        shown = pixels(each.pictures["evaluation"])
        assert shown.shape == (64, 101)
        loudest = shown.argmax(axis=0)  # counted from the top, where the high tones are
        courses.append(int(loudest[80:95].mean()) - int(loudest[5:20].mean()))
    assert courses[0] < 0 < courses[1]
    rates = {each["size"] for each in stats(parts, silent)["parts"]["train"]["sizes"]}
    assert rates <= {"8000 Hz, 1.0 s", "16000 Hz, 1.0 s", "22050 Hz, 1.0 s"}
    assert "spectrograms" in preview_html(preview(parts, settings, Choice()), settings, "train", "job")


@pytest.fixture
def job(tmp_path: Path, pictures: tuple[Path, Path]) -> Callable[[str], Path]:
    def make(policy: str = "fail") -> Path:
        path = tmp_path / "job.yaml"
        path.write_text(JOB.format(train=pictures[0], heldout=pictures[1], policy=policy), "utf-8")
        return path

    return make


def test_the_commands_show_pictures(
    tmp_path: Path, pictures: tuple[Path, Path], job: Callable[..., Path], trackbed: Command
) -> None:
    attack = pictures[0] / "cat" / "<script>alert(1)<!--.jpg"
    shutil.copy(pictures[0] / "cat" / "006.jpg", attack)
    page = tmp_path / "page.html"
    done = trackbed("data", "preview", job(), "--samples", "12", "--html", page)
    assert done.returncode == 0, done.stderr
    html = page.read_text("utf-8")
    assert "<script" not in html
    assert "&lt;script&gt;alert(1)" in html
    assert set(re.findall(r"""(?:src|href)=["']([^,]*)""", html)) == {"data:image/png;base64"}
    assert html.count("<img ") == 36
    counted = shot(page, tmp_path, "dark").getcolors(1 << 24)
    assert len(counted) > 1000  # noise has many colours, a page without pictures few
    done = trackbed("data", "stats", job(), "--json", "--html", page)
    assert [each["id"] for each in json.loads(done.stdout)["findings"]] == ["repeat.exact"]
    assert "<script" not in page.read_text("utf-8")
    text = trackbed("data", "stats", job()).stdout
    assert "train: 12 samples of 3 classes; 0 left out" in text
    assert re.search(r"cat +6 █{40}$", text, re.MULTILINE)


def test_the_commands_name_mistakes(pictures: tuple[Path, Path], job: Callable[..., Path], trackbed: Command) -> None:
    screen = trackbed("data", "preview", job())
    assert (screen.returncode, "shown on a page" in screen.stderr) == (2, True)
    (pictures[0] / "ant" / "empty.jpg").write_bytes(b"")
    broken = trackbed("data", "stats", job("fail"), "--json")
    assert broken.returncode == 2
    assert "empty.jpg" in json.loads(broken.stdout)["problems"][0]["where"]
    assert "Traceback" not in screen.stderr + broken.stderr

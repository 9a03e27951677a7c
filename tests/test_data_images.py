"""What becomes of pixels and sounds on their way through the workers and DALI."""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import datasets
from trackbed.data.order import uniform
from trackbed.data.samples import decode
from trackbed.data.samples.audio import Audio, AudioSettings
from trackbed.data.samples.decode import Box
from trackbed.data.samples.graph import Graph, Work
from trackbed.data.samples.images import Images, ImageSettings, centre_box, random_box

MIDDLE = np.full(23, 0.5)


def one(work: Work, data: bytes, drawn: Any = MIDDLE) -> torch.Tensor:
    graph = Graph(work, rows=1, workers=1)
    (output,) = graph.run([work.sample(data, drawn)])
    graph.close()
    return output[0]


def photo(height: int = 300, width: int = 400, file: str = "JPEG") -> bytes:
    """Smooth, coloured, and nowhere symmetric."""
    noise = np.random.default_rng(0).integers(0, 255, (height // 20, width // 20, 3), dtype=np.uint8)
    made = io.BytesIO()
    Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC).save(made, file, quality=95)
    return made.getvalue()


def pixels(decode_by: Any, data: bytes, *, train: bool, drawn: Any = MIDDLE, **settings: Any) -> torch.Tensor:
    given = ImageSettings(decode=decode_by, dtype="uint8", **{"size": 64, "resize": 64, **settings})
    return one(Images(given, train=train), data, drawn).float()


@pytest.mark.parametrize("file", ["JPEG", "PNG"])
def test_both_decoders_see_the_same_picture(file: str) -> None:
    """At 1/1 they differ by rounding alone; at 1/4 by the inverse DCT and at most half a pixel's shift."""
    data = photo(file=file)
    drawn = uniform(np.arange(8), np.zeros(8, dtype=np.int64), seed=0, draws=23)
    for mine in drawn:
        same = [pixels(by, data, train=True, drawn=mine, size=224) for by in ("fast", "dali")]
        assert (same[0] - same[1]).abs().mean() < 0.5
    near = [pixels(by, data, train=False, resize=72) for by in ("fast", "dali")]
    assert (near[0] - near[1]).abs().mean() < (8 if file == "JPEG" else 0.5)


def test_evaluation_is_what_pil_makes_of_the_middle() -> None:
    data = photo()
    side = round(300 * 150 / 170)
    left, top = (400 - side) // 2, (300 - side) // 2
    opened = Image.open(io.BytesIO(data))
    middle = opened.resize((150, 150), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side))
    wanted = torch.from_numpy(np.array(middle)).permute(2, 0, 1)
    for by in ("fast", "dali"):
        assert (pixels(by, data, train=False, size=150, resize=170) - wanted).abs().mean() < 0.5


@pytest.mark.parametrize("by", ["fast", "dali"])
def test_normalisation_type_layout_and_mirror(by: Any) -> None:
    data = photo()
    settings = {"size": 64, "resize": 64, "decode": by}
    plain = one(Images(ImageSettings(**settings, dtype="uint8"), train=False), data)
    normal = one(Images(ImageSettings(**settings), train=False), data)
    half = one(Images(ImageSettings(**settings, dtype="float16", layout="HWC"), train=False), data)
    mean, std = (torch.tensor(each)[:, None, None] for each in (ImageSettings.mean, ImageSettings.std))
    assert torch.allclose(normal, (plain / 255 - mean) / std, atol=2e-3)
    assert (half.dtype, half.shape) == (torch.float16, (64, 64, 3))
    assert torch.allclose(half.permute(2, 0, 1).float(), normal, atol=2e-3)
    drawn = MIDDLE.copy()
    sides = []
    for drawn[-1] in (0.1, 0.9):
        sides.append(one(Images(ImageSettings(**settings, dtype="uint8"), train=True), data, drawn.copy()))
    assert torch.equal(sides[0].flip(2), sides[1])
    assert not torch.equal(sides[0], sides[1])


def test_crops_have_the_area_and_shape_that_were_asked_for() -> None:
    boxes = [
        random_box(480, 640, drawn, area=(0.1, 0.9), aspect=(0.5, 2.0))
        for drawn in uniform(np.arange(2000), np.zeros(2000, dtype=np.int64), seed=0, draws=23)
    ]
    areas = np.array([box.height * box.width / (480 * 640) for box in boxes])
    ratios = np.array([math.log(box.width / box.height) for box in boxes])
    assert areas.min() > 0.09
    assert areas.max() < 0.91
    assert abs(ratios).max() < math.log(2.0) + 0.05
    assert 0.4 < areas.mean() < 0.5
    for box in boxes:
        assert 0 <= box.top <= box.top + box.height <= 480
        assert 0 <= box.left <= box.left + box.width <= 640
    assert {box.top == 0 for box in boxes} == {True, False}


@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 500), (500, 1), (3, 2)])
def test_images_of_a_pixel_are_images(height: int, width: int) -> None:
    made = io.BytesIO()
    Image.fromarray(np.full((height, width, 3), 200, dtype=np.uint8)).save(made, "JPEG")
    for by in ("fast", "dali"):
        for train in (True, False):
            assert (pixels(by, made.getvalue(), train=train) - 200).abs().max() < 3


@pytest.mark.parametrize(("side", "scale"), [(300, 1), (150, 2), (151, 1), (75, 4), (37, 8), (10, 8)])
def test_a_jpeg_is_never_decoded_smaller_than_what_is_asked_for(side: int, scale: int) -> None:
    assert decode.scale_for(Box(0, 0, 300, 400), side) == scale


def test_the_middle() -> None:
    assert centre_box(300, 400, 0.5) == Box(75, 125, 150, 150)
    assert centre_box(1, 9, 0.1) == Box(0, 4, 1, 1)


def test_a_tone_is_in_its_band_whatever_its_rate_and_channels() -> None:
    work = Audio(AudioSettings(seconds=0.5, mels=40), train=False)
    spectra = [
        one(work, datasets.tone(1000, 0.6, rate=rate, channels=channels))
        for rate, channels in ((8000, 1), (16000, 2), (44100, 1))
    ]
    assert spectra[0].shape == (1, 40, 51)
    bands = {int(each[0].mean(1).argmax()) for each in spectra}
    assert len(bands) == 1
    low, high = (int(one(work, datasets.tone(hertz, 0.6))[0].mean(1).argmax()) for hertz in (300, 3000))
    assert low < bands.pop() < high


def test_a_long_sound_is_cut_where_it_was_drawn_and_a_short_one_padded() -> None:
    """A tone that begins in the middle of two seconds is heard only in a cut that reaches it."""
    late = datasets.tone(500, 1.0, before=1.0)
    work = Audio(AudioSettings(seconds=0.5), train=True)
    silence = (-80 + 30) / 20
    first, last = (one(work, late, np.array([place])) for place in (0.0, 0.999))
    assert first.max() == pytest.approx(silence)
    assert last.max() > 0
    short = one(work, datasets.tone(500, 0.2), np.array([0.7]))
    assert short[0, :, :15].max() > 0
    assert short[0, :, 30:].max() == pytest.approx(silence)


@pytest.mark.parametrize("by", ["fast", "dali"])
def test_an_orientation_in_exif_is_not_applied(by: Any) -> None:
    plain, turned = io.BytesIO(), io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    opened = Image.open(io.BytesIO(photo()))
    opened.save(plain, "JPEG")
    opened.save(turned, "JPEG", exif=exif)
    assert torch.equal(*(pixels(by, file.getvalue(), train=False) for file in (plain, turned)))

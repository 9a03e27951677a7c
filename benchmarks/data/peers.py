"""What one would take instead of Trackbed's image pipeline, each as its own documentation would have it written."""

from __future__ import annotations

import importlib.util
import math
import random
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from nvidia.dali import fn, pipeline_def, types
from PIL import Image
from torch.utils.data import DataLoader, Dataset

SIDE = 224
AREA, ASPECT = (0.08, 1.0), (3 / 4, 4 / 3)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SHARD = 40


def torch_loader(folder: Path, rows: int, workers: int) -> Iterator[Any]:
    """torch's DataLoader over Pillow, endless."""
    while True:
        yield from DataLoader(Pictures(folder), batch_size=rows, shuffle=True, num_workers=workers, drop_last=True)


class Pictures(Dataset[Any]):
    """Files below class folders, decoded by Pillow."""

    def __init__(self, folder: Path) -> None:
        # Many times over, so that workers are not started anew while the clock runs.
        self._files = sorted(folder.rglob("*.jpg")) * 40

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> Any:
        with Image.open(self._files[index]) as opened:
            return transform(opened.convert("RGB")), 0


def transform(picture: Image.Image) -> torch.Tensor:
    """Random resized crop, flip, tensor, normalised: torchvision's usual four, by Pillow and torch."""
    picture = picture.resize((SIDE, SIDE), Image.Resampling.BILINEAR, box=_box(picture.width, picture.height))
    if random.random() < 0.5:
        picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1).contiguous().float().div(255)
    return pixels.sub(torch.tensor(MEAN)[:, None, None]).div(torch.tensor(STD)[:, None, None])


def _box(width: int, height: int) -> tuple[float, float, float, float]:
    area = width * height * random.uniform(*AREA)
    aspect = math.exp(random.uniform(math.log(ASPECT[0]), math.log(ASPECT[1])))
    wide, tall = min(width, math.sqrt(area * aspect)), min(height, math.sqrt(area / aspect))
    left, top = random.uniform(0, width - wide), random.uniform(0, height - tall)
    return left, top, left + wide, top + tall


def has_webdataset() -> bool:
    return importlib.util.find_spec("webdataset") is not None


def webdataset_loader(folder: Path, rows: int, workers: int) -> Iterator[Any]:
    """WebDataset's own loader over tar files of the same pictures, endless."""
    import webdataset

    shards = sorted(map(str, _shards(folder)))
    data = webdataset.WebDataset(shards, shardshuffle=len(shards), resampled=True, nodesplitter=None)
    data = data.shuffle(100).decode("pil").to_tuple("jpg", "cls").map_tuple(transform, int).batched(rows)
    return iter(webdataset.WebLoader(data, batch_size=None, num_workers=workers))


def _shards(folder: Path) -> list[Path]:
    files = sorted(folder.rglob("*.jpg"))
    target = folder.with_name(f"{folder.name}-tar")
    if not target.exists():
        target.mkdir()
        for start in range(0, len(files), SHARD):
            with tarfile.open(target / f"{start:05d}.tar", "w") as archive:
                for file in files[start : start + SHARD]:
                    archive.add(file, arcname=file.name)
                    label = file.with_suffix(".cls")
                    label.write_text("0")
                    archive.add(label, arcname=label.name)
                    label.unlink()
    return sorted(target.glob("*.tar"))


def bare_dali(folder: Path, rows: int, threads: int) -> Iterator[Any]:
    """DALI as its examples for ImageNet have it, on the CPU, with nothing of ours."""

    @pipeline_def(batch_size=rows, num_threads=threads, device_id=None)
    def pipeline() -> Any:
        encoded, label = fn.readers.file(file_root=str(folder), random_shuffle=True, name="reader")
        cut = fn.decoders.image_random_crop(encoded, random_area=list(AREA), random_aspect_ratio=list(ASPECT))
        resized = fn.resize(cut, size=(SIDE, SIDE), interp_type=types.INTERP_LINEAR, antialias=True)
        scaled = {"mean": [255 * value for value in MEAN], "std": [255 * value for value in STD]}
        mirror = fn.random.coin_flip()
        return fn.crop_mirror_normalize(resized, dtype=types.FLOAT, output_layout="CHW", mirror=mirror, **scaled), label

    pipe = pipeline()
    pipe.build()
    while True:
        yield pipe.run()

"""From a job's `data` section to what is done with its samples, and how they are loaded."""

from __future__ import annotations

from typing import Any

import torch

from trackbed.data.config import AudioConfig, ImageConfig, SampleConfig
from trackbed.data.samples.graph import Work
from trackbed.data.samples.loader import Loading

# Every size is cut from a picture a seventh larger, as evaluations of ImageNet do: 224 from 256.
RESIZE = 8 / 7


def shape(config: SampleConfig) -> tuple[int, int, int]:
    """Channels, height and width of what the model sees."""
    if isinstance(config, ImageConfig):
        return 3, config.size, config.size
    assert isinstance(config, AudioConfig)
    settings = audio_settings(config)
    # A window is centred on every hop, the first on the first sample.
    return 1, config.mels, 1 + settings.samples // round(settings.hop * settings.sample_rate)


def work(config: SampleConfig, *, train: bool) -> Work:
    """What DALI does with a sample of this job."""
    if isinstance(config, ImageConfig):
        return _images(config, train=train)
    assert isinstance(config, AudioConfig)
    from trackbed.data.samples.audio import Audio

    return Audio(audio_settings(config), train=train, gpu=torch.cuda.is_available())


def _images(config: ImageConfig, *, train: bool) -> Work:
    from trackbed.data.samples.images import Images, ImageSettings

    gpu = torch.cuda.is_available()
    settings = ImageSettings(
        size=config.size,
        resize=config.resize or round(config.size * RESIZE),
        mean=_colours(config.mean),
        std=_colours(config.std),
        dtype=config.dtype,
        layout=config.layout,
        area=(config.crop_area, 1.0),
        flip=0.5 if config.flip else 0.0,
        decode=config.decode if config.decode != "auto" else ("dali" if gpu else "fast"),
    )
    return Images(settings, train=train, gpu=gpu)


def audio_settings(config: AudioConfig) -> Any:
    from trackbed.data.samples.audio import AudioSettings

    return AudioSettings(sample_rate=config.sample_rate, seconds=config.seconds, mels=config.mels)


def _colours(values: list[float]) -> tuple[float, float, float]:
    red, green, blue = values
    return red, green, blue


def loading(config: SampleConfig) -> Loading:
    device = torch.cuda.current_device() if torch.cuda.is_available() else None
    return Loading(seed=config.seed, window=config.window, workers=config.workers, device=device)

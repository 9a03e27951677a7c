"""Sounds to log-mel spectrograms, all of it in DALI: decode, resample, mix to mono, cut, transform."""

from __future__ import annotations

import io
import wave
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from nvidia.dali import fn, math, types

from trackbed.data.samples.corrupt import sound_fault
from trackbed.data.samples.graph import Array, Drawn

# Quieter than this under full scale is silence: the logarithm of nothing has no end.
FLOOR_DB = -80.0


@dataclass(frozen=True, kw_only=True)
class AudioSettings:
    """How sounds become tensors."""

    sample_rate: int = 16_000
    """Hertz; every sound is resampled to it."""
    seconds: float = 1.0
    """Length of what comes out: a longer sound is cut (training: at random, else in the middle), a shorter one padded
    with silence."""
    mels: int = 64
    window: float = 0.025
    hop: float = 0.010
    """Seconds of a window of the spectrogram, and from one to the next."""
    mean: float = -30.0
    std: float = 20.0
    """Decibels: subtracted, and divided by."""

    @property
    def samples(self) -> int:
        return round(self.seconds * self.sample_rate)


class Audio:
    """Encoded sounds (WAV, FLAC, Ogg Vorbis) to float32 [1, mels, frames]."""

    names: Sequence[str] = ("sound", "place")
    draws = 1

    def __init__(self, settings: AudioSettings, *, train: bool, gpu: bool = False) -> None:
        self._given, self._train, self._gpu = settings, train, gpu
        self.settings = f"{settings} train={train} gpu={gpu}"

    def fault(self, data: bytes) -> str:
        return sound_fault(data)

    def sample(self, data: bytes, drawn: Drawn) -> tuple[Array, ...]:
        if not data:
            raise ValueError("it is empty")
        place = drawn[0] if self._train else 0.5
        return np.frombuffer(data, dtype=np.uint8), np.array(place, dtype=np.float32)

    def blank(self) -> tuple[Array, ...]:
        file = io.BytesIO()
        with wave.open(file, "wb") as silence:
            silence.setnchannels(1)
            silence.setsampwidth(2)
            silence.setframerate(self._given.sample_rate)
            silence.writeframes(bytes(2 * self._given.samples))
        return np.frombuffer(file.getvalue(), dtype=np.uint8), np.array(0, dtype=np.float32)

    def graph(self) -> Sequence[Any]:
        given = self._given
        spectrum = fn.spectrogram(
            self._cut(),
            nfft=_power_of_two(round(given.window * given.sample_rate)),
            window_length=round(given.window * given.sample_rate),
            window_step=round(given.hop * given.sample_rate),
        )
        mels = fn.mel_filter_bank(spectrum, sample_rate=given.sample_rate, nfilter=given.mels)
        decibels = fn.to_decibels(mels, multiplier=10.0, reference=1.0, cutoff_db=FLOOR_DB)
        return [fn.expand_dims((decibels - given.mean) / given.std, axes=0)]

    def _cut(self) -> Any:
        """Mono, float32 [samples]."""
        given = self._given
        encoded = fn.external_source(name="sound", dtype=types.UINT8, ndim=1, no_copy=True)
        place = fn.external_source(name="place", dtype=types.FLOAT, ndim=0)
        sound, _ = fn.decoders.audio(encoded, sample_rate=given.sample_rate, downmix=True, dtype=types.FLOAT)
        spare = math.max(sound.shape()[0] - given.samples, 0)
        start = fn.stack(fn.cast(place * fn.cast(spare, dtype=types.FLOAT), dtype=types.INT32))
        cut = fn.slice(
            sound, start, [given.samples], axes=[0], normalized_anchor=False, normalized_shape=False,
            out_of_bounds_policy="pad",
        )  # fmt: skip
        return cut.gpu() if self._gpu else cut


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()

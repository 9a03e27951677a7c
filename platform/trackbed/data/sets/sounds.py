"""A set of sounds that the project makes itself: eight kinds, WAV files of one second, in one folder a class.

Pitch, loudness, phase, sample rate and the noise on top differ from file to file, so that a kind is told by its timbre
and its course alone. A pure function of the number of a sound.
"""

from __future__ import annotations

import wave
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trackbed import folders
from trackbed.wheels import Progress

Signal = npt.NDArray[np.float64]
Made = Callable[[Signal, float, np.random.Generator], Signal]

SECONDS = 1.0
RATES = (8_000, 16_000, 22_050)
PER_CLASS = {"train": 120, "heldout": 30}


def _sine(time: Signal, pitch: float, random: np.random.Generator) -> Signal:
    return np.sin(2 * np.pi * pitch * time)


def _square(time: Signal, pitch: float, random: np.random.Generator) -> Signal:
    return np.sign(np.sin(2 * np.pi * pitch * time))


def _sawtooth(time: Signal, pitch: float, random: np.random.Generator) -> Signal:
    return 2 * ((pitch * time) % 1.0) - 1


def _rising(time: Signal, pitch: float, random: np.random.Generator) -> Signal:
    return np.sin(2 * np.pi * (pitch * time + pitch * time**2))


def _falling(time: Signal, pitch: float, random: np.random.Generator) -> Signal:
    return np.sin(2 * np.pi * (3 * pitch * time - pitch * time**2))


def _noise(time: Signal, pitch: float, random: np.random.Generator) -> Signal:
    return random.uniform(-1, 1, len(time))


def _pulses(time: Signal, pitch: float, random: np.random.Generator) -> Signal:
    return np.where((time * random.uniform(6, 12)) % 1.0 < 0.2, _sine(time, pitch, random), 0.0)


def _plucked(time: Signal, pitch: float, random: np.random.Generator) -> Signal:
    return _sawtooth(time, pitch, random) * np.exp(-6 * time)


KINDS: dict[str, Made] = {
    "falling": _falling, "noise": _noise, "plucked": _plucked, "pulses": _pulses,
    "rising": _rising, "sawtooth": _sawtooth, "sine": _sine, "square": _square,
}  # fmt: skip


def build(folder: Path, progress: Progress) -> dict[str, int]:
    """Write the sounds below a folder; returns how many each part has."""
    total, done = sum(PER_CLASS.values()) * len(KINDS), 0
    with folders.staged(folder) as staging:
        for part, count in PER_CLASS.items():
            for kind in KINDS:
                (staging / part / kind).mkdir(parents=True)
                for number in range(count):
                    _write(staging / part / kind / f"{number:03d}.wav", *sound(part, kind, number))
                done += count
                progress("sounds", done, total)
    return {part: count * len(KINDS) for part, count in PER_CLASS.items()}


def sound(part: str, kind: str, number: int) -> tuple[Signal, int]:
    """One sound, float64 [samples] in -1 to 1, and its sample rate in Hz."""
    random = np.random.default_rng((list(KINDS).index(kind), list(PER_CLASS).index(part), number))
    rate = int(random.choice(RATES))
    time = np.arange(int(SECONDS * rate)) / rate + random.uniform(0, 0.01)
    pitch = 2 ** random.uniform(np.log2(150), np.log2(900))
    clean = KINDS[kind](time, pitch, random) * random.uniform(0.2, 0.8)
    return clean + random.normal(0, random.uniform(0.005, 0.08), len(time)), rate


def _write(path: Path, signal: Signal, rate: int) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((np.clip(signal, -1, 1) * 32767).astype("<i2").tobytes())

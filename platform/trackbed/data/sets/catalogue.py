"""The data sets that can be built on this machine, by name: `trackbed data build NAME`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from trackbed.data.sets import imagesets, pydocs, sounds
from trackbed.wheels import Progress

SETS: dict[str, Callable[[Path, Progress], dict[str, int]]] = {
    "pydocs": pydocs.build,
    "digits": imagesets.digits,
    "fashion-mnist": imagesets.fashion_mnist,
    "sounds": sounds.build,
}

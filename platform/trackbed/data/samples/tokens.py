"""Rows of tokens as language models are trained on them: the inputs, and for each the token that follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from nvidia.dali import fn, types

from trackbed.data.samples.graph import Array, Drawn


@dataclass(frozen=True)
class Tokens:
    """int64 [row_length + 1] to inputs and labels, int64 [row_length] each, labels shifted by one."""

    row_length: int
    gpu: bool = False
    names: Sequence[str] = ("tokens",)
    draws: int = 0

    @property
    def settings(self) -> str:
        return f"tokens {self.row_length}"

    def fault(self, data: bytes) -> str:
        return "" if len(data) == 8 * (self.row_length + 1) else f"it has {len(data) // 8 - 1} tokens"

    def sample(self, data: bytes, drawn: Drawn) -> tuple[Array, ...]:
        return (np.frombuffer(data, dtype=np.int64),)

    def blank(self) -> tuple[Array, ...]:
        return (np.zeros(self.row_length + 1, dtype=np.int64),)

    def graph(self) -> Sequence[Any]:
        row = fn.external_source(name="tokens", dtype=types.INT64, ndim=1, no_copy=True)
        row = row.gpu() if self.gpu else row
        return [row[:-1], row[1:]]

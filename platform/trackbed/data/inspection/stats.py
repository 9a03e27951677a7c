"""What a chat data set comes to: `trackbed data stats`. Read from the prepared arrays in stretches, and from the
conversations one by one, so that neither has to fit into memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trackbed.data.chat.batches import Batches
from trackbed.data.chat.fingerprint import Progress
from trackbed.data.chat.prepared import Prepared
from trackbed.data.config import DataConfig
from trackbed.data.inspection.repeats import Finding, Read, findings, read
from trackbed.data.order import Order, Share

STRETCH = 1 << 20
BARS = 24
WIDTHS = (256, 512, 1024, 2048)
ENOUGH_ROWS = 20
MUCH = 0.05  # share of padding that is worth a word

Numbers = npt.NDArray[np.int64]
Json = dict[str, Any]


@dataclass(frozen=True)
class Rows:
    """How a job makes batches: its data section, and how many rows a rank takes at a time."""

    config: DataConfig
    at_once: int = 1


def stats(parts: Mapping[str, Prepared], rows: Rows, progress: Progress) -> Json:
    """The figures of train and heldout, and what is to be said of them, in JSON values."""
    reads = {name: read(prepared, name, progress) for name, prepared in parts.items()}
    figures = {name: _part(each, rows) for name, each in reads.items()}
    found = [*findings(reads["train"], reads["heldout"], progress), *padding(figures["train"], rows)]
    return {"parts": figures, "findings": [asdict(each) for each in found]}


def _part(each: Read, rows: Rows) -> Json:
    prepared = each.prepared
    return {
        "first": prepared.where(0),
        "format": prepared.format.value,
        "samples": len(prepared),
        "tokens": prepared.tokens,
        "supervised_tokens": prepared.supervised_tokens,
        "supervised_share": round(prepared.supervised_tokens / prepared.tokens, 4),
        "dropped": len(prepared.dropped),
        "truncated": prepared.truncated,
        "lengths": described(counted(prepared.lengths)),
        "supervised": described(counted(prepared.targets)),
        "turns": described(_array(each.turns)),
        "roles": dict(each.roles.most_common()),
        "packing": packing(prepared, rows),
    }


def counted(values: Numbers) -> Numbers:
    """How often each number from 0 on is there, int64 [largest + 1]; read in stretches."""
    counts = np.zeros(1, dtype=np.int64)
    for start in range(0, len(values), STRETCH):
        more = np.bincount(values[start : start + STRETCH])
        size = max(len(counts), len(more))
        counts = np.pad(counts, (0, size - len(counts))) + np.pad(more, (0, size - len(more)))
    return counts


def _array(counts: Counter[int]) -> Numbers:
    made = np.zeros(max(counts) + 1, dtype=np.int64)
    for value, count in counts.items():
        made[value] = count
    return made


def described(counts: Numbers) -> Json:
    """Numbers by how often each is there. A quantile is the smallest number that so many are not larger than."""
    there = np.flatnonzero(counts)
    reached = np.cumsum(counts)
    shares = {"median": 0.5, "p95": 0.95, "p99": 0.99}
    quantiles = {
        name: int(np.searchsorted(reached, np.ceil(share * reached[-1]))) for name, share in shares.items()
    }  # fmt: skip
    mean = float((counts * np.arange(len(counts))).sum() / reached[-1])
    return {
        "min": int(there[0]),
        "median": quantiles["median"],
        "mean": round(mean, 2),
        "p95": quantiles["p95"],
        "p99": quantiles["p99"],
        "max": int(there[-1]),
        "histogram": histogram(counts),
    }


def histogram(counts: Numbers) -> list[Json]:
    """At most 24 bars of equal width from the smallest number to the largest; `to` is included."""
    least = int(np.flatnonzero(counts)[0])
    width = -(-(len(counts) - least) // BARS)
    starts = range(least, len(counts), width)
    return [{"from": at, "to": at + width - 1, "samples": int(counts[at : at + width].sum())} for at in starts]


def packing(prepared: Prepared, rows: Rows) -> Json:
    """Shares of padding: samples packed into rows of several widths, and one a row in batches of the job's size."""
    longest = int(prepared.lengths.max())
    widths = sorted({rows.config.row_length, *WIDTHS})
    return {
        "packs": rows.config.pack,
        "row_length": rows.config.row_length,
        "longest": longest,
        "packed": [_packed(prepared, rows.config, width) for width in widths if width >= longest],
        "unpacked": _unpacked(prepared, rows),
    }


def _packed(prepared: Prepared, config: DataConfig, width: int) -> Json:
    packed = config.model_copy(update={"pack": True, "row_length": width})
    count = Batches(prepared, packed, Share(rank=0, world=1, rows=1)).rows_in_epoch(0)
    return {"row_length": width, "rows": count, "padding": round(1 - prepared.tokens / (count * width), 4)}


def _unpacked(prepared: Prepared, rows: Rows) -> Json:
    """Every batch is as wide as its longest sample, in the order of the first epoch."""
    order, size, tokens = Order(len(prepared), rows.config.seed, window=rows.config.window), rows.at_once, 0
    stretch = max(1, STRETCH // size) * size
    for start in range(0, len(prepared), stretch):
        lengths = prepared.lengths[order.at(start, min(stretch, len(prepared) - start))]
        whole = len(lengths) // size * size
        tokens += int(lengths[:whole].reshape(-1, size).max(axis=1).sum()) * size
        tokens += int(lengths[whole:].max(initial=0)) * (len(lengths) - whole)
    return {"rows_at_once": size, "padding": round(1 - prepared.tokens / tokens, 4)}


def padding(train: Json, rows: Rows) -> list[Finding]:
    """A word where the job's rows are emptier than others would be."""
    packs = train["packing"]
    # Of a handful of rows the last one, half empty, says nothing of the width; and a job refuses narrower rows.
    fit = [each for each in packs["packed"] if each["rows"] >= ENOUGH_ROWS]
    widths = {each["row_length"]: each["padding"] for each in fit if each["row_length"] >= rows.config.max_length}
    if not widths:
        return []
    best = min(widths, key=lambda width: (round(widths[width], 2), width))
    now = widths.get(packs["row_length"], 0.0) if packs["packs"] else packs["unpacked"]["padding"]
    if now < MUCH or now - widths[best] < MUCH / 2:
        return []
    how = f"rows of {packs['row_length']} tokens" if packs["packs"] else f"batches of {rows.at_once} unpacked samples"
    what = f"{now:.1%} of {how} are padding; packed into rows of {best} it would be {widths[best]:.1%}"
    means, remedy = "the machine computes on tokens that nobody learns", f"set data.row_length to {best}"
    remedy = remedy if packs["packs"] else f"set data.pack to true and data.row_length to {best}"
    return [Finding(id="padding", part="train", count=1, what=what, means=means, remedy=remedy)]

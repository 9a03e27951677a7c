"""Tokens a second and memory of `trackbed data prepare` beside datasets.map with the same tokenizer and processes.

    pip install --target PEERS datasets
    PYTHONPATH=PEERS python benchmarks/data/prepare.py MODEL DATA.jsonl [COPIES [ROUNDS]]    # a table in Markdown

MODEL is a folder with a tokenizer, as `trackbed model fetch` prints it. The data is written COPIES times (16) into one
file, each conversation with a number of its own, so that nothing is answered from a cache. Each way runs in a process
of its own, start and imports counted, ROUNDS times (3) in turn; the medians count. The peers make ids only; prepare
also checks every line, makes the mask of what is learnt, and hashes the data twice. Processor seconds are those of the
process and all its workers: on a busy machine they, and not the clock, tell.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WORKERS = len(os.sched_getaffinity(0))


def main(model: str, data: str, copies: str = "16", rounds: str = "3") -> None:
    with tempfile.TemporaryDirectory(prefix="trackbed-benchmark-") as folder:
        path = repeat(Path(data), int(copies), Path(folder) / "data.jsonl")
        measured: dict[str, list[Measured]] = {name: [] for name in WAYS}
        for number in range(int(rounds)):
            for name, runs in measured.items():
                runs.append(measure(name, model, path, Path(folder) / f"{number}-{WAYS[name].__name__}"))
        table(path.stat().st_size, measured)


def repeat(data: Path, copies: int, target: Path) -> Path:
    with target.open("w", encoding="utf-8") as file:
        for copy in range(copies):
            for number, line in enumerate(data.read_text("utf-8").splitlines()):
                record = json.loads(line)
                record["messages"][0]["content"] += f" ({copy}-{number})"
                file.write(json.dumps(record, ensure_ascii=False) + "\n")
    return target


@dataclass(frozen=True)
class Measured:
    """One run: tokens made, seconds on the clock and of processors, the largest process's peak in MiB."""

    tokens: int
    seconds: float
    processor: float
    peak: float


def measure(name: str, model: str, data: Path, cache: Path) -> Measured:
    environment = {**os.environ, "TRACKBED_CACHE": str(cache), "HF_HOME": str(cache), "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, __file__, "--one", name, model, str(data)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    began = os.times().elapsed
    assert process.stdout
    tokens = int(process.stdout.read().split()[-1])
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, name
    return Measured(tokens, os.times().elapsed - began, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def trackbed(model: Path, data: Path) -> int:
    from trackbed.data.chat.prepare import prepare
    from trackbed.data.chat.recipe import Recipe

    return prepare(Recipe(data, model, 1 << 20, "drop"), workers=WORKERS).tokens


def one_at_a_time(model: Path, data: Path) -> int:
    tokenizer, rows = _peer(model, data)
    return sum(_lengths(rows.map(lambda row: _ids(tokenizer, row["messages"]), num_proc=WORKERS)))


def batched(model: Path, data: Path) -> int:
    tokenizer, rows = _peer(model, data)
    made = rows.map(lambda part: _ids(tokenizer, part["messages"]), batched=True, num_proc=WORKERS)
    return sum(_lengths(made))


def _peer(model: Path, data: Path) -> tuple[Any, Any]:
    from transformers import PreTrainedTokenizerFast

    from datasets import load_dataset

    return PreTrainedTokenizerFast.from_pretrained(model), load_dataset("json", data_files=str(data), split="train")


def _ids(tokenizer: Any, messages: Any) -> dict[str, Any]:
    return {"input_ids": tokenizer(tokenizer.apply_chat_template(messages, tokenize=False))["input_ids"]}


def _lengths(rows: Any) -> Iterator[int]:
    import pyarrow.compute

    for batch in rows.data.column("input_ids").chunks:
        yield pyarrow.compute.sum(pyarrow.compute.list_value_length(batch)).as_py()


WAYS: dict[str, Callable[[Path, Path], int]] = {
    "trackbed data prepare": trackbed,
    "datasets.map, a conversation at a time": one_at_a_time,
    "datasets.map, batched": batched,
}


def table(size: int, measured: dict[str, list[Measured]]) -> None:
    ours = statistics.median(run.processor for run in measured["trackbed data prepare"])
    lines = [f"{size / 1e6:.0f} MB of JSONL, {WORKERS} processes", ""]
    lines += ["| way | tokens/s | tokens | processor s | ours is | peak of a process |", "|---|---|---|---|---|---|"]
    for name, runs in measured.items():
        speed = statistics.median(run.tokens / run.seconds for run in runs)
        processor, peak = statistics.median(run.processor for run in runs), max(run.peak for run in runs)
        lines.append(
            f"| {name} | {speed:,.0f} | {runs[0].tokens} | {processor:.1f} | {processor / ours:.2f}x | {peak:.0f} MiB |"
        )
    sys.stdout.write("\n".join([*lines, ""]))


if __name__ == "__main__":
    if sys.argv[1] == "--one":
        sys.stdout.write(f"\n{WAYS[sys.argv[2]](Path(sys.argv[3]), Path(sys.argv[4]))}\n")
    else:
        main(*sys.argv[1:])

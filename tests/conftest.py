"""What tests share: a tiny real model, real chat data, and the `trackbed` command in a folder of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from containers import Stack, missing_engine, run

ROOT = Path(__file__).parents[1]

# Written for these tests: the ChatML form, with an end token that is also the padding token, as in SmolLM2.
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def image() -> Iterator[str]:
    """The CPU image, built from this checkout as `docker compose` builds it; removed afterwards."""
    if reason := missing_engine():
        # On CI a machine without an engine is a broken machine, never a green result.
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"no container engine: {reason}")
    name = f"trackbed-test-{os.getpid()}"
    Stack(project=name, image=f"{name}:cpu", port=0).compose("build")
    yield f"{name}:cpu"
    run("docker", "image", "rm", "--force", f"{name}:cpu")


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of 0.1 M parameters with a byte-level BPE tokenizer, saved as transformers saves models."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("model") / "tiny"
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    raw.train_from_iterator((question(i)[0] for i in range(200)), trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, bos_token="<|im_start|>", eos_token="<|im_end|>", pad_token="<|im_end|>"
    )
    tokenizer.chat_template = TEMPLATE
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=400, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, bos_token_id=1, eos_token_id=2, pad_token_id=2, tie_word_embeddings=True,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def question(index: int) -> tuple[str, str]:
    """A learnable pair: the answer is a function of the question."""
    return f"what follows the number {index} in the row of numbers?", f"it is {index + 1}"


def conversation(index: int) -> dict[str, Any]:
    asked, answer = question(index)
    messages = [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]
    return {"type": "chatml", "messages": messages, "source": "test"}


def write_jsonl(path: Path, records: list[Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    return path


@pytest.fixture
def job(tmp_path: Path, tiny_model: Path) -> Callable[..., Path]:
    """Writes a job for the tiny model; sections given as keywords are laid over it."""

    def make(**sections: dict[str, Any]) -> Path:
        train = write_jsonl(tmp_path / "train.jsonl", [conversation(i) for i in range(100)])
        heldout = write_jsonl(tmp_path / "heldout.jsonl", [conversation(i) for i in range(100, 120)])
        content: dict[str, Any] = {
            "name": "tiny",
            "model": {"name": str(tiny_model), "precision": "fp32"},
            "data": {"train": str(train), "heldout": str(heldout), "max_length": 96, "row_length": 192},
            "train": {"steps": 6, "learning_rate": 0.003, "warmup_steps": 2},
            "evaluate": {"every": 3, "samples": 8, "answers": 2, "max_new_tokens": 8},
            "checkpoint": {"every": 3, "keep": 2},
            "resources": {"ranks": 2, "timeout_minutes": 2},
        }
        return write_job(tmp_path / "job.yaml", content, sections)

    return make


def write_job(path: Path, content: dict[str, Any], sections: dict[str, dict[str, Any]]) -> Path:
    """A job, with sections laid over those it has."""
    for name, values in sections.items():
        content[name] = {**content[name], **values}
    path.write_text(yaml.safe_dump(content, sort_keys=False), "utf-8")
    return path


@pytest.fixture
def trackbed(tmp_path: Path) -> Command:
    """Runs the real command, as a user does, with its runs and its cache below the test's folder."""

    def run(*words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "trackbed", *map(str, words)]
        return subprocess.run(
            command, env=environ(tmp_path, **environment), capture_output=True, text=True, check=False
        )

    return run


def environ(folder: Path, **more: str) -> dict[str, str]:
    own = {"TRACKBED_RUNS": str(folder / "runs"), "TRACKBED_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**inherited, "PYTHONPATH": str(ROOT / "platform"), **own, **more}

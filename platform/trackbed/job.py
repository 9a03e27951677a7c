"""A job template: one whole YAML file, read strictly. Every mistake is named by file and line, all of them at once."""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field, TypeAdapter, ValidationError, model_validator
from pydantic_core import ErrorDetails

from trackbed import folders, hub
from trackbed.data.config import AudioConfig, DataConfig, ImageConfig, Section
from trackbed.errors import DataError, JobError, Problem
from trackbed.train.config import (
    CheckpointConfig,
    ClassifierConfig,
    ClassifierEvaluateConfig,
    EvaluateConfig,
    ModelConfig,
    ResourcesConfig,
    TrainConfig,
)
from trackbed.yamlfile import Key, apply, dotted, problem, read

HEAD_WIDTH = 32
BUILT = re.compile(r"([a-z0-9-]+):([a-z0-9-]+)")


class Job(Section):
    """What every job says, whatever it trains."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$", description="begins the name of every run")]
    model: ModelConfig | ClassifierConfig
    data: DataConfig | ImageConfig | AudioConfig
    train: TrainConfig
    evaluate: EvaluateConfig | ClassifierEvaluateConfig
    checkpoint: CheckpointConfig = CheckpointConfig()
    resources: ResourcesConfig = ResourcesConfig()

    def deepspeed(self) -> dict[str, Any]:
        """What DeepSpeed is told; the same on every rank, and shown in the plan."""
        train = self.train
        return {
            "train_batch_size": train.rows_per_rank * train.accumulate * self.resources.ranks,
            "train_micro_batch_size_per_gpu": train.rows_per_rank,
            "gradient_accumulation_steps": train.accumulate,
            "gradient_clipping": train.gradient_clip,
            "bf16": {"enabled": self.model.precision == "bf16"},
            "zero_optimization": {"stage": train.zero_stage},
            # torch's AdamW needs no compiler on the machine; DeepSpeed's own is built at first use.
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "steps_per_print": 10**9,
        }


class ChatJob(Job):
    """Fine-tunes a language model on conversations."""

    model: ModelConfig
    data: DataConfig
    evaluate: EvaluateConfig = EvaluateConfig()

    @model_validator(mode="after")
    def _rows_hold_samples(self) -> ChatJob:
        if self.data.pack and self.data.row_length < self.data.max_length:
            raise ValueError(
                f"data.row_length ({self.data.row_length}) is shorter than data.max_length ({self.data.max_length})"
            )
        return self


class ClassifyJob(Job):
    """Trains a small network to tell pictures or sounds apart."""

    model: ClassifierConfig
    data: ImageConfig | AudioConfig
    evaluate: ClassifierEvaluateConfig = ClassifierEvaluateConfig()

    @model_validator(mode="after")
    def _network_has_a_shape(self) -> ClassifyJob:
        widths, depths = self.model.widths, self.model.depths
        if len(widths) != len(depths):
            raise ValueError(f"model.widths has {len(widths)} numbers, model.depths {len(depths)}: one each a stage")
        # A resnet halves what it sees twice at first and once a stage after the first.
        side = self.data.size if isinstance(self.data, ImageConfig) else 0
        one_pixel = 0 < side <= 2 ** (len(widths) + 1)
        if self.model.architecture == "resnet" and one_pixel and self.train.rows_per_rank == 1:
            what = f"of a picture of {side} pixels one is left, and batch norms need two values or more"
            raise ValueError(f"train.rows_per_rank is 1: {what}")
        if self.model.architecture == "vit":
            self._patches_fit()
        return self

    def _patches_fit(self) -> None:
        widths, patch = self.model.widths, self.model.patch
        if len(widths) != 1:
            raise ValueError("a vit has one width and one depth: model.widths: [192], model.depths: [6]")
        if widths[0] % attention_heads(widths[0]):
            heads = attention_heads(widths[0])
            raise ValueError(f"model.widths: {widths[0]} is no multiple of {heads}, its heads; {HEAD_WIDTH} each")
        side = self.data.size if isinstance(self.data, ImageConfig) else self.data.mels
        if patch > side:
            raise ValueError(f"model.patch: {patch} is larger than what the model sees, {side}")


class ImageJob(ClassifyJob):
    """`data.kind: images`."""

    data: ImageConfig


class AudioJob(ClassifyJob):
    """`data.kind: audio`."""

    data: AudioConfig


def attention_heads(width: int) -> int:
    """Heads of a ViT of that width."""
    return max(1, width // HEAD_WIDTH)


KINDS: dict[str, type[Job]] = {"chat": ChatJob, "images": ImageJob, "audio": AudioJob}


def load(path: Path, overrides: tuple[str, ...] = ()) -> Job:
    """Read a job and apply `a.b=c` overrides; JobError with every problem otherwise."""
    tree, lines = read(path)
    problems = list(apply(tree, lines, overrides))
    kind = _kind(tree)
    try:
        job = kind.model_validate(tree)
    except ValidationError as error:
        problems += [_explain(detail, Place(kind, path, lines)) for detail in error.errors(include_url=False)]
    if problems:
        raise JobError(problems)
    return job


def dump(job: Job) -> str:
    """The whole job, defaults included and paths made absolute, as YAML that `load` reads from any folder."""
    content = job.model_dump(mode="json")
    for part in ("train", "heldout"):
        if not BUILT.fullmatch(content["data"][part]):
            content["data"][part] = str(Path(content["data"][part]).absolute())
    if isinstance(job, ChatJob) and job.model.name not in hub.ALIASES and Path(job.model.name).is_dir():
        content["model"]["name"] = str(Path(job.model.name).absolute())
    return yaml.safe_dump(content, sort_keys=False)


def schema() -> str:
    """The JSON Schema of a job of any kind."""
    return json.dumps(TypeAdapter(ChatJob | ImageJob | AudioJob).json_schema(), indent=2) + "\n"


def data_path(name: str) -> Path:
    """The file behind `data.train` or `data.heldout`: a path, or SET:PART of a built set in the cache."""
    match = BUILT.fullmatch(name)
    if not match:
        return Path(name).absolute()
    folder = folders.data() / match[1] / match[2]
    path = folder if folder.is_dir() else folder.with_suffix(".jsonl")
    if not path.exists():
        raise DataError(
            Problem(
                id="data.not-built",
                what=f"data set {name} is not on this machine ({path})",
                remedy=f"trackbed data build {match[1]}",
            )
        )
    return path


@dataclass(frozen=True)
class Place:
    """What a job is read as, and where its keys stand."""

    kind: type[Job]
    path: Path
    lines: dict[Key, str]

    def of(self, key: Key) -> str:
        return next(self.lines[key[:end]] for end in range(len(key), -1, -1) if key[:end] in self.lines)

    def fields(self, key: Key) -> dict[str, Any]:
        """The fields of the section at a key."""
        model: Any = self.kind
        for part in key:
            model = model.model_fields[str(part)].annotation
        return dict(getattr(model, "model_fields", {}))

    def wanted(self, key: Key) -> str:
        field = self.fields(key[:-1]).get(str(key[-1]))
        return (field.description if field else None) or "see the comments in jobs/*.yaml"


def _explain(detail: ErrorDetails, place: Place) -> Problem:
    key = tuple(detail["loc"])
    where = place.of(key)
    if detail["type"] == "extra_forbidden":
        return _unknown_key(key, place)
    if detail["type"] == "missing":
        return problem("job.missing-key", where, f"`{dotted(key)}` is missing", wanted=place.wanted(key))
    if detail["type"] == "value_error":
        return problem("job.value", where, str(detail["ctx"]["error"]))
    message = detail["msg"].removeprefix("Input ")
    # A number of a list is described by the list.
    named = next(part for part in (key[:end] for end in range(len(key), 0, -1)) if isinstance(part[-1], str))
    return problem(
        "job.type", where, f"`{dotted(key)}` is {detail['input']!r}", wanted=f"it {message}; {place.wanted(named)}"
    )


def _unknown_key(key: Key, place: Place) -> Problem:
    names = list(place.fields(key[:-1]))
    near = difflib.get_close_matches(str(key[-1]), names, n=1)
    remedy = f"did you mean `{near[0]}`?" if near else "delete it"
    return problem(
        "job.unknown-key",
        place.of(key),
        f"unknown key `{dotted(key)}`",
        wanted=f"one of {', '.join(names)}",
        remedy=remedy,
    )


def _kind(tree: Any) -> type[Job]:
    """Which class a job is read as; an unknown kind is read as chat, whose own `kind` then says what is wrong."""
    data = tree.get("data")
    kind = data.get("kind", "chat") if isinstance(data, dict) else "chat"
    return KINDS.get(kind, ChatJob) if isinstance(kind, str) else ChatJob

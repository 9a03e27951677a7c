"""A job template: one whole YAML file, read strictly. Every mistake is named by file and line, all of them at once."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from trackbed import folders, hub
from trackbed.data.config import DataConfig
from trackbed.errors import DataError, JobError, Problem
from trackbed.train.config import CheckpointConfig, EvaluateConfig, ModelConfig, ResourcesConfig, TrainConfig

Key = tuple[str | int, ...]
BUILT = re.compile(r"([a-z0-9-]+):([a-z0-9-]+)")


class Job(BaseModel):
    """Everything a run needs to know."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$", description="begins the name of every run")]
    model: ModelConfig
    data: DataConfig
    train: TrainConfig
    evaluate: EvaluateConfig = EvaluateConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    resources: ResourcesConfig = ResourcesConfig()

    @model_validator(mode="after")
    def _rows_hold_samples(self) -> Job:
        if self.data.pack and self.data.row_length < self.data.max_length:
            raise ValueError(
                f"data.row_length ({self.data.row_length}) is shorter than data.max_length ({self.data.max_length})"
            )
        return self

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


class Loader(yaml.SafeLoader):
    """YAML, with 2e-4 read as the number that everyone means by it."""


Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def load(path: Path, overrides: tuple[str, ...] = ()) -> Job:
    """Read a job and apply `a.b=c` overrides; JobError with every problem otherwise."""
    tree, lines = _read(path)
    problems = list(_apply(tree, lines, overrides))
    try:
        job = Job.model_validate(tree)
    except ValidationError as error:
        problems += [_explain(detail, path, lines) for detail in error.errors(include_url=False)]
    if problems:
        raise JobError(problems)
    return job


def dump(job: Job) -> str:
    """The whole job, defaults included and paths made absolute, as YAML that `load` reads from any folder."""
    content = job.model_dump(mode="json")
    for part in ("train", "heldout"):
        if not BUILT.fullmatch(content["data"][part]):
            content["data"][part] = str(Path(content["data"][part]).absolute())
    if content["model"]["name"] not in hub.ALIASES and Path(content["model"]["name"]).is_dir():
        content["model"]["name"] = str(Path(content["model"]["name"]).absolute())
    return yaml.safe_dump(content, sort_keys=False)


def schema() -> str:
    """The JSON Schema of a job."""
    return json.dumps(Job.model_json_schema(), indent=2) + "\n"


def data_path(name: str) -> Path:
    """The file behind `data.train` or `data.heldout`: a path, or SET:PART of a built set in the cache."""
    match = BUILT.fullmatch(name)
    if not match:
        return Path(name).absolute()
    path = folders.data() / match[1] / f"{match[2]}.jsonl"
    if not path.exists():
        raise DataError(
            Problem(
                id="data.not-built",
                what=f"data set {name} is not on this machine ({path})",
                remedy=f"trackbed data build {match[1]}",
            )
        )
    return path


def _read(path: Path) -> tuple[Any, dict[Key, str]]:
    """The values of a YAML file, and the place (file:line) of each key."""
    try:
        node = yaml.compose(path.read_text("utf-8"), Loader)
    except OSError as error:
        raise JobError(_problem("job.missing", str(path), f"the job cannot be read: {error.strerror}")) from error
    except UnicodeDecodeError as error:
        raise JobError(_problem("job.not-utf8", str(path), "the job is not UTF-8 text")) from error
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise JobError(_problem("job.syntax", f"{path}:{line}", f"not YAML: {error.problem}")) from error
    except yaml.YAMLError as error:
        raise JobError(_problem("job.syntax", str(path), f"not YAML: {error}")) from error
    if not isinstance(node, yaml.MappingNode):
        raise JobError(
            _problem("job.syntax", f"{path}:1", "the job is not a mapping", wanted="name:, model:, data: ...")
        )
    lines: dict[Key, str] = {(): f"{path}:1"}
    duplicates = list(_places(node, (), path, lines))
    if duplicates:
        raise JobError(duplicates)
    try:
        return Loader("").construct_document(node), lines
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise JobError(_problem("job.syntax", f"{path}:{line}", f"not a plain value: {error.problem}")) from error
    except ValueError as error:
        raise JobError(_problem("job.syntax", str(path), f"not a plain value: {error}")) from error


def _places(node: yaml.Node, key: Key, path: Path, lines: dict[Key, str]) -> Iterator[Problem]:
    """Note where every key stands; yield a problem for one that stands twice."""
    if not isinstance(node, yaml.MappingNode):
        return
    for name_node, value in node.value:
        here = (*key, str(name_node.value))
        place = f"{path}:{name_node.start_mark.line + 1}"
        if here in lines:
            yield _problem("job.duplicate-key", place, f"`{_dotted(here)}` stands twice, first at {lines[here]}")
        lines[here] = place
        yield from _places(value, here, path, lines)


def _apply(tree: dict[str, Any], lines: dict[Key, str], overrides: tuple[str, ...]) -> Iterator[Problem]:
    for override in overrides:
        name, equals, text = override.partition("=")
        key = tuple(name.split("."))
        try:
            value = yaml.load(text, Loader)
        except (yaml.YAMLError, ValueError):
            value = text
        if not equals or not all(key):
            yield _problem("job.override", f"--set {override}", "not an override", wanted="--set section.key=value")
            continue
        section = tree
        for part in key[:-1]:
            inner = section.setdefault(part, {})
            if not isinstance(inner, dict):
                yield _problem("job.override", f"--set {override}", f"`{part}` is not a section")
                break
            section = inner
        else:
            section[key[-1]] = value
            lines[key] = f"--set {override}"


def _explain(detail: ErrorDetails, path: Path, lines: dict[Key, str]) -> Problem:
    key = tuple(detail["loc"])
    where = next(lines[key[:end]] for end in range(len(key), -1, -1) if key[:end] in lines)
    if detail["type"] == "extra_forbidden":
        return _unknown_key(key, where)
    if detail["type"] == "missing":
        return _problem("job.missing-key", where, f"`{_dotted(key)}` is missing", wanted=_wanted(key))
    if detail["type"] == "value_error":
        return _problem("job.value", where, str(detail["ctx"]["error"]))
    message = detail["msg"].removeprefix("Input ")
    return _problem(
        "job.type", where, f"`{_dotted(key)}` is {detail['input']!r}", wanted=f"it {message}; {_wanted(key)}"
    )


def _unknown_key(key: Key, where: str) -> Problem:
    names = list(_fields(key[:-1]))
    near = difflib.get_close_matches(str(key[-1]), names, n=1)
    remedy = f"did you mean `{near[0]}`?" if near else "delete it"
    return _problem(
        "job.unknown-key", where, f"unknown key `{_dotted(key)}`", wanted=f"one of {', '.join(names)}", remedy=remedy
    )


def _fields(key: Key) -> dict[str, Any]:
    """The fields of the section at a key."""
    model: Any = Job
    for part in key:
        model = model.model_fields[str(part)].annotation
    return dict(model.model_fields)


def _wanted(key: Key) -> str:
    field = _fields(key[:-1]).get(str(key[-1]))
    return (field.description if field else None) or "see the comments in jobs/finetune-smollm2.yaml"


def _dotted(key: Key) -> str:
    return ".".join(map(str, key))


def _problem(id: str, where: str, what: str, *, wanted: str = "", remedy: str = "") -> Problem:
    return Problem(id=id, where=where, what=what, wanted=wanted, remedy=remedy)

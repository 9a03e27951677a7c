"""What a job says about the model, the training, its evaluation and its checkpoints."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trackbed.data.config import Section


class ModelConfig(Section):
    """The `model` section of a job."""

    name: Annotated[str, Field(min_length=1, description="alias (smollm2-135m), folder, or hub id fetched before")]
    precision: Annotated[
        Literal["bf16", "fp32"], Field(description="of weights and activations; the optimizer always keeps fp32")
    ] = "bf16"

    @property
    def title(self) -> str:
        return self.name


class ClassifierConfig(Section):
    """The `model` section of a job that classifies: a small network, trained from random weights."""

    architecture: Annotated[Literal["resnet", "vit"], Field(description="transformers' ResNet or ViT")]
    widths: Annotated[
        list[int],
        Field(
            default_factory=lambda: [32, 64, 128],
            min_length=1,
            description="channels of each ResNet stage; of a ViT, one number: its width",
        ),
    ]
    depths: Annotated[
        list[int],
        Field(
            default_factory=lambda: [1, 1, 1],
            min_length=1,
            description="blocks of each ResNet stage; of a ViT, one number: its layers",
        ),
    ]
    patch: Annotated[int, Field(ge=1, description="pixels, side of a ViT's patch")] = 8
    precision: Annotated[
        Literal["bf16", "fp32"], Field(description="of weights and activations; the optimizer always keeps fp32")
    ] = "fp32"

    @property
    def title(self) -> str:
        return f"{self.architecture}, widths {self.widths}, depths {self.depths}"


class TrainConfig(Section):
    """The `train` section of a job."""

    steps: Annotated[int, Field(ge=1, description="optimizer steps")]
    rows_per_rank: Annotated[int, Field(ge=1, description="rows (packed samples) in one forward pass of one rank")] = 1
    accumulate: Annotated[int, Field(ge=1, description="forward passes summed into one optimizer step")] = 1
    learning_rate: Annotated[float, Field(gt=0, description="the highest, after the warm-up")] = 2e-4
    warmup_steps: Annotated[int, Field(ge=0, description="steps from 0 to learning_rate; a cosine to 0 follows")] = 0
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    gradient_clip: Annotated[float, Field(gt=0, description="largest norm of the whole gradient")] = 1.0
    zero_stage: Annotated[Literal[0, 1, 2], Field(description="DeepSpeed ZeRO: what is split over the ranks")] = 1
    seed: Annotated[int, Field(ge=0)] = 0


class EvaluateConfig(Section):
    """The `evaluate` section of a job."""

    every: Annotated[int, Field(ge=1, description="steps between two evaluations; also before and after")] = 20
    samples: Annotated[int, Field(ge=1, description="held-out conversations measured")] = 96
    answers: Annotated[int, Field(ge=0, description="sample answers shown before and after")] = 4
    max_new_tokens: Annotated[int, Field(ge=1, description="longest answer generated, in tokens")] = 24


class ClassifierEvaluateConfig(Section):
    """The `evaluate` section of a job that classifies."""

    every: Annotated[int, Field(ge=1, description="steps between two evaluations; also before and after")] = 50


class CheckpointConfig(Section):
    """The `checkpoint` section of a job."""

    every: Annotated[int, Field(ge=1, description="steps between two checkpoints; one more at the end")] = 50
    keep: Annotated[int, Field(ge=1, description="committed checkpoints kept; the newest are")] = 2


class ResourcesConfig(Section):
    """The `resources` section of a job."""

    ranks: Annotated[int, Field(ge=1, description="processes on this machine: one a GPU, or one a CPU core or two")] = 1
    timeout_minutes: Annotated[
        int, Field(ge=1, description="a collective that waits longer than this ends the run")
    ] = 10

"""What a job says about its data: one class for each kind of pipeline, told apart by `data.kind`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator


class Section(BaseModel):
    """Unknown keys and wrong types are errors, nothing is guessed."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class DataConfig(Section):
    """`kind: chat`: conversations for a language model."""

    kind: Annotated[Literal["chat"], Field(description="conversations for a language model")] = "chat"
    train: Annotated[str, Field(description="JSONL file of conversations, or SET:PART of a built set, as pydocs:train")]
    heldout: Annotated[str, Field(description="the same, for conversations that are never trained on")]
    format: Annotated[
        Literal["auto", "chatml", "sharegpt", "alpaca", "prompt_completion"],
        Field(description="of the JSONL file; auto recognises it only when one fits, and says which"),
    ] = "auto"
    max_length: Annotated[int, Field(ge=8, description="longest sample, in tokens")] = 512
    too_long: Annotated[
        Literal["drop", "truncate_left", "fail"], Field(description="what is done with a longer sample")
    ] = "drop"
    pack: Annotated[bool, Field(description="put several short samples into one row, without attention across")] = True
    row_length: Annotated[int, Field(ge=8, description="tokens in a packed row; at least max_length")] = 512
    seed: Annotated[int, Field(ge=0, description="order of the samples")] = 0
    window: Annotated[
        int, Field(ge=0, description="samples shuffled and packed together; 0: the whole set, which must fit in memory")
    ] = 0


class SampleConfig(Section):
    """What jobs over files of labelled samples share."""

    train: Annotated[str, Field(description="a folder of class folders, of *.tar or of *.tfrecord; or SET:PART")]
    heldout: Annotated[str, Field(description="the same, for samples that are never trained on")]
    classes: Annotated[
        list[str],
        Field(
            default_factory=list,
            description="names of the classes by number, for tar and TFRecord shards; folders name their own",
        ),
    ]
    workers: Annotated[
        int, Field(ge=1, description="threads that read and decode, per rank; never changes the order")
    ] = 2
    on_corrupt: Annotated[
        Literal["fail", "skip"],
        Field(description="a sample that cannot be read: end the run, or leave it out and name it"),
    ] = "fail"
    skip_at_most: Annotated[
        float, Field(ge=0, le=1, description="largest share of the set that may be left out under skip")
    ] = 0.01
    window: Annotated[
        int,
        Field(ge=0, description="samples shuffled together, for shards that are read in sequence; 0: the whole set"),
    ] = 0
    seed: Annotated[int, Field(ge=0, description="order and augmentation of the samples")] = 0

    @field_validator("classes")
    @classmethod
    def _each_once(cls, classes: list[str]) -> list[str]:
        if again := next((name for name in classes if classes.count(name) > 1), ""):
            raise ValueError(f"data.classes: {again} is there twice, and a number needs a name of its own")
        return classes


class ImageConfig(SampleConfig):
    """`kind: images`: labelled pictures."""

    kind: Annotated[Literal["images"], Field(description="labelled pictures")]
    size: Annotated[int, Field(ge=8, description="pixels, height and width of what the model sees")] = 224
    crop_area: Annotated[
        float, Field(gt=0, le=1, description="smallest share of a picture that a training crop keeps; 1: the whole")
    ] = 0.08
    flip: Annotated[bool, Field(description="mirror half of the training pictures; not for digits or text")] = True
    resize: Annotated[
        int, Field(ge=0, description="evaluation: shorter side before the centre is cut out; 0: 8/7 of size")
    ] = 0
    mean: Annotated[
        list[float],
        Field(
            default_factory=lambda: [0.485, 0.456, 0.406],
            min_length=3,
            max_length=3,
            description="subtracted from red, green, blue, which are 0 to 1; ImageNet's",
        ),
    ]
    std: Annotated[
        list[Annotated[float, Field(gt=0)]],
        Field(
            default_factory=lambda: [0.229, 0.224, 0.225],
            min_length=3,
            max_length=3,
            description="divided by after that; ImageNet's",
        ),
    ]
    dtype: Annotated[
        Literal["float32", "float16", "uint8"], Field(description="of what the model gets; uint8 is not normalised")
    ] = "float32"
    layout: Annotated[Literal["CHW", "HWC"], Field(description="how pixels lie in memory; HWC: channels_last")] = "CHW"
    decode: Annotated[
        Literal["auto", "fast", "dali"],
        Field(description="fast: libjpeg-turbo at reduced scale, on CPUs; dali: DALI's own; auto: dali on a GPU"),
    ] = "auto"


class AudioConfig(SampleConfig):
    """`kind: audio`: labelled sounds."""

    kind: Annotated[Literal["audio"], Field(description="labelled sounds")]
    sample_rate: Annotated[int, Field(ge=1000, description="Hz; every sound is resampled to it")] = 16_000
    seconds: Annotated[float, Field(ge=0.01, description="length that every sound is cut or padded to")] = 1.0
    mels: Annotated[int, Field(ge=8, description="mel bands of the spectrogram")] = 64

"""Training a small network to tell pictures or sounds apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trackbed.data.config import ImageConfig
from trackbed.data.order import Share
from trackbed.data.samples.loader import Batch
from trackbed.data.samples.parts import open_parts
from trackbed.data.samples.settings import shape
from trackbed.data.samples.streams import Evaluation, training
from trackbed.job import AudioJob, ClassifyJob, attention_heads
from trackbed.train.config import ClassifierConfig
from trackbed.train.engine import Ranks
from trackbed.train.model import DTYPES
from trackbed.train.task import Measured


class ClassifyTask:
    """See trackbed.train.task.Task."""

    right = "accuracy"
    note = ""

    def __init__(self, job: ClassifyJob, ranks: Ranks, folder: Path) -> None:
        self._innermost = isinstance(job.data, ImageConfig) and job.data.layout == "HWC"
        self.unit = "sounds" if isinstance(job, AudioJob) else "images"
        share = Share(ranks.rank, ranks.world, job.train.rows_per_rank, job.train.accumulate)
        parts = open_parts(job.data)
        self.pipeline = training(parts, job.data, share, folder / "quarantine.jsonl")
        self._heldout = Evaluation(parts, job.data, share, folder / "quarantine-heldout.jsonl")
        # Every rank begins with the same weights: torch is seeded by the loop before this.
        model = build(job, parts.classes)
        self.module = ClassifierLoss(model.to(DTYPES[job.model.precision]))

    def size(self, batch: Batch) -> int:
        return int(batch.valid.sum())

    def tensors(self, batch: Batch, device: torch.device) -> dict[str, Tensor]:
        inputs = batch.inputs.to(device, non_blocking=True)
        return {
            # Only seen otherwise and not moved: torch's channels_last, which convolutions on GPUs like best.
            "inputs": inputs.permute(0, 3, 1, 2) if self._innermost else inputs,
            "labels": batch.labels.to(device, non_blocking=True),
            "valid": batch.valid.to(device, non_blocking=True),
        }

    def measure(self, engine: Any) -> Measured:
        """Loss and accuracy over all held-out samples; collective."""
        engine.eval()
        sums = torch.zeros(3, dtype=torch.float64, device=engine.device)
        with torch.no_grad():
            for batch in self._heldout:
                sums += self._count(engine, batch)
        engine.train()
        dist.all_reduce(sums)
        loss, right, count = sums.tolist()
        return Measured(loss / count, right / count, int(count), [])

    def _count(self, engine: Any, batch: Batch) -> Tensor:
        """Sum of losses, right answers and samples of a batch, float64 [3]."""
        given = self.tensors(batch, engine.device)
        logits = engine.module.logits(given["inputs"])
        loss = summed_loss(logits, given["labels"], given["valid"])
        right = ((logits.argmax(dim=1) == given["labels"]) & given["valid"]).sum()
        return torch.stack([loss.double(), right.double(), given["valid"].sum().double()])

    def export(self, engine: Any, folder: Path) -> None:
        """Safetensors and a configuration that names the classes."""
        engine.module.model.save_pretrained(folder)


class ClassifierLoss(nn.Module):
    """Wraps a classifier of transformers."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor, labels: Tensor, valid: Tensor) -> Tensor:
        """inputs [rows, channels, height, width], labels int64 [rows], valid bool [rows]; the summed cross-entropy."""
        return summed_loss(self.logits(inputs), labels, valid)

    def logits(self, inputs: Tensor) -> Tensor:
        """fp32 [rows, classes]."""
        logits: Tensor = self.model(pixel_values=inputs.to(self.model.dtype)).logits
        return logits.float()


def summed_loss(logits: Tensor, labels: Tensor, valid: Tensor) -> Tensor:
    """Cross-entropy in nats, summed over the valid rows; 0, with a gradient of 0, when there are none."""
    return (nn.functional.cross_entropy(logits, labels, reduction="none") * valid).sum()


def build(job: ClassifyJob, classes: tuple[str, ...]) -> Any:
    """A network of transformers with random weights, for the shape that the job's data has."""
    from transformers import ResNetForImageClassification, ViTForImageClassification

    names = {"id2label": dict(enumerate(classes)), "label2id": {name: number for number, name in enumerate(classes)}}
    channels, height, width = shape(job.data)
    if job.model.architecture == "resnet":
        return ResNetForImageClassification(_resnet(job.model, channels, names))
    return ViTForImageClassification(_vit(job.model, (channels, height, width), names))


def count_parameters(job: ClassifyJob, classes: tuple[str, ...]) -> int:
    """How many numbers the network of a job has; none of them is made."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in build(job, classes).parameters())


def _resnet(model: ClassifierConfig, channels: int, names: dict[str, Any]) -> Any:
    from transformers import ResNetConfig

    return ResNetConfig(
        num_channels=channels,
        embedding_size=model.widths[0],
        hidden_sizes=model.widths,
        depths=model.depths,
        layer_type="basic",
        **names,
    )


def _vit(model: ClassifierConfig, shape: tuple[int, int, int], names: dict[str, Any]) -> Any:
    from transformers import ViTConfig

    return ViTConfig(
        num_channels=shape[0],
        image_size=shape[1:],
        patch_size=model.patch,
        hidden_size=model.widths[0],
        intermediate_size=4 * model.widths[0],
        num_hidden_layers=model.depths[0],
        num_attention_heads=attention_heads(model.widths[0]),
        **names,
    )

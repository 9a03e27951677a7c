"""Fine-tuning a language model on conversations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from trackbed import hub
from trackbed.data.chat.batches import Batch, Batches
from trackbed.data.chat.encode import load_tokenizer
from trackbed.data.chat.prepared import Prepared, open_prepared
from trackbed.data.chat.recipe import Recipe
from trackbed.data.order import Share
from trackbed.job import ChatJob, data_path
from trackbed.train import model
from trackbed.train.engine import Ranks
from trackbed.train.evaluate import Evaluator
from trackbed.train.task import Measured


class ChatTask:
    """See trackbed.train.task.Task."""

    unit = "tokens"
    right = "exact match"

    def __init__(self, job: ChatJob, ranks: Ranks) -> None:
        home = hub.resolve(job.model.name)
        self.note = hub.describe(home)
        self._tokenizer = load_tokenizer(home)
        train, heldout = (_prepared(part, home, job) for part in (job.data.train, job.data.heldout))
        share = Share(ranks.rank, ranks.world, job.train.rows_per_rank, job.train.accumulate)
        self.pipeline = Batches(train, job.data, share)
        self._evaluator = Evaluator(heldout, self._tokenizer, job, ranks)
        self.module = model.SupervisedLoss(model.load(home, job.model.precision))

    def size(self, batch: Batch) -> int:
        return batch.tokens

    def tensors(self, batch: Batch, device: torch.device) -> dict[str, torch.Tensor]:
        return model.tensors(batch, device)

    def measure(self, engine: Any) -> Measured:
        return self._evaluator.measure(engine)

    def export(self, engine: Any, folder: Path) -> None:
        """Safetensors, tokenizer and chat template."""
        engine.module.model.save_pretrained(folder)
        self._tokenizer.save_pretrained(folder)


def _prepared(part: str, home: Path, job: ChatJob) -> Prepared:
    """What `trackbed submit` has prepared before the ranks were started: they only open it."""
    return open_prepared(Recipe.of(data_path(part), home, job.data))

"""The model as the loop sees it: a batch in, the sum of the loss over its supervised tokens out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trackbed.data.chat.batches import IGNORED, Batch
from trackbed.errors import ModelError, Problem

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def load(folder: Path, precision: str) -> Any:
    """A causal language model from a Hugging Face folder, ready to be trained."""
    from transformers import AutoModelForCausalLM

    try:
        return AutoModelForCausalLM.from_pretrained(folder, dtype=DTYPES[precision], attn_implementation="sdpa")
    except (OSError, ValueError) as error:
        what = f"the model cannot be loaded: {str(error).splitlines()[0]}"
        raise ModelError(Problem(id="model.unloadable", where=str(folder), what=what)) from error


class SupervisedLoss(nn.Module):
    """Wraps a causal model so that logits are computed at supervised positions only.

    With a vocabulary of 49,152 and one supervised token in eight, that is most of the work of the last layer saved.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, labels: Tensor, positions: Tensor, segments: Tensor) -> Tensor:
        """All int64 [rows, tokens]; returns the summed cross-entropy in nats, fp32, a scalar."""
        decoder, head = self.model.get_decoder(), self.model.get_output_embeddings()
        hidden = decoder(
            input_ids=ids, position_ids=positions, attention_mask=attention_mask(segments), use_cache=False
        ).last_hidden_state
        learnt = labels != IGNORED
        logits = head(hidden[learnt]).float()
        return nn.functional.cross_entropy(logits, labels[learnt], reduction="sum")


def attention_mask(segments: Tensor) -> Tensor:
    """Causal attention inside each sample of a packed row: bool [rows, 1, tokens, tokens], True where allowed."""
    same = segments[:, :, None] == segments[:, None, :]
    tokens = segments.shape[1]
    causal = torch.ones(tokens, tokens, dtype=torch.bool, device=segments.device).tril()
    return (same & causal)[:, None]


def tensors(batch: Batch, device: torch.device) -> dict[str, Tensor]:
    """A batch as SupervisedLoss takes it."""
    arrays = {"ids": batch.ids, "labels": batch.labels, "positions": batch.positions, "segments": batch.segments}
    return {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}

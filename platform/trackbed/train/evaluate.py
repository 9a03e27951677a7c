"""Held-out loss and exact match, each rank measuring its share and all adding up the same sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from trackbed.data.chat.batches import collate, pack
from trackbed.data.chat.encode import prompt
from trackbed.data.chat.jsonl import Conversation
from trackbed.data.chat.prepared import Prepared
from trackbed.job import ChatJob
from trackbed.train.engine import Ranks
from trackbed.train.model import tensors
from trackbed.train.task import Answer, Measured

PROMPTS_AT_ONCE = 48


class Evaluator:
    """Measures the same held-out samples each time it is called."""

    def __init__(self, prepared: Prepared, tokenizer: Any, job: ChatJob, ranks: Ranks) -> None:
        chosen = spread(len(prepared), job.evaluate.samples)
        mine = chosen[ranks.rank :: ranks.world]
        self._count = len(chosen)
        self._tokenizer, self._job = tokenizer, job
        # Many tokenizers have no padding token; what stands there is not attended to.
        self._pad = next((id for id in (tokenizer.pad_token_id, tokenizer.eos_token_id) if id is not None), 0)
        self._conversations = [prepared.conversation(index) for index in mine]
        samples = [prepared[index] for index in mine]
        order = sorted(range(len(samples)), key=lambda index: -len(samples[index].ids))
        rows = pack(order, [len(sample.ids) for sample in samples], job.data.row_length)
        self._batches = [collate([[samples[index] for index in row]]) for row in rows]

    def measure(self, engine: Any) -> Measured:
        """Evaluate the engine's weights; collective, so every rank must call it."""
        engine.eval()
        with torch.no_grad():
            answers = self._answers(engine.module.model)
            loss, tokens = self._loss(engine)
        engine.train()
        right = sum(answer.given == answer.wanted for answer in answers)
        sums = torch.tensor([loss, tokens, right, len(answers)], dtype=torch.float64, device=engine.device)
        dist.all_reduce(sums)
        loss, tokens, right, count = sums.tolist()
        shown = [answers[index] for index in spread(len(answers), self._job.evaluate.answers)]
        return Measured(loss / tokens, right / count, int(count), shown)

    def _loss(self, engine: Any) -> tuple[float, int]:
        losses = [float(engine.module(**tensors(batch, engine.device))) for batch in self._batches]
        return sum(losses), sum(batch.supervised for batch in self._batches)

    def _answers(self, model: Any) -> list[Answer]:
        answers: list[Answer] = []
        for start in range(0, len(self._conversations), PROMPTS_AT_ONCE):
            answers += self._generate(model, self._conversations[start : start + PROMPTS_AT_ONCE])
        return answers

    def _generate(self, model: Any, conversations: Sequence[Conversation]) -> list[Answer]:
        pairs = [prompt(conversation, self._tokenizer) for conversation in conversations]
        prompts = self._tokenizer([text for text, _ in pairs], add_special_tokens=False)["input_ids"]
        ids, mask = padded_left(prompts, self._pad)
        output = model.generate(
            input_ids=ids.to(model.device),
            attention_mask=mask.to(model.device),
            max_new_tokens=self._job.evaluate.max_new_tokens,
            do_sample=False,
            pad_token_id=self._pad,
        )
        new = self._tokenizer.batch_decode(output[:, ids.shape[1] :], skip_special_tokens=True)
        questions = [last_question(conversation) for conversation in conversations]
        return [Answer(q, wanted, text.strip()) for q, (_, wanted), text in zip(questions, pairs, new, strict=True)]


def padded_left(prompts: Sequence[Sequence[int]], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and attention mask, int64 [prompts, longest], so that all prompts end in the last column."""
    width = max(len(ids) for ids in prompts)
    missing = [width - len(ids) for ids in prompts]
    ids = [[pad] * count + list(mine) for count, mine in zip(missing, prompts, strict=True)]
    mask = [[0] * count + [1] * (width - count) for count in missing]
    return torch.tensor(ids), torch.tensor(mask)


def last_question(conversation: Conversation) -> str:
    """What stands before the last turn that is learnt, which is the one that is asked for."""
    messages = conversation.messages
    last = max(index for index, message in enumerate(messages) if message.learnt)
    return [message.content for message in messages[:last] if message.role != "assistant"][-1]


def spread(total: int, wanted: int) -> list[int]:
    """At most `wanted` indices, evenly over the whole set, so that no part of it is left out."""
    count = min(total, wanted)
    return [index * total // count for index in range(count)]

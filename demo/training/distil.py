"""The draft models: first trained on the corpus, then distilled from the target.

Distillation minimises KL(target || draft) over the whole vocabulary at every position (Hinton et
al., arXiv:1503.02531), on corpus documents and on the target's own answers, because a draft model
predicts the target's text (Zhou et al., DistillSpec, arXiv:2310.08461). Both draft models learn
from the same forward pass of the target.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import nn
from transformers import LlamaForCausalLM

from demo.training.packing import IGNORED, Rows, Stream, Tokenized, pack
from demo.training.precision import mixed_precision
from demo.training.pretrain import ROW_TOKENS, SEED, new_model, optimizers, token_loss

DRAFTS = ("draft", "draft-small")
STEP_TOKENS = 4096
WARMUP_STEPS = 30
PLAIN_CHUNK, DISTIL_CHUNK = 30_000, 40_000
# In distillation one in SAMPLE_EVERY batches has the target's own answers.
SAMPLE_EVERY = 3


class DraftTrainer:
    """A draft model with its optimizers and learning-rate schedule."""

    def __init__(self, model: LlamaForCausalLM, steps: int, peak: float = 1.0) -> None:
        self.model, self._steps, self._peak, self._done = model.train(), steps, peak, 0
        self._optims = optimizers(model)
        self._groups = [group for optim in self._optims for group in optim.param_groups]
        self._bases = [float(group["lr"]) for group in self._groups]

    def logits(self, inputs: torch.Tensor) -> torch.Tensor:
        """Logits [rows, length, vocabulary] of int64 `inputs` [rows, length]."""
        with mixed_precision():
            return torch.as_tensor(self.model(input_ids=inputs, use_cache=False).logits)

    def step(self, loss: torch.Tensor) -> float:
        """One update; the rate warms up, then decreases linearly to zero. Returns the loss."""
        warm = min(1.0, (self._done + 1) / WARMUP_STEPS)
        factor = self._peak * min(warm, 1 - self._done / self._steps)
        for group, base in zip(self._groups, self._bases, strict=True):
            group["lr"] = base * factor
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optim in self._optims:
            optim.step()
            optim.zero_grad(set_to_none=True)
        self._done += 1
        return float(loss.detach())


def pretrain_drafts(stream: Stream, tokens: int) -> dict[str, LlamaForCausalLM]:
    """Both draft models, trained on `tokens` tokens of the corpus without the target."""
    steps = tokens // STEP_TOKENS
    trainers = {name: DraftTrainer(new_model(name), steps) for name in DRAFTS}
    batches = _corpus_batches(stream, PLAIN_CHUNK)
    began = time.monotonic()
    for step in range(1, steps + 1):
        rows = next(batches)
        inputs, labels = torch.from_numpy(rows.inputs), torch.from_numpy(rows.labels)
        losses = {
            name: trainer.step(token_loss(trainer.logits(inputs), labels))
            for name, trainer in trainers.items()
        }
        _print_step("plain", step, steps, losses, began)
    return {name: trainer.model for name, trainer in trainers.items()}


def distil_drafts(
    target: LlamaForCausalLM,
    drafts: dict[str, LlamaForCausalLM],
    stream: Stream,
    samples: Sequence[Tokenized],
    tokens: int,
) -> None:
    """Distil the target into `drafts`, which are modified in place.

    Args:
        target: the trained target.
        drafts: models by name, as `pretrain_drafts` returns them.
        stream: documents of the training split.
        samples: the target's own chats, as `demo.training.answers.sample_chats` returns them.
        tokens: total tokens, including padding.
    """
    steps = tokens // STEP_TOKENS
    trainers = {name: DraftTrainer(model, steps, 0.5) for name, model in drafts.items()}
    target.train(False)
    corpus, chats = _corpus_batches(stream, DISTIL_CHUNK), _sample_batches(samples)
    began = time.monotonic()
    for step in range(1, steps + 1):
        rows = next(chats) if step % SAMPLE_EVERY == 0 else next(corpus)
        inputs = torch.from_numpy(rows.inputs)
        is_scored = torch.from_numpy(rows.labels) != IGNORED
        with torch.no_grad(), mixed_precision():
            goal = target(input_ids=inputs, use_cache=False).logits[is_scored].float().softmax(-1)
        losses = {
            name: trainer.step(divergence(goal, trainer.logits(inputs)[is_scored]))
            for name, trainer in trainers.items()
        }
        _print_step("distil", step, steps, losses, began)


def divergence(goal: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """Mean KL(goal || softmax(logits)) in nats.

    Args:
        goal: probabilities, fp32 [positions, vocabulary].
        logits: the draft's logits, any float dtype [positions, vocabulary].
    """
    return F.kl_div(logits.float().log_softmax(-1), goal, reduction="batchmean")


def _corpus_batches(stream: Stream, chunk: int) -> Iterator[Rows]:
    for rows in stream.rows(ROW_TOKENS, chunk, focused=True):
        yield from _slices(rows)


def _sample_batches(samples: Sequence[Tokenized]) -> Iterator[Rows]:
    documents = [Tokenized(chat.ids) for chat in samples]
    rng = random.Random(f"pack-samples:{SEED}")
    while True:
        yield from _slices(pack(documents, ROW_TOKENS, rng))


def _slices(rows: Rows) -> Iterator[Rows]:
    size = STEP_TOKENS // ROW_TOKENS
    for start in range(0, len(rows.inputs) - size + 1, size):
        yield Rows(rows.inputs[start : start + size], rows.labels[start : start + size])


def _print_step(stage: str, step: int, steps: int, losses: dict[str, float], began: float) -> None:
    if step % 20 == 0 or step == steps:
        figures = " ".join(f"{name} {loss:.3f}" for name, loss in losses.items())
        print(f"{stage} {step}/{steps} {figures} s {time.monotonic() - began:.0f}", flush=True)

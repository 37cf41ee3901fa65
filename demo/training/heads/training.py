"""Training heads: all of them on the same pass of the target over its answers.

Each step of a chain is trained to reproduce the target's distribution. A later step matters only
if the earlier ones were right, so it is trained on fewer chains.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import nn
from transformers import LlamaForCausalLM

from demo.training.heads.eagle import DRAFT_VOCABULARY, Eagle, Eagle3
from demo.training.heads.medusa import Medusa
from demo.training.heads.mlp_speculator import MlpSpeculator
from demo.training.heads.teacher import TeacherBatch, teacher_batch
from demo.training.packing import Tokenized
from demo.training.precision import mixed_precision
from demo.training.pretrain import ADAM_RATE, MUON_RATE, SEED

BATCH_TOKENS = 3072
WARMUP_BATCHES = 30
CHAIN_SHARE = 0.6


class Head(Protocol):
    """A module that predicts the next `steps` tokens of each chain."""

    steps: int

    def __call__(self, batch: TeacherBatch) -> Iterator[torch.Tensor]:
        """Yields the logits [chains, tokens] of each step."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The trained parameters."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any:
        """Load trained parameters."""

    def state_dict(self) -> dict[str, Any]:
        """All parameters."""

    def config(self) -> dict[str, Any]:
        """The contents of `config.json`."""

    def checkpoint(self) -> dict[str, torch.Tensor]:
        """Tensors by their names in the published layout."""


def new_head(name: str, target: LlamaForCausalLM, chats: Sequence[Tokenized]) -> Head:
    """An untrained head, the same for the same target and chats.

    Args:
        name: one of `demo.HEADS`.
        target: its embedding initialises the head.
        chats: determine which tokens are frequent.
    """
    torch.manual_seed(SEED)
    embedding = target.model.embed_tokens.weight.detach()
    if name == "medusa":
        return Medusa(embedding)
    if name == "mlp-speculator":
        return MlpSpeculator(embedding)
    if name == "eagle":
        return Eagle(embedding)
    return Eagle3(embedding, frequent_tokens(chats, len(embedding)))


def frequent_tokens(chats: Sequence[Tokenized], vocabulary: int) -> torch.Tensor:
    """int64 [DRAFT_VOCABULARY]: ascending ids of the most frequent tokens in the answers."""
    answers = torch.tensor([token for chat in chats for token in chat.ids[chat.masked :]])
    counts = torch.bincount(answers, minlength=vocabulary)
    return counts.sort(descending=True, stable=True).indices[:DRAFT_VOCABULARY].sort().values


class HeadTrainer:
    """A head with its optimizers: Muon for the inner matrices, AdamW for the rest."""

    def __init__(self, head: Head, batches: int) -> None:
        self.head, self._batches, self._done = head, batches, 0
        named = dict(head.named_parameters())
        inner = [p for n, p in named.items() if p.ndim == 2 and not _reads_or_writes_tokens(n)]
        outer = [p for n, p in named.items() if p.ndim != 2 or _reads_or_writes_tokens(n)]
        self._parameters = inner + outer
        self._optims: list[torch.optim.Optimizer] = [
            torch.optim.Muon(inner, lr=MUON_RATE, momentum=0.95, weight_decay=0.05),
            torch.optim.AdamW(outer, lr=ADAM_RATE, betas=(0.9, 0.95), weight_decay=0.0),
        ]
        self._groups = [group for optim in self._optims for group in optim.param_groups]
        self._bases = [float(group["lr"]) for group in self._groups]

    def step(self, batch: TeacherBatch) -> float:
        """One update; the rate warms up, then decreases linearly to zero.

        Returns the loss of the first token of each chain, in nats.
        """
        factor = min((self._done + 1) / WARMUP_BATCHES, 1 - self._done / self._batches, 1.0)
        for group, base in zip(self._groups, self._bases, strict=True):
            group["lr"] = base * factor
        losses = []
        with mixed_precision():
            for step, logits in enumerate(self.head(batch)):
                losses.append(batch.loss(step, logits))
        total = sum(loss * CHAIN_SHARE**step for step, loss in enumerate(losses))
        torch.as_tensor(total).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self._parameters, 1.0)
        for optim in self._optims:
            optim.step()
            optim.zero_grad(set_to_none=True)
        self._done += 1
        return float(losses[0].detach())


def train_heads(
    target: LlamaForCausalLM, heads: dict[str, Head], chats: Sequence[Tokenized], epochs: int
) -> None:
    """Train `heads`, which are modified in place.

    Args:
        target: the trained target, fp32.
        heads: by name, as `new_head` returns them.
        chats: the target's own answers.
        epochs: how often each chat is used.
    """
    target.train(False)
    batches = chat_batches(chats, epochs)
    trainers = {name: HeadTrainer(head, len(batches)) for name, head in heads.items()}
    steps = max(head.steps for head in heads.values())
    began = time.monotonic()
    for number, of_batch in enumerate(batches, 1):
        batch = teacher_batch(target, of_batch, steps, CHAIN_SHARE)
        losses = {name: trainer.step(batch) for name, trainer in trainers.items()}
        if number % 20 == 0 or number == len(batches):
            figures = " ".join(f"{name} {loss:.3f}" for name, loss in losses.items())
            seconds = time.monotonic() - began
            print(f"heads {number}/{len(batches)} {figures} s {seconds:.0f}", flush=True)


def chat_batches(chats: Sequence[Tokenized], epochs: int) -> list[list[Tokenized]]:
    """Batches of chats of similar length, at most `BATCH_TOKENS` tokens including padding."""
    rng = random.Random(f"heads:{SEED}")
    batches: list[list[Tokenized]] = []
    for _ in range(epochs):
        epoch: list[list[Tokenized]] = [[]]
        for chat in sorted(chats, key=lambda chat: (len(chat.ids), rng.random())):
            if (len(epoch[-1]) + 1) * len(chat.ids) > BATCH_TOKENS:
                epoch.append([])
            epoch[-1].append(chat)
        rng.shuffle(epoch)
        batches += epoch
    return batches


def _reads_or_writes_tokens(parameter: str) -> bool:
    return parameter.startswith(("emb.", "head.", "lm_head"))

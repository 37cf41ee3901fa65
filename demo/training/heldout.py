"""Loss on the held-out split, separately for plain text, quoted and free answers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from demo.tokenizer import BOS, EOS, encode, render_chat
from demo.training.corpus import Piece
from demo.training.documents import Chat, can_quote, can_request, free_chat, quoting_chat
from demo.training.precision import mixed_precision

MAX_TOKENS = 512
BATCH = 16


@dataclass(frozen=True, slots=True)
class ScoredDocument:
    """Token ids of a document, and the index of the first scored one."""

    ids: list[int]
    start: int


class HeldOut:
    """Fixed held-out documents, scored in the same way in every report."""

    def __init__(
        self, pieces: Sequence[Piece], tokenizer: PreTrainedTokenizerFast, count: int = 64
    ) -> None:
        rng = random.Random("held-out")
        shuffled = list(pieces)
        rng.shuffle(shuffled)
        quotable = [piece for piece in shuffled if can_quote(piece)]
        free = [piece for piece in shuffled if can_request(piece)]
        self._tokenizer = tokenizer
        self._sets = {
            "plain": [self._plain(piece) for piece in shuffled[:count]],
            "quote": [self._chat(quoting_chat(p, quotable, rng)) for p in quotable[:count]],
            "free": [self._chat(free_chat(piece, rng)) for piece in free[:count]],
        }

    def report(self, model: LlamaForCausalLM) -> dict[str, float]:
        """Mean loss in nats per token of each set, and the top-1 accuracy on quoted tokens."""
        model.train(False)
        figures: dict[str, float] = {}
        for name, documents in self._sets.items():
            loss, hits = _score(model, [doc for doc in documents if len(doc.ids) <= MAX_TOKENS])
            figures[name] = round(loss, 4)
            if name == "quote":
                figures["quote_accuracy"] = round(hits, 4)
        return figures

    def _plain(self, piece: Piece) -> ScoredDocument:
        return ScoredDocument(encode(self._tokenizer, f"{BOS}{piece.text}{EOS}"), 1)

    def _chat(self, chat: Chat) -> ScoredDocument:
        text = render_chat(self._tokenizer, chat.messages, answer_next=False)
        prompt = render_chat(self._tokenizer, chat.prompt, answer_next=True)
        return ScoredDocument(encode(self._tokenizer, text), len(encode(self._tokenizer, prompt)))


@torch.inference_mode()
def _score(model: LlamaForCausalLM, documents: Sequence[ScoredDocument]) -> tuple[float, float]:
    """(nats per scored token, share of them that are the model's most likely token)."""
    loss = hits = count = 0.0
    ordered = sorted(documents, key=lambda doc: len(doc.ids))
    for start in range(0, len(ordered), BATCH):
        part = ordered[start : start + BATCH]
        width = max(len(doc.ids) for doc in part)
        ids = torch.zeros(len(part), width, dtype=torch.int64)
        is_scored = torch.zeros(len(part), width, dtype=torch.bool)
        for row, doc in enumerate(part):
            ids[row, : len(doc.ids)] = torch.tensor(doc.ids)
            is_scored[row, doc.start : len(doc.ids)] = True
        with mixed_precision():
            logits = model(input_ids=ids, use_cache=False).logits
        picked, gold = logits[:, :-1][is_scored[:, 1:]].float(), ids[:, 1:][is_scored[:, 1:]]
        loss += float(F.cross_entropy(picked, gold, reduction="sum"))
        hits += float((picked.argmax(-1) == gold).sum())
        count += len(gold)
    return loss / count, hits / count

"""The training stream: documents of every kind, tokenized and packed into rows without cuts.

The stream is a pure function of (pieces, tokenizer, seed, row length), so a resumed run sees the
same rows as an uninterrupted one.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerFast

from demo.tokenizer import BOS, EOS, Message, render_chat
from demo.training.corpus import Piece
from demo.training.documents import can_quote, can_request, copy_chat, free_chat, quoting_chat

IGNORED = -100
CHUNKS_PER_EPOCH = 8
# Shares of the pieces of a chunk that also appear as chats. By tokens the mixture is about 35 %
# plain, 45 % quoting and 20 % free.
QUOTE_SHARE = 0.75
FREE_SHARE = 0.75
# Added to QUOTE_SHARE in focused chunks; a sum above one is the chance of a second chat.
FOCUSED_QUOTES = 0.75
# Meaningless passages teach copying early; a few later ones keep the model copying.
COPY_CHATS_EARLY, COPY_CHATS_LATE, EARLY_CHUNKS = 600, 120, 2

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Tokenized:
    """One document: token ids, and the number of leading ones without loss."""

    ids: list[int]
    masked: int = 0


@dataclass(frozen=True, slots=True)
class Rows:
    """Packed rows: inputs and labels, both int64 [rows, length]; labels are shifted by one."""

    inputs: IntArray
    labels: IntArray


class Stream:
    """An endless stream of documents of the training split, in chunks."""

    def __init__(
        self, pieces: Sequence[Piece], tokenizer: PreTrainedTokenizerFast, seed: int
    ) -> None:
        self._pieces = list(pieces)
        self._quotable = [piece for piece in pieces if can_quote(piece)]
        self._words = sorted({p.name for p in pieces if 3 <= len(p.name) <= 12})
        self._tokenizer = tokenizer
        self._seed = seed

    def rows(self, length: int, start: int = 0, *, focused: bool = False) -> Iterator[Rows]:
        """Packed rows of one chunk after another, from chunk `start`."""
        chunk = start
        while True:
            rng = random.Random(f"pack:{self._seed}:{chunk}")
            yield pack(self.documents(chunk, focused=focused), length, rng)
            chunk += 1

    def documents(self, chunk: int, *, focused: bool = False) -> list[Tokenized]:
        """The documents of a chunk: an eighth of the pieces, as plain text and as chats.

        A focused chunk leaves out code fragments, which may end anywhere, and has more quotes.
        """
        epoch, part = divmod(chunk, CHUNKS_PER_EPOCH)
        order = list(self._pieces)
        random.Random(f"epoch:{self._seed}:{epoch}").shuffle(order)
        rng = random.Random(f"chunk:{self._seed}:{chunk}")
        texts: list[str] = []
        chats: list[str] = []
        for piece in order[part::CHUNKS_PER_EPOCH]:
            if not (focused and piece.kind == "code"):
                texts.append(f"{BOS}{piece.text}{EOS}")
            share = QUOTE_SHARE + (FOCUSED_QUOTES if focused else 0)
            while share > 0 and can_quote(piece) and rng.random() < share:
                chats.append(self._render(quoting_chat(piece, self._quotable, rng).messages))
                share -= 1
            if can_request(piece) and rng.random() < FREE_SHARE:
                chats.append(self._render(free_chat(piece, rng).messages))
        documents = [Tokenized(ids) for ids in self._encode(texts + chats)]
        count = COPY_CHATS_EARLY if chunk < EARLY_CHUNKS else COPY_CHATS_LATE
        return documents + self._copies(count, rng)

    def _copies(self, count: int, rng: random.Random) -> list[Tokenized]:
        chats = [copy_chat(self._words, rng) for _ in range(count)]
        prompts = self._encode([self._render(chat.prompt, answer_next=True) for chat in chats])
        texts = self._encode([self._render(chat.messages) for chat in chats])
        return [Tokenized(ids, len(prompt)) for ids, prompt in zip(texts, prompts, strict=True)]

    def _render(self, messages: Sequence[Message], *, answer_next: bool = False) -> str:
        return render_chat(self._tokenizer, messages, answer_next=answer_next)

    def _encode(self, texts: list[str]) -> list[list[int]]:
        if not texts:
            return []
        encoded = self._tokenizer(texts, add_special_tokens=False)["input_ids"]
        return [list(ids) for ids in encoded]


def pack(documents: Sequence[Tokenized], length: int, rng: random.Random) -> Rows:
    """Pack documents into rows of `length + 1` tokens by best fit; no document is cut.

    Longer documents are left out. Rows are shuffled with `rng`; padding has no loss. A document
    attends to those before it in its row, so that the mask is simply causal.
    """
    row_length = length + 1
    bins: list[list[Tokenized]] = []
    open_bins: dict[int, list[int]] = {}
    fitting = [item for item in documents if len(item.ids) <= row_length]
    for item in sorted(fitting, key=lambda doc: -len(doc.ids)):
        size = len(item.ids)
        space = next((gap for gap in range(size, row_length + 1) if open_bins.get(gap)), None)
        if space is None:
            bins.append([])
            index, space = len(bins) - 1, row_length
        else:
            index = open_bins[space].pop()
        bins[index].append(item)
        open_bins.setdefault(space - size, []).append(index)
    rng.shuffle(bins)
    ids = np.zeros((len(bins), row_length), dtype=np.int64)
    targets = np.full((len(bins), row_length), IGNORED, dtype=np.int64)
    for row, items in enumerate(bins):
        rng.shuffle(items)
        start = 0
        for item in items:
            end = start + len(item.ids)
            ids[row, start:end] = item.ids
            targets[row, start + max(1, item.masked) : end] = item.ids[max(1, item.masked) :]
            start = end
    return Rows(inputs=ids[:, :-1], labels=targets[:, 1:])

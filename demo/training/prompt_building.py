"""Chooses the measured prompts, and further ones, from the held-out split of the corpus.

Their files are shipped, because a different Python version has a different standard library and
would give different prompts.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from demo.prompts import Prompt, PromptKind
from demo.training.corpus import Piece
from demo.training.documents import Chat, can_quote, free_chat, quoting_chat

COUNT, MORE = 40, 160
QUOTED_CHARS = (160, 600)


def save_prompts(prompts: Sequence[Prompt], path: Path) -> None:
    """Write prompts as JSON."""
    entries = [asdict(prompt) for prompt in prompts]
    path.write_text(json.dumps(entries, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def build_prompts(held_out: Sequence[Piece], seed: int) -> list[Prompt]:
    """Choose the prompts from held-out pieces, one per group; deterministic for equal pieces."""
    rng = random.Random(f"prompts:{seed}")
    quotable = [piece for piece in held_out if can_quote(piece)]
    low, high = QUOTED_CHARS
    quoted = _one_per_group([p for p in quotable if low <= len(p.text) <= high], rng)
    functions = _one_per_group(
        [p for p in held_out if p.kind in ("function", "method") and p.summary], rng
    )
    quotes = [quoting_chat(piece, quotable, rng) for piece in quoted]
    frees = [free_chat(piece, rng) for piece in functions]
    return [*_number("quote", quotes), *_number("free", frees)]


def build_more_prompts(
    held_out: Sequence[Piece], measured: Sequence[Prompt], seed: int
) -> list[Prompt]:
    """Prompts about the held-out pieces that the measured ones do not ask for; deterministic.

    Each piece is quoted once and requested once at most, in random order, and at most `MORE` times
    in all for each kind. Other than the measured prompts they may share a group.
    """
    rng = random.Random(f"more prompts:{seed}")
    measured_text = "\n".join(prompt.reference for prompt in measured)
    fresh = [piece for piece in held_out if piece.text not in measured_text]
    quotable = [piece for piece in held_out if can_quote(piece)]
    low, high = QUOTED_CHARS
    quoted = [piece for piece in fresh if can_quote(piece) and low <= len(piece.text) <= high]
    functions = [piece for piece in fresh if piece.kind in ("function", "method") and piece.summary]
    quotes = [quoting_chat(p, quotable, rng) for p in rng.sample(quoted, min(MORE, len(quoted)))]
    frees = [free_chat(piece, rng) for piece in rng.sample(functions, min(MORE, len(functions)))]
    return [*_number("quote", quotes, COUNT), *_number("free", frees, COUNT)]


def _one_per_group(pieces: Sequence[Piece], rng: random.Random) -> list[Piece]:
    by_group: dict[str, list[Piece]] = {}
    for piece in pieces:
        by_group.setdefault(piece.group, []).append(piece)
    return [rng.choice(by_group[group]) for group in rng.sample(sorted(by_group), COUNT)]


def _number(kind: PromptKind, chats: Sequence[Chat], start: int = 0) -> list[Prompt]:
    return [
        Prompt(f"{kind}-{index:02d}", kind, chat.group, chat.prompt, chat.answer)
        for index, chat in enumerate(chats, start)
    ]

"""Training documents: chats made from pieces.

There are two kinds. In a *quoting* chat the user shows one to three passages and asks for one of
them; the assistant repeats it verbatim, so prompt lookup can draft it. In a *free* chat the user
asks for a function by name and purpose; the assistant writes it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from demo.tokenizer import Message
from demo.training.corpus import Piece

MAX_PASSAGES = 3
QUOTE_CHARS = 700
SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a coding assistant. Answer with Python.",
    "Answer from the given passages only.",
)
SYSTEM_SHARE = 0.08


@dataclass(frozen=True, slots=True)
class Chat:
    """A chat that ends with the assistant's answer; `group` is the corpus group of the answer."""

    group: str
    messages: list[Message]

    @property
    def prompt(self) -> list[Message]:
        """The messages without the final answer."""
        return self.messages[:-1]

    @property
    def answer(self) -> str:
        """The assistant's final message."""
        return self.messages[-1]["content"]


_QUOTE_CODE = (
    ("Quote the definition of `{name}`.", ""),
    ("Show me the source of `{name}`.", "Here is the source of `{name}`:\n\n"),
    ("Which passage defines `{name}`? Repeat it.", "`{name}` is defined as:\n\n"),
    ("Repeat the code of `{name}` verbatim.", ""),
    ("How is `{name}` implemented?", "`{name}` is implemented as follows:\n\n"),
)
_QUOTE_DOC = (
    ("What does the documentation of `{name}` say?", "The documentation of `{name}` says:\n\n"),
    ("Quote the documentation of `{name}`.", ""),
    ("Repeat what is written about `{name}`.", ""),
    ("What does `{name}` do?", "The documentation of `{name}` says:\n\n"),
)
_PASSAGE_HEADS = ("", "Use these passages:\n\n", "Context:\n\n", "Read the following.\n\n")
_FREE_NAMED = ("Write a {kind} `{name}`{place}.", "Implement the {kind} `{name}`{place}.")
_FREE_PURPOSE = (
    "Write a {kind} `{name}`{place}: {summary}",
    "Write a {kind} `{name}`{place} for this purpose: {summary}",
    "I need a {kind} `{name}`{place}. {summary}",
)
_FREE_DOC = (
    "Document the {kind} `{name}({signature})`.",
    "Write a docstring for `{name}({signature})`{place}.",
)


def can_quote(piece: Piece) -> bool:
    """True for named pieces that are short enough to be quoted completely, next to others."""
    return bool(piece.name) and len(piece.text) <= QUOTE_CHARS and "`" not in piece.name


def can_request(piece: Piece) -> bool:
    """True for pieces that a user can ask for by name."""
    return bool(piece.name) and not (piece.kind == "doc" and not piece.signature)


def quoting_chat(
    piece: Piece, pieces: Sequence[Piece], rng: random.Random, passages: int | None = None
) -> Chat:
    """A chat that quotes `piece`, which is shown with up to two distractors.

    Args:
        piece: the requested piece; `can_quote` must be true.
        others: the source of the distractors; pieces with the same name are skipped.
        rng: determines phrasing, order and number of passages; is advanced.
        passages: number of passages that the user shows; random from one to three if None.
    """
    count = passages or rng.choice((1, 2, 2, 3, 3))
    passage_pieces = [piece, *_distractors(piece, pieces, count - 1, rng)]
    rng.shuffle(passage_pieces)
    question, lead = rng.choice(_QUOTE_DOC if piece.kind == "doc" else _QUOTE_CODE)
    question, lead = question.format(name=piece.name), lead.format(name=piece.name)
    context = "\n\n".join(_passage(item) for item in passage_pieces)
    if rng.random() < 0.7:
        content = f"{rng.choice(_PASSAGE_HEADS)}{context}\n\n{question}"
    else:
        content = f"{question}\n\n{context}"
    return Chat(piece.group, _chat(content, lead + piece.text, rng))


def free_chat(piece: Piece, rng: random.Random) -> Chat:
    """A chat that asks for `piece` without showing it.

    `can_request` must be true of the piece; `rng` is advanced.
    """
    kind = "function" if piece.kind == "doc" else piece.kind
    place = f" of the class `{piece.owner}`" if piece.owner else ""
    if piece.kind == "doc":
        form = rng.choice(_FREE_DOC)
    elif piece.summary and rng.random() < 0.8:
        form = rng.choice(_FREE_PURPOSE)
    else:
        form = rng.choice(_FREE_NAMED)
    summary = piece.summary + "." if piece.summary else ""
    content = form.format(
        kind=kind, name=piece.name, place=place, summary=summary, signature=piece.signature
    )
    return Chat(piece.group, _chat(content, piece.text, rng))


def copy_chat(words: Sequence[str], rng: random.Random) -> Chat:
    """A chat that quotes a meaningless passage: only copying can lower its loss.

    Args:
        words: the source of the passage's words.
        rng: determines the words; is advanced.
    """

    def passage() -> Piece:
        name = "_".join(rng.sample(words, 2))
        body = " ".join(rng.choice(words) for _ in range(rng.randint(10, 40)))
        return Piece("function", "copy", name, "", "", "", f"def {name}({body})")

    return quoting_chat(passage(), [passage(), passage()], rng)


def _distractors(
    piece: Piece, pieces: Sequence[Piece], count: int, rng: random.Random
) -> list[Piece]:
    distractors: list[Piece] = []
    names = {piece.name}
    for _ in range(20 * count):
        if len(distractors) == count:
            break
        other = rng.choice(pieces)
        if other.name not in names:
            names.add(other.name)
            distractors.append(other)
    return distractors


def _passage(piece: Piece) -> str:
    if piece.kind == "doc":
        return f"`{piece.name}`:\n{piece.text}"
    return piece.text


def _chat(content: str, answer: str, rng: random.Random) -> list[Message]:
    messages: list[Message] = []
    if rng.random() < SYSTEM_SHARE:
        messages.append({"role": "system", "content": rng.choice(SYSTEM_PROMPTS)})
    messages.append({"role": "user", "content": content})
    messages.append({"role": "assistant", "content": answer})
    return messages

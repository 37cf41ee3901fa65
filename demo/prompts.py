"""The measured prompts: 40 quoting and 40 free chats from the held-out split, and further ones.

They are shipped as `demo/prompts.json` and `demo/more-prompts.json`, because a different Python
version has a different standard library and would give different prompts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from demo import prompts_path
from demo.tokenizer import Message

PromptKind = Literal["quote", "free"]
KINDS: tuple[PromptKind, ...] = ("quote", "free")


@dataclass(frozen=True, slots=True)
class Prompt:
    """One measured prompt.

    Attributes:
        id: `quote-00` and so on; those from `quote-40` and `free-40` are further prompts.
        kind: whether the answer repeats a passage of the prompt.
        group: the corpus group of the answer; `demo.training.corpus.is_held_out` is true for it.
        messages: the chat to send.
        reference: the answer in the corpus.
    """

    id: str
    kind: PromptKind
    group: str
    messages: list[Message]
    reference: str


def load_prompts(path: Path | None = None) -> list[Prompt]:
    """The shipped prompts, or those in `path`; quoting ones first."""
    entries = json.loads((path or prompts_path()).read_text(encoding="utf-8"))
    return [Prompt(**entry) for entry in entries]

"""The requests: the demo's measured chats, in bursts of concurrent requests."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from demo.prompts import PromptKind, load_prompts
from demo.tokenizer import Message

SEED = 1234

Messages = Sequence[Message]


@dataclass(frozen=True, slots=True)
class Request:
    """One chat with an answer of a fixed number of tokens; end-of-text tokens do not end it.

    Attributes:
        proposer: the proposer that drafts for it, or `none`; `None` leaves the choice to the
            server, and the body then has no field of Specgate's.
    """

    messages: Messages = field(repr=False)
    max_tokens: int
    temperature: float = 0.0
    proposer: str | None = None

    def body(self, model: str) -> dict[str, Any]:
        """The chat completion's body: streamed, with the number of tokens so far in every chunk."""
        body: dict[str, Any] = {
            "model": model,
            "messages": self.messages,
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "seed": SEED,
            "ignore_eos": True,
            # An end-of-text token then has text, and so a chunk, like any other token.
            "skip_special_tokens": False,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        if self.proposer is not None:
            body["spec_decode"] = {"proposer": self.proposer}
        return body


def chats(kind: PromptKind) -> list[Messages]:
    """The measured prompts of one kind, in the file's order."""
    return [prompt.messages for prompt in load_prompts() if prompt.kind == kind]


def bursts(prompts: Sequence[Messages], levels: Sequence[int]) -> dict[int, list[list[Messages]]]:
    """Divides prompts among levels of concurrency: level -> bursts of `level` prompts each.

    No prompt is used twice, so that a proposer that remembers answers meets new ones. Every level
    gets one burst; the prompts that remain go to the levels with the fewest prompts. Raises
    `ValueError` if there are too few prompts for one burst per level.
    """
    if sum(levels) > len(prompts):
        raise ValueError(
            f"concurrency {list(levels)} needs {sum(levels)} prompts; there are {len(prompts)}"
        )
    remaining = iter(prompts)
    shared = {level: [[next(remaining) for _ in range(level)]] for level in levels}
    spare = len(prompts) - sum(levels)
    while open_levels := [level for level in levels if level <= spare]:
        level = min(open_levels, key=lambda level: (level * len(shared[level]), -level))
        shared[level].append([next(remaining) for _ in range(level)])
        spare -= level
    return shared

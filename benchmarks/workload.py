"""What is asked of the servers: the demo's measured chats, in waves of concurrent requests."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from demo.prompts import PromptKind, load_prompts
from demo.tokenizer import Message

KINDS: tuple[PromptKind, ...] = ("quote", "free")
SEED = 1234

Messages = Sequence[Message]


@dataclass(frozen=True, slots=True)
class Request:
    """One chat of a fixed number of tokens, whatever ends the text.

    Attributes:
        proposer: who is to draft for it; `None` leaves it to the server, and is what a server
            that is not Specgate needs.
    """

    messages: Messages = field(repr=False)
    max_tokens: int
    temperature: float = 0.0
    proposer: str | None = None

    def body(self, model: str) -> dict[str, Any]:
        """The chat completion's body: streamed, with the number of tokens in every chunk."""
        body: dict[str, Any] = {
            "model": model,
            "messages": self.messages,
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "seed": SEED,
            "ignore_eos": True,
            # An end-of-text token that is shown is a chunk like any other's.
            "skip_special_tokens": False,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        if self.proposer is not None:
            body["spec_decode"] = {"proposer": self.proposer}
        return body


def chats(kind: PromptKind) -> list[Messages]:
    """The measured prompts of a kind, in their order."""
    return [prompt.messages for prompt in load_prompts() if prompt.kind == kind]


def waves(prompts: Sequence[Messages], levels: Sequence[int]) -> dict[int, list[list[Messages]]]:
    """Shares prompts out to levels of concurrency: level -> waves of as many prompts.

    No prompt is used twice, so that a proposer that remembers answers meets new ones. Every level
    gets a wave, and what is left goes where the fewest prompts are. Raises `ValueError` if the
    prompts do not suffice for one wave each.
    """
    if sum(levels) > len(prompts):
        raise ValueError(f"concurrency {list(levels)} needs {sum(levels)} prompts; {len(prompts)}")
    left = iter(prompts)
    shared = {level: [[next(left) for _ in range(level)]] for level in levels}
    spare = len(prompts) - sum(levels)
    while open_levels := [level for level in levels if level <= spare]:
        level = min(open_levels, key=lambda level: (level * len(shared[level]), -level))
        shared[level].append([next(left) for _ in range(level)])
        spare -= level
    return shared

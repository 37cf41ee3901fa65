"""Prompts with labels, and the halves on which one tunes and reports."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Split(StrEnum):
    """Which prompts of a kind are used: constants must not be tuned on those that are reported."""

    ALL = "all"
    TUNE = "tune"
    """Every second prompt, from the first."""
    REPORT = "report"
    """The others."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request's content.

    Attributes:
        id: unique in its workload.
        label: its kind; figures are given for each label.
        content: the fields of the body that hold the prompt: `messages` or `prompt`.
        max_tokens: the length limit of this answer; `None` is the run's.
    """

    id: str
    label: str
    content: Mapping[str, Any] = field(repr=False)
    max_tokens: int | None = None

    @property
    def path(self) -> str:
        """The route: chats have messages."""
        return "/v1/chat/completions" if "messages" in self.content else "/v1/completions"


def chat(prompt_id: str, label: str, messages: Sequence[Mapping[str, Any]]) -> Prompt:
    """A prompt that is a chat."""
    return Prompt(prompt_id, label, {"messages": list(messages)})


def half(prompts: Sequence[Prompt], split: Split) -> list[Prompt]:
    """The prompts of a split, separately for each label, in order.

    The halves depend only on the order, so equal files have equal halves on every machine.
    """
    if split == Split.ALL:
        return list(prompts)
    counts: dict[str, int] = {}
    chosen = []
    for prompt in prompts:
        number = counts.get(prompt.label, 0)
        counts[prompt.label] = number + 1
        if number % 2 == (split == Split.REPORT):
            chosen.append(prompt)
    return chosen

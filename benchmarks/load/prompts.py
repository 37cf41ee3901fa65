"""Prompts with labels, and the halves on which one tunes and reports."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Split(StrEnum):
    """Which prompts of a kind are used: constants must not be tuned on those that are reported."""

    ALL = "all"
    TUNE = "tune"
    REPORT = "report"


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request's content.

    Attributes:
        id: unique in its workload.
        label: its kind; figures are given for each label.
        content: the fields of the body that hold the prompt: `messages` or `prompt`.
        max_tokens: the length limit of this answer; `None` is the run's.
        half: the split that it belongs to; `None` lets its position decide.
    """

    id: str
    label: str
    content: Mapping[str, Any] = field(repr=False)
    max_tokens: int | None = None
    half: Split | None = None

    @property
    def path(self) -> str:
        """The route: chats have messages."""
        return "/v1/chat/completions" if "messages" in self.content else "/v1/completions"


def chat(
    prompt_id: str, label: str, messages: Sequence[Mapping[str, Any]], half: Split | None = None
) -> Prompt:
    """A prompt that is a chat."""
    return Prompt(prompt_id, label, {"messages": list(messages)}, half=half)


def prompts_in(split: Split, prompts: Sequence[Prompt]) -> list[Prompt]:
    """The prompts of a split, in order.

    Of the prompts with one label whose half is not fixed, every second one is in `REPORT`. The
    halves depend only on the order, so equal files have equal halves on every machine.
    """
    if split == Split.ALL:
        return list(prompts)
    counts: dict[str, int] = {}
    in_split = []
    for prompt in prompts:
        half = prompt.half
        if half is None:
            number = counts.get(prompt.label, 0)
            counts[prompt.label] = number + 1
            half = Split.REPORT if number % 2 else Split.TUNE
        if half == split:
            in_split.append(prompt)
    return in_split

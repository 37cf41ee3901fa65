"""Greedy texts, and whether a text equals one."""

from dataclasses import dataclass, replace
from typing import Any

import httpx

TIE = 1e-4
"""Greedy texts may differ only where the two best log probabilities are closer than this."""

OVERLAP = 32
"""Characters by which a differing token can begin before the first differing character."""


@dataclass(frozen=True)
class Plain:
    """A greedy text without switches, and the gap of each token to the second best."""

    text: str
    gaps: tuple[tuple[int, float], ...]

    def allows(self, other: str) -> bool:
        """Whether `other` equals this text up to a tie."""
        if other == self.text:
            return True
        pairs = enumerate(zip(self.text, other, strict=False))
        at = next((i for i, (a, b) in pairs if a != b), min(len(self.text), len(other)))
        return any(gap < TIE for offset, gap in self.gaps if at - OVERLAP < offset <= at)

    def begins(self, other: str) -> bool:
        """Whether this text begins with `other`, up to a tie."""
        return replace(self, text=self.text[: len(other)]).allows(other)


async def plain(client: httpx.AsyncClient, body: dict[str, Any]) -> Plain:
    """The greedy answer to a chat without speculation, whole even if the chat is streamed."""
    whole = {"stream": False, "stream_options": None, "logprobs": True, "top_logprobs": 2}
    asked = {**body, **whole, "spec_decode": {"proposer": "none"}}
    response = await client.post("/v1/chat/completions", json=asked)
    assert response.status_code == 200, response.text
    choice = response.json()["choices"][0]
    gaps, offset = [], 0
    for token in choice["logprobs"]["content"]:
        first, second = (top["logprob"] for top in token["top_logprobs"])
        gaps.append((offset, first - second))
        offset += len(token["token"])
    return Plain(choice["message"]["content"], tuple(gaps))

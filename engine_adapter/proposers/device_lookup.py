"""Prompt lookup on a device, where a row's newest tokens are before the CPU has them.

The rule is that of `ngram_search`. All rows are searched at once, with a few operations on tensors,
and nothing waits for the device.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

_PART = 1 << 21
"""Tokens that are searched at once, each with about 20 bytes of the device's memory."""


@dataclass(frozen=True, slots=True)
class DeviceTokens:
    """The tokens of R rows on the device.

    Attributes:
        token_ids: int32 [B, T].
        rows: int [R], their indices there.
        lengths: int32 [R], how many of a row's T places have tokens; at least 1.
        longest: none of `lengths` is greater.
    """

    token_ids: torch.Tensor
    rows: torch.Tensor
    lengths: torch.Tensor
    longest: int


@runtime_checkable
class DeviceLookup(Protocol):
    """A proposer that needs nothing but the text of a row, and finds its drafts on a device."""

    def look_up(self, tokens: DeviceTokens, k: int) -> tuple[torch.Tensor, torch.Tensor] | None:
        """k drafts for each of R rows, which depend only on that row.

        Returns:
            int64 [R, k], with any token of the row where it has no draft; and bool [R], whether it
            has one. `None` if the proposer drafts with `propose` alone.
        """
        ...


def find_continuations(
    tokens: DeviceTokens, k: int, min_n: int, max_n: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The k tokens after the longest n-gram that each row ends with, where it came first.

    Args:
        tokens: of the rows.
        k: how many.
        min_n, max_n: the n-gram has min_n to max_n tokens.

    Returns:
        int64 [R, k], with the row's last token in the places after its end, and in all of them
        without a match; and bool [R], whether there is a match.
    """
    size = max(1, _PART // tokens.longest)
    results = []
    for start in range(0, len(tokens.rows), size):
        part = slice(start, start + size)
        token_ids = tokens.token_ids[tokens.rows[part], : tokens.longest]
        results.append(_continuations(token_ids, tokens.lengths[part].long(), k, min_n, max_n))
    drafts, has_match = zip(*results, strict=True)
    return torch.cat(drafts), torch.cat(has_match)


def _continuations(
    token_ids: torch.Tensor, lengths: torch.Tensor, k: int, min_n: int, max_n: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `find_continuations`; the rows have a copy of their own: int32 [R, T], int64 [R]."""
    width = token_ids.shape[1]
    last_place = lengths[:, None] - 1
    place = torch.arange(width, dtype=torch.int32, device=token_ids.device)
    # For each place, how many tokens up to it are the row's last ones.
    agrees = place < last_place
    agreeing = torch.zeros_like(token_ids)
    for n in range(min(max_n, width)):
        token = token_ids.gather(1, (last_place - n).clamp(min=0))
        agrees[:, :n] = False
        agrees[:, n:] &= token_ids[:, : width - n] == token
        agreeing += agrees
    # The longest n-gram wins, then the earliest.
    score, end = (agreeing * width - place).max(1, keepdim=True)
    has_match = score > (min_n - 1) * width
    positions = end + 1 + torch.arange(k, device=token_ids.device)
    positions = torch.where(has_match & (positions <= last_place), positions, last_place)
    return token_ids.gather(1, positions).long(), has_match[:, 0]

"""The blocks of the paged world: free blocks, shared blocks, and the prefix cache."""

from collections.abc import Sequence
from itertools import chain
from math import lcm

import numpy as np


class BlockPool:
    """Reference-counted KV blocks, and the prefix cache over them.

    A full block without references stays in the cache until it is allocated again. Block 0 is
    never allocated, as in vLLM. All KV cache groups take their blocks from it.

    Args:
        block_sizes: for each group, the tokens per block.
    """

    def __init__(self, num_blocks: int, block_sizes: Sequence[int]) -> None:
        self.block_sizes = block_sizes
        self.free = list(range(1, num_blocks))
        self._ref_counts = np.zeros(num_blocks, int)
        self._cached: dict[tuple[int, tuple[int, ...]], int] = {}
        self._key_of: dict[int, tuple[int, tuple[int, ...]]] = {}

    def allocate(self, count: int) -> list[int] | None:
        """Allocates `count` blocks, which leave the cache; `None` if too few are free."""
        if count > len(self.free):
            return None
        fresh = [self.free.pop(0) for _ in range(count)]
        for block in fresh:
            self._ref_counts[block] += 1
            if key := self._key_of.pop(block, None):
                del self._cached[key]
        return fresh

    def release(self, blocks: Sequence[int]) -> None:
        """Removes one reference to each block."""
        for block in reversed(blocks):
            self._ref_counts[block] -= 1
            if not self._ref_counts[block]:
                self.free.append(block)

    def reference_prefix(self, tokens: Sequence[int]) -> tuple[list[list[int]], int]:
        """References the cached blocks of a prefix of `tokens`, which never has the last token.

        Returns:
            The blocks of each group, and the tokens of the prefix.
        """
        unit = lcm(*self.block_sizes)
        hit = 0
        while hit + unit < len(tokens) and self._has_prefix(tokens, hit + unit):
            hit += unit
        blocks = [
            [self._cached[gid, tuple(tokens[:stop])] for stop in range(size, hit + 1, size)]
            for gid, size in enumerate(self.block_sizes)
        ]
        for block in chain.from_iterable(blocks):
            if not self._ref_counts[block]:
                self.free.remove(block)
            self._ref_counts[block] += 1
        return blocks, hit

    def _has_prefix(self, tokens: Sequence[int], length: int) -> bool:
        return all(
            (gid, tuple(tokens[:stop])) in self._cached
            for gid, size in enumerate(self.block_sizes)
            for stop in range(size, length + 1, size)
        )

    def cache(self, tokens: Sequence[int], blocks: Sequence[Sequence[int]]) -> None:
        """Adds the blocks of each group that `tokens` fill to the prefix cache."""
        for gid, size in enumerate(self.block_sizes):
            for i in range(len(tokens) // size):
                key, block = (gid, tuple(tokens[: (i + 1) * size])), blocks[gid][i]
                if key not in self._cached and block not in self._key_of:
                    self._cached[key], self._key_of[block] = block, key

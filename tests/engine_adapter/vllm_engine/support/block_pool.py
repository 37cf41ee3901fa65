"""The blocks of the paged world: free blocks, shared blocks, and the prefix cache."""

from collections.abc import Sequence

import numpy as np


class BlockPool:
    """Reference-counted KV blocks, and the prefix cache over them.

    A full block without references stays in the cache until it is allocated again. Block 0 is
    never allocated, as in vLLM.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.free = list(range(1, num_blocks))
        self._ref_counts = np.zeros(num_blocks, int)
        self._cached: dict[tuple[int, ...], int] = {}
        self._key_of: dict[int, tuple[int, ...]] = {}

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

    def reference_prefix(self, tokens: Sequence[int]) -> list[int]:
        """References the cached blocks of a prefix of `tokens`, which never has the last token."""
        blocks: list[int] = []
        while (stop := (len(blocks) + 1) * self.block_size) < len(tokens):
            block = self._cached.get(tuple(tokens[:stop]))
            if block is None:
                break
            if not self._ref_counts[block]:
                self.free.remove(block)
            self._ref_counts[block] += 1
            blocks.append(block)
        return blocks

    def cache(self, tokens: Sequence[int], blocks: Sequence[int]) -> None:
        """Adds the blocks that `tokens` fill to the prefix cache."""
        for i in range(len(tokens) // self.block_size):
            key, block = tuple(tokens[: (i + 1) * self.block_size]), blocks[i]
            if key not in self._cached and block not in self._key_of:
                self._cached[key], self._key_of[block] = block, key

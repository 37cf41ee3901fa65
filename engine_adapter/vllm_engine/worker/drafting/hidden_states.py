"""The target's hidden states of every KV slot, so that a head can catch up from them.

vLLM drops a step's hidden states when the step ends. Here they are stored in a layer of the KV
cache that has no attention: vLLM's memory budget counts it, a copy of a block copies its states,
and a block of the prefix cache brings them to another request.
"""

from typing import Any

import torch

from engine_adapter.vllm_engine import compat


class HiddenStateCache(compat.AttentionLayerBase):
    """One state per KV slot, of a fixed width.

    A slot is written in every step that reads its position. The state of a rejected draft is
    overwritten when its position is read again, before the head drafts from it.

    Args:
        name: of the layer, among the engine's layers; contains one number, as vLLM requires.
        width: elements per slot.
        vllm_config: the engine's configuration, in which the layer is registered.
    """

    def __init__(self, name: str, width: int, vllm_config: Any) -> None:
        self.name = name
        self._width = width
        self._dtype: torch.dtype = vllm_config.model_config.dtype
        self.kv_cache = torch.empty(0)
        vllm_config.compilation_config.static_forward_context[name] = self

    def get_attn_backend(self) -> Any:
        """A backend without attention; a step builds no metadata for it."""
        return compat.CacheOnlyAttentionBackend

    def get_kv_cache_spec(self, vllm_config: Any) -> Any:
        """A spec that keeps every position.

        Where layers of the engine keep different tokens, vLLM gives this layer a group of its own,
        whose blocks have fewer tokens if a state is larger than a token's KV. Otherwise it shares
        the block table of all layers.
        """
        return compat.HiddenStateCacheSpec(
            block_size=vllm_config.cache_config.block_size,
            num_kv_heads=1,
            head_size=self._width,
            dtype=self._dtype,
        )

    @property
    def num_bytes(self) -> int:
        """Bytes of all blocks' states."""
        return self.kv_cache.numel() * self.kv_cache.element_size()

    def write(self, slots: torch.Tensor, states: torch.Tensor) -> None:
        """Stores `states` [T, W] in `slots`, int64 [T]."""
        self.kv_cache[*self._index(slots)] = states.to(self._dtype)

    def read(self, slots: torch.Tensor) -> torch.Tensor:
        """The states [T, W] of `slots`, int64 [T]."""
        return self.kv_cache[*self._index(slots)]

    def _index(self, slots: torch.Tensor) -> tuple[torch.Tensor, int, torch.Tensor]:
        """Where each slot is in the cache, [blocks, 1, block size, W].

        vLLM may pad its blocks, so that it cannot be viewed as [slots, W].
        """
        size = self.kv_cache.shape[2]
        return slots // size, 0, slots % size

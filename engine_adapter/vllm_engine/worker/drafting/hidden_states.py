"""The target's hidden states of every KV slot, so that a head that was away can read them.

vLLM drops a step's hidden states when the step ends. Here they are kept in a layer of the KV cache
that has no attention: vLLM's memory budget counts it, a block that is copied takes its states
along, and what the prefix cache hands to another request still has them.
"""

from typing import Any

import torch

from engine_adapter.vllm_engine import compat


class HiddenStateCache(compat.AttentionLayerBase):
    """One state per KV slot, of a fixed width.

    A slot is written in every step that reads its position; drafts that were rejected leave a
    state that is overwritten when the position is read again, before anything is drafted from it.

    Args:
        name: of the layer, among the engine's layers; holds one number, as vLLM wants it.
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
        """One that never attends; nothing is built with it in a step."""
        return compat.CacheOnlyAttentionBackend

    def get_kv_cache_spec(self, vllm_config: Any) -> Any:
        """Of the type that the target's layers have, so that all share one block table."""
        return compat.FullAttentionSpec(
            block_size=vllm_config.cache_config.block_size,
            num_kv_heads=1,
            head_size=self._width,
            head_size_v=0,
            dtype=self._dtype,
        )

    @property
    def num_bytes(self) -> int:
        """What it takes of all blocks."""
        return self.kv_cache.numel() * self.kv_cache.element_size()

    def write(self, slots: torch.Tensor, states: torch.Tensor) -> None:
        """Keeps `states` [T, W] for `slots`, int64 [T]."""
        self._by_slot().index_copy_(0, slots, states.to(self._dtype))

    def read(self, slots: torch.Tensor) -> torch.Tensor:
        """The states [T, W] of `slots`, int64 [T]."""
        return self._by_slot().index_select(0, slots)

    def _by_slot(self) -> torch.Tensor:
        """The cache, which is [blocks, 1, block size, W], as [slots, W]."""
        return self.kv_cache.view(-1, self._width)

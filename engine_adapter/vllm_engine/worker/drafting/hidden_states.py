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
        """A spec of the type of the target's layers, so that all share one block table."""
        return compat.FullAttentionSpec(
            block_size=vllm_config.cache_config.block_size,
            num_kv_heads=1,
            head_size=self._width,
            head_size_v=0,
            dtype=self._dtype,
        )

    @property
    def num_bytes(self) -> int:
        """Bytes of all blocks' states."""
        return self.kv_cache.numel() * self.kv_cache.element_size()

    def write(self, slots: torch.Tensor, states: torch.Tensor) -> None:
        """Stores `states` [T, W] in `slots`, int64 [T]."""
        self._by_slot().index_copy_(0, slots, states.to(self._dtype))

    def read(self, slots: torch.Tensor) -> torch.Tensor:
        """The states [T, W] of `slots`, int64 [T]."""
        return self._by_slot().index_select(0, slots)

    def _by_slot(self) -> torch.Tensor:
        """The cache, which is [blocks, 1, block size, W], as [slots, W]."""
        return self.kv_cache.view(-1, self._width)

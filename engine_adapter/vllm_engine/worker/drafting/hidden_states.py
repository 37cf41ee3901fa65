"""The target's hidden states, as heads read them.

vLLM drops a step's hidden states when the step ends. A head that was idle needs older ones to catch
up. `HiddenStateCache` keeps them in a layer of the KV cache that has no attention: vLLM's memory
budget counts it, a copy of a block copies its states, and a block of the prefix cache brings them
to another request. `StepStates` keeps none: it finds those of the newest step.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from engine_adapter.vllm_engine import compat


class StepStates:
    """The states of the newest step, by KV slot. Nothing is computed until a head reads them.

    Args:
        layer: a layer of the head, by whose slots it reads.
        num_slots: slots of that layer.
        device: of the states.
    """

    def __init__(self, layer: str, num_slots: int, device: torch.device) -> None:
        self._layer = layer
        # Slot -> which token of the step; means something where the step wrote the slot.
        self._token = torch.zeros(num_slots, dtype=torch.int32, device=device)
        self._slots: torch.Tensor | None = None
        self._states: Sequence[torch.Tensor] = ()

    def hold(self, slots: Mapping[str, torch.Tensor], states: Sequence[torch.Tensor]) -> None:
        """Takes the states of a step.

        Args:
            slots: layer of the KV cache -> int64 [T or more], the slots of the step's tokens.
            states: one or more, each [T, H].
        """
        self._slots, self._states = slots[self._layer][: len(states[0])], states

    def drop(self) -> None:
        """Frees them. The target's next forward pass needs the memory."""
        self._slots, self._states = None, ()

    def read(self, slots: torch.Tensor) -> list[torch.Tensor]:
        """The states in `slots`, int64 [T], all of which the step wrote: each [T, H]."""
        if self._slots is not None:
            count = len(self._slots)
            self._token[self._slots] = torch.arange(
                count, dtype=torch.int32, device=self._token.device
            )
            self._slots = None
        index = self._token[slots]
        return [states[index] for states in self._states]


class _StatesBackend(compat.CacheOnlyAttentionBackend):
    """vLLM's, but it allows every graph and batch invariance: no step of the target runs it."""

    @classmethod
    def supports_batch_invariance(cls) -> bool:
        """Whether it is allowed with `VLLM_BATCH_INVARIANT=1`: nothing is added up here."""
        return True

    @staticmethod
    def get_builder_cls() -> Any:
        """A subclass of vLLM's."""
        return type(
            "StatesMetadataBuilder",
            (compat.CacheOnlyAttentionBackend.get_builder_cls(),),
            {"_cudagraph_support": compat.AttentionCGSupport.ALWAYS},
        )


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

    @property
    def kv_cache(self) -> torch.Tensor:
        """The states of every block, [blocks, 1, block size, W]; vLLM sets it."""
        return self._cache

    @kv_cache.setter
    def kv_cache(self, cache: torch.Tensor) -> None:
        """Takes the memory. Where vLLM pads its blocks, it has no view as [slots, W]."""
        self._cache = cache
        is_dense = cache.numel() > 0 and cache.is_contiguous()
        self._by_slot = cache.view(-1, self._width) if is_dense else None

    def get_attn_backend(self) -> Any:
        """A backend without attention; a step builds no metadata for it."""
        return _StatesBackend

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
        return self._cache.numel() * self._cache.element_size()

    def write(self, slots: torch.Tensor, states: torch.Tensor) -> None:
        """Stores `states` [T, W] in `slots`, int64 [T]."""
        states = states.to(self._dtype)
        if self._by_slot is not None:
            self._by_slot.index_copy_(0, slots, states)
        else:
            self._cache[*self._index(slots)] = states

    def read(self, slots: torch.Tensor) -> torch.Tensor:
        """The states [T, W] of `slots`, int64 [T]."""
        if self._by_slot is not None:
            return self._by_slot.index_select(0, slots)
        return self._cache[*self._index(slots)]

    def _index(self, slots: torch.Tensor) -> tuple[torch.Tensor, int, torch.Tensor]:
        """Where each slot is among the blocks."""
        size = self._cache.shape[2]
        return slots // size, 0, slots % size

"""Targets whose layers keep a state instead of the KV of each position.

vLLM keeps the state after each token of a step that reads drafts, in a block of its own, and
begins the next step at the one after the last accepted token. A target has states of every row in
every step, so switches, idle proposers and preemption change nothing. What is left to do is here:
to refuse loaded layers whose state does not follow rejected drafts, and one mistake of vLLM's.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.state_layers import fault_of
from engine_adapter.vllm_engine.worker.refusal import refuse


class StateLayerHooks:
    """Mixed into a runner of either kind, before its other hooks."""

    def get_kv_cache_spec(self) -> dict[str, Any]:
        """See `RunnerHooks.get_kv_cache_spec`. Ends the start if a layer cannot work.

        The gateway does not know the layers of a model whose class wraps another one by name.
        """
        specs: dict[str, Any] = super().get_kv_cache_spec()
        layers = self.compilation_config.static_forward_context
        kept = [name for name, spec in specs.items() if isinstance(spec, compat.MambaSpec)]
        if fault := fault_of(type(layers[name]) for name in kept):
            refuse("model", fault, self.drafter.host.progress)
        return specs


class RecurrentStateHooks(StateLayerHooks):
    """Mixed into a V1 runner, before `RunnerHooks`."""

    _recomputed: Sequence[str] = ()

    def _may_reorder_batch(self, scheduler_output: Any) -> None:
        self._recomputed = ()
        if self.model_config.is_hybrid:
            verified = scheduler_output.scheduled_spec_decode_tokens
            self._recomputed = [
                request_id
                for request_id, count in scheduler_output.num_scheduled_tokens.items()
                if count > 1 and request_id not in verified
            ]
        with self._recomputed_as_prompt():
            super()._may_reorder_batch(scheduler_output)

    def _build_attention_metadata(self, *args: Any, **kwargs: Any) -> Any:
        with self._recomputed_as_prompt():
            return super()._build_attention_metadata(*args, **kwargs)

    @contextmanager
    def _recomputed_as_prompt(self) -> Iterator[None]:
        """Within it, the tokens that a resumed request computes again are its prompt.

        vLLM takes a row that is behind its prompt and reads a few tokens for one with drafts. It
        leaves the states after each, and the next step begins at the one after the first.
        """
        batch = self.input_batch
        lengths = {}
        for request_id in self._recomputed:
            if (row := batch.req_id_to_index.get(request_id)) is None:
                continue
            lengths[request_id] = int(batch.num_prompt_tokens[row])
            batch.num_prompt_tokens[row] = batch.num_tokens_no_spec[row]
        try:
            yield
        finally:
            for request_id, length in lengths.items():  # the rows may have been reordered
                batch.num_prompt_tokens[batch.req_id_to_index[request_id]] = length

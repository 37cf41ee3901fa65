"""Targets whose layers keep a state instead of the KV of each position.

vLLM keeps the state after each token of a step that reads drafts, in a block of its own, and
begins the next step at the one after the last accepted token. A target has states of every row in
every step, so switches, idle proposers and preemption change nothing. What is left to do is here:
to refuse layers whose state does not follow rejected drafts, and one mistake of vLLM's.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.worker.refusal import refuse

FOLLOWING = "MAMBA2"
"""vLLM's name of the kind of layers whose state follows rejected drafts."""


def fault_of(specs: Iterable[Any]) -> str | None:
    """Why a target with these layers is refused.

    Args:
        specs: vLLM's specs of what they keep.
    """
    kinds = {spec.mamba_type.name for spec in specs if isinstance(spec, compat.MambaSpec)}
    if others := sorted(kinds - {FOLLOWING}):
        return (
            f"its layers of the kind {', '.join(others)} keep a state that is not proven to follow "
            "rejected drafts: choose another model"
        )
    return None


class RecurrentStateHooks:
    """Mixed into a V1 runner, before `RunnerHooks`."""

    _recomputed: Sequence[str] = ()

    def get_kv_cache_spec(self) -> dict[str, Any]:
        """See `RunnerHooks.get_kv_cache_spec`. Ends the start if a layer cannot work."""
        specs: dict[str, Any] = super().get_kv_cache_spec()
        if fault := fault_of(specs.values()):
            refuse("model", fault, self.drafter.host.progress)
        return specs

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

"""Targets whose layers keep a state instead of the KV of each position.

vLLM keeps the state after each token of a step that reads drafts, in a block of its own, and
begins the next step at the one after the last accepted token. A target has states of every row in
every step, so switches, idle proposers and preemption change nothing. What is left to do is to
refuse loaded layers whose state does not follow rejected drafts.
"""

from typing import Any

from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.state_layers import fault_of
from engine_adapter.vllm_engine.worker.start_failure import fail_start


class StateLayerHooks:
    """Mixed into a runner, before its other hooks."""

    def get_kv_cache_spec(self) -> dict[str, Any]:
        """See `RunnerHooks.get_kv_cache_spec`. Ends the start if a layer cannot work.

        The gateway does not know the layers of a model whose class wraps another one by name.
        """
        specs: dict[str, Any] = super().get_kv_cache_spec()
        layers = self.compilation_config.static_forward_context
        state_layers = [name for name, spec in specs.items() if isinstance(spec, compat.MambaSpec)]
        if fault := fault_of(type(layers[name]) for name in state_layers):
            fail_start("model", fault, self.drafter.host.progress)
        return specs

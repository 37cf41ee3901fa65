"""Which layers with a state vLLM's models are made of, and which of them are refused."""

import sys
from importlib import import_module
from types import ModuleType

import pytest

from engine_adapter.vllm_engine.state_layers import FOLLOWING, GATED_DELTA, fault_of, layers_of

pytestmark = pytest.mark.needs_vllm

MODELS = [
    ("falcon_h1", "FalconH1ForCausalLM", {"MambaMixer2"}),
    ("granitemoehybrid", "GraniteMoeHybridForCausalLM", {"MambaMixer2"}),
    ("nemotron_h", "NemotronHForCausalLM", {"MambaMixer2"}),
    ("zamba2", "Zamba2ForCausalLM", {"MambaMixer2"}),
    ("lfm2", "Lfm2ForCausalLM", {"ShortConv"}),
    ("lfm2_moe", "Lfm2MoeForCausalLM", {"ShortConv"}),
    ("qwen3_next", "Qwen3NextForCausalLM", {GATED_DELTA}),
    ("jamba", "JambaForCausalLM", {"MambaMixer"}),
    ("olmo_hybrid", "OlmoHybridForCausalLM", {"OlmoHybridGatedDeltaNetAttention"}),
    ("bailing_moe_linear", "BailingMoeV25ForCausalLM", {"BailingMoELinearAttention"}),
    ("llama", "LlamaForCausalLM", set()),
]


@pytest.mark.parametrize(("module", "name", "layers"), MODELS, ids=[name for _, name, _ in MODELS])
def test_the_layers_are_those_of_the_class(module: str, name: str, layers: set[str]) -> None:
    model = getattr(import_module(f"vllm.model_executor.models.{module}"), name)
    found = layers_of(model)
    assert {layer.__name__ for layer in found} == layers
    fault = fault_of(found)
    assert (fault is None) == (layers <= FOLLOWING)
    for layer in layers - FOLLOWING:
        assert fault is not None
        assert f"{layer}: it " in fault


def test_a_wrapper_has_the_layers_of_the_model_that_it_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inner = import_module("vllm.model_executor.models.jamba").JambaForCausalLM
    module = ModuleType("wrapping")
    wrapper = type("Wrapper", (), {"__module__": module.__name__})
    vars(module).update(Wrapper=wrapper, JambaForCausalLM=inner, number=1)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert {layer.__name__ for layer in layers_of(wrapper)} == {"MambaMixer"}

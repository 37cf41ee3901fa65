"""Models with layers whose cache cannot follow drafts are refused before anything is loaded."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine_adapter.vllm_engine import compat, state_layers
from engine_adapter.vllm_engine.gateway import arguments, preflight
from tests.engine_adapter.vllm_engine.gateway.model_folders import (
    LLAMA,
    MakeModel,
    config,
    draft,
    refusal,
)

GRANITE = {
    "model_type": "granitemoehybrid",
    "layer_types": ["mamba", "attention"],
    "mamba_n_heads": 2,
    "mamba_d_head": 16,
}


RECURRENT: list[tuple[dict[str, Any], str]] = [
    ({"model_type": "mamba"}, "linear_attention"),
    ({"model_type": "jamba"}, "linear_attention"),
    ({"model_type": "falcon_h1"}, "hybrid"),
    ({"model_type": "qwen3_next"}, "linear_attention"),
    ({"model_type": "lfm2", "layer_types": ["conv", "full_attention"]}, "conv"),
]
recurrent = pytest.mark.parametrize(
    ("fields", "kind"), RECURRENT, ids=[fields["model_type"] for fields, _ in RECURRENT]
)


@recurrent
def test_a_target_with_recurrent_layers_passes_until_vllm_knows_their_kind(
    make_model: MakeModel, fields: dict[str, Any], kind: str
) -> None:
    preflight.check_models(config(make_model("target", LLAMA | fields)))


@recurrent
def test_a_draft_model_with_recurrent_layers_is_refused(
    make_model: MakeModel, fields: dict[str, Any], kind: str
) -> None:
    drafts = [draft(make_model("draft", LLAMA | fields))]
    error = refusal(preflight.check_models, config(make_model("target"), drafts))
    assert error.setting == "proposer"
    assert "small" in str(error)
    assert f"{fields['model_type']} ({kind}) has layers whose cache is not proven" in str(error)


def test_a_target_with_layers_that_were_never_run_is_refused(make_model: MakeModel) -> None:
    fields = {"model_type": "qwen3", "layer_types": ["full_attention", "indexed_attention"]}
    error = refusal(preflight.check_models, config(make_model("target", LLAMA | fields)))
    assert error.setting == "model"
    assert "qwen3 (indexed_attention) has layers whose cache" in str(error)


class Target:
    """What vLLM knows of a target whose class has the given layers with a state."""

    def __init__(
        self, *layers: str, attention: bool = True, state: bool = True, dtype: str = "float32"
    ) -> None:
        self.is_hybrid = attention and state
        self.is_attention_free = not attention
        self.use_mla = False
        self.hf_text_config = SimpleNamespace(model_type="plamo2")
        self.architectures = ["Plamo2ForCausalLM"]
        self.dtype = getattr(torch, dtype)
        self._layers = layers
        self.registry = self

    def resolve_model_cls(self, architectures: list[str], model_config: Any) -> Any:
        assert (architectures, model_config) == (self.architectures, self)
        return self._layers, "Plamo2ForCausalLM"

    def check(self, monkeypatch: pytest.MonkeyPatch, *, on_cpu: bool = True) -> None:
        """Whether it can be served; raises what `check_state` raises."""
        platform = SimpleNamespace(is_cpu=lambda: on_cpu)
        monkeypatch.setitem(vars(compat), "current_platform", platform)
        monkeypatch.setattr(
            state_layers, "layers_of", lambda layers: [type(name, (), {}) for name in layers]
        )
        preflight.check_state(SimpleNamespace(model_config=self))


@pytest.mark.parametrize("role", ["model", "proposer"])
def test_a_model_whose_attention_is_not_causal_is_refused(make_model: MakeModel, role: str) -> None:
    fields = LLAMA | {"model_type": "hrm_text"}
    target = make_model("target", fields if role == "model" else LLAMA)
    drafts = [draft(make_model("draft", fields))] if role == "proposer" else []
    error = refusal(preflight.check_models, config(target, drafts))
    assert error.setting == role
    assert "hrm_text has attention that is not causal" in str(error)


@pytest.mark.parametrize(
    ("target", "on_cpu"),
    [
        (Target(), True),
        (Target("MambaMixer2", "ShortConv"), True),
        (Target(state_layers.GATED_DELTA, dtype="bfloat16"), True),
        # Granite 4 without Mamba
        (Target("MambaMixer2", state=False), True),
        (Target("MambaMixer2", state=False), False),
    ],
)
def test_a_target_whose_states_follow_drafts_is_accepted(
    monkeypatch: pytest.MonkeyPatch, target: Target, on_cpu: bool
) -> None:
    target.check(monkeypatch, on_cpu=on_cpu)


@pytest.mark.parametrize(
    ("target", "on_cpu", "setting", "reason"),
    [
        (Target(attention=False), True, "model", "plamo2 has no attention beside recurrent layers"),
        (Target("MambaMixer"), True, "model", "(MambaMixer: it never reads how many drafts were"),
        (Target("NewLayer", "ShortConv"), True, "model", "(NewLayer: it is not proven)"),
        (Target(state_layers.GATED_DELTA), True, "dtype", "must be bfloat16 for plamo2 on a CPU"),
    ],
)
def test_a_target_whose_states_cannot_follow_drafts_is_refused_before_it_is_loaded(
    monkeypatch: pytest.MonkeyPatch, target: Target, on_cpu: bool, setting: str, reason: str
) -> None:
    """Its configuration need not name the kinds of its layers."""
    error = refusal(lambda: target.check(monkeypatch, on_cpu=on_cpu))
    assert error.setting == setting
    assert reason in str(error)


def test_recurrent_layers_are_as_good_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    Target("MambaMixer2").check(monkeypatch, on_cpu=False)
    Target(state_layers.GATED_DELTA, dtype="float16").check(monkeypatch, on_cpu=False)
    error = refusal(lambda: Target("MambaMixer").check(monkeypatch, on_cpu=False))
    assert "MambaMixer: it never reads" in str(error)


@pytest.mark.parametrize(
    ("chunk", "kinds", "fits"),
    [
        (8192, ["chunked_attention", "full_attention"], True),
        (96, ["chunked_attention", "full_attention"], False),
        (96, ["full_attention"], True),
        (96, None, True),
    ],
)
def test_chunks_of_attention_must_consist_of_blocks(
    chunk: int, kinds: list[str] | None, fits: bool
) -> None:
    text = SimpleNamespace(attention_chunk_size=chunk, layer_types=kinds)
    vllm_config = SimpleNamespace(
        model_config=SimpleNamespace(hf_text_config=text),
        cache_config=SimpleNamespace(block_size=64),
    )
    if fits:
        preflight.check_chunks(vllm_config)
        return
    error = refusal(preflight.check_chunks, vllm_config)
    assert error.setting == "block_size"
    assert "64 must divide 96" in str(error)


@pytest.mark.parametrize(
    ("target", "fits"),
    [
        ({}, False),
        ({"model_type": "llama4_text", "attention_chunk_size": 4096}, False),
        ({"model_type": "llama4_text", "attention_chunk_size": 96}, True),
    ],
    ids=["no chunks", "other chunks", "the same chunks"],
)
def test_a_draft_model_has_chunks_of_attention_only_if_its_target_has_them(
    make_model: MakeModel, target: dict[str, Any], fits: bool
) -> None:
    """So `check_chunks` of the target is a check of the draft model too."""
    chunks = {"model_type": "llama4_text", "attention_chunk_size": 96}
    small = make_model("draft", LLAMA | chunks)
    given = config(make_model("target", LLAMA | target), [draft(small)])
    if fits:
        preflight.check_models(given)
        return
    error = refusal(preflight.check_models, given)
    assert error.setting == "proposer"
    assert "small: " in str(error)
    assert "llama4_text has attention over chunks of 96 tokens" in str(error)


@pytest.mark.needs_vllm
@pytest.mark.parametrize(
    ("architecture", "fields", "refused"),
    [
        ("JambaForCausalLM", {"model_type": "jamba"}, ("model", "jamba: its recurrent layers")),
        (
            "Qwen3NextForCausalLM",
            {"model_type": "qwen3_next", "layer_types": ["linear_attention", "full_attention"]},
            ("dtype", "must be bfloat16 for qwen3_next on a CPU, got float32"),
        ),
        ("GraniteMoeHybridForCausalLM", GRANITE, None),
    ],
    ids=["jamba", "qwen3_next", "granitemoehybrid"],
)
def test_vllms_class_of_the_model_tells_its_layers_without_weights(
    make_model: MakeModel,
    architecture: str,
    fields: dict[str, Any],
    refused: tuple[str, str] | None,
) -> None:
    folder = make_model("target", LLAMA | fields | {"architectures": [architecture]})
    given = config(folder, dtype="float32", max_model_len=64)
    vllm_config = arguments.engine_config(arguments.engine_args(given, 5, None))
    if refused is None:
        preflight.check_state(vllm_config)
        return
    error = refusal(preflight.check_state, vllm_config)
    assert error.setting == refused[0]
    assert refused[1] in str(error)


LATENT = LLAMA | {
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 64,
    "v_head_dim": 32,
    "first_k_dense_replace": 99,
}


@pytest.mark.needs_vllm
@pytest.mark.parametrize(
    ("dtype", "has_amx", "backend", "fits"),
    [
        ("bfloat16", True, None, True),
        ("float32", True, None, False),
        ("float16", True, None, False),
        ("float32", True, "CPU_MLA", True),
        ("float32", False, None, True),
    ],
)
def test_latent_attention_needs_bfloat16_on_a_cpu_with_amx(
    make_model: MakeModel,
    monkeypatch: pytest.MonkeyPatch,
    dtype: str,
    has_amx: bool,
    backend: str | None,
    fits: bool,
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: has_amx)
    options: dict[str, Any] = {} if backend is None else {"attention_backend": backend}
    settings = config(make_model("target", LATENT), dtype=dtype, max_model_len=64, **options)
    vllm_config = arguments.engine_config(arguments.engine_args(settings, 5, None))
    if fits:
        preflight.check_state(vllm_config)
        return
    error = refusal(preflight.check_state, vllm_config)
    assert error.setting == "dtype"
    assert f"must be bfloat16 for deepseek_v2 on a CPU with AMX, got {dtype}" in str(error)


@pytest.mark.needs_vllm
@pytest.mark.parametrize("batch", [32, 4096])
def test_the_schedulers_limit_is_the_batchs_where_prompts_are_read_whole(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    """vLLM changes the one without the other: a prompt waits for ever, or does not fit."""
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    settings = config(make_model("target", LATENT), max_model_len=64, max_num_batched_tokens=batch)
    args = arguments.engine_args(settings, 5, None)
    stock = args.create_engine_config().scheduler_config
    assert stock.max_num_scheduled_tokens != stock.max_num_batched_tokens
    scheduler = arguments.engine_config(args).scheduler_config
    assert not scheduler.enable_chunked_prefill
    assert scheduler.max_num_scheduled_tokens == scheduler.max_num_batched_tokens >= 64

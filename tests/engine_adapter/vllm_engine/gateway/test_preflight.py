"""Settings that cannot work are refused before anything is loaded."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs
from tokenizers import Tokenizer, models, pre_tokenizers

from engine_adapter.config import EngineConfig
from engine_adapter.errors import EngineConfigError
from engine_adapter.proposers.methods import parse_specs
from engine_adapter.vllm_engine import compat, state_layers
from engine_adapter.vllm_engine.gateway import arguments, preflight
from tests.engine_adapter.proposers.heads import (
    Heads,
    fasterdecoding_medusa,
    medusa,
    mlp_speculator,
)
from tests.engine_adapter.proposers.mtp_targets import mimo

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 32,
}
WORDS = ("the", "cat", "sat", "on", "a", "mat")

GRANITE = {
    "model_type": "granitemoehybrid",
    "layer_types": ["mamba", "attention"],
    "mamba_n_heads": 2,
    "mamba_d_head": 16,
}

MakeModel = Callable[..., str]


@pytest.fixture
def make_model(tmp_path: Path) -> MakeModel:
    """Writes a model folder without weights."""

    def make(
        name: str, config: dict[str, Any] | None = None, words: Sequence[str] | None = WORDS
    ) -> str:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(LLAMA if config is None else config))
        if words is not None:
            vocabulary = {word: i for i, word in enumerate(("<unk>", *words))}
            tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
            tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
            tokenizer.save(str(folder / "tokenizer.json"))
            settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>"}
            (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        return str(folder)

    return make


def config(
    model: str = "m",
    proposers: Sequence[dict[str, Any]] = (),
    capacity: int | None = None,
    **given: Any,
) -> EngineConfig:
    return EngineConfig(model, model, parse_specs(proposers), capacity, given)


def draft(model: str, name: str = "small", **fields: Any) -> dict[str, Any]:
    return {"name": name, "method": "draft_model", "model": model, **fields}


def refusal(check: Callable[..., Any], *args: Any) -> EngineConfigError:
    with pytest.raises(EngineConfigError) as caught:
        check(*args)
    return caught.value


# -- models ----------------------------------------------------------------------------------


def test_a_plain_target_is_accepted(make_model: MakeModel) -> None:
    preflight.check_models(config(make_model("target"), [{"name": "ngram"}]))


@pytest.mark.parametrize(
    "path", ["/no/such/folder", "./no-such-folder", "~/no-such-folder", "~nobody-of-this-name/x"]
)
def test_a_missing_folder_is_named(path: str) -> None:
    error = refusal(preflight.check_models, config(path))
    assert error.setting == "model"
    assert path in str(error)


def test_a_folder_without_a_configuration_is_named(tmp_path: Path) -> None:
    error = refusal(preflight.check_models, config(str(tmp_path)))
    assert error.setting == "model"
    assert str(tmp_path) in str(error)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "{}",
        '{"model_type": "nonesuch"}',
        '{"model_type": "llama", "hidden_size": "wide"}',
        '{"model_type": "llama", "layer_types": ["nonesuch"]}',
    ],
)
def test_a_configuration_that_cannot_be_read_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    error = refusal(preflight.check_models, config(str(tmp_path)))
    assert error.setting == "model"
    assert str(tmp_path) in str(error)


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
        (Target("MambaMixer2"), False, "model", "which are proven on CPU only"),
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


@pytest.mark.parametrize(
    "fields",
    [
        {"model_type": "mistral", "sliding_window": None},
        {"model_type": "mistral", "sliding_window": 4096},
        {"model_type": "mixtral", "sliding_window": 4096},
        {"model_type": "phi3", "sliding_window": 2047},
        {"model_type": "starcoder2", "sliding_window": 4096},
        {"model_type": "qwen2", "use_sliding_window": False, "sliding_window": 4096},
        {"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 1},
        {"model_type": "gemma2", "head_dim": 8},
        {"model_type": "gemma3_text", "head_dim": 8},
        {"model_type": "gpt_oss"},
        {"model_type": "llama4_text"},
        {"model_type": "opt"},
        {"model_type": "gpt2"},
    ],
    ids=lambda fields: f"{fields['model_type']} {fields.get('sliding_window', '')}",
)
def test_a_model_whose_layers_are_all_attention_is_accepted(
    make_model: MakeModel, fields: dict[str, Any]
) -> None:
    folder = make_model("target", LLAMA | fields)
    preflight.check_models(config(folder, [draft(folder)]))


def warnings(make_model: MakeModel, target: str | None, small: str | None) -> list[Any]:
    """The warnings for a target and a draft model of the named architectures."""

    def folder(name: str, architecture: str | None) -> str:
        return make_model(name, LLAMA | {"architectures": architecture and [architecture]})

    with capture_logs() as lines:
        preflight.check_models(config(folder("target", target), [draft(folder("draft", small))]))
    return [line for line in lines if line["event"] == "architecture_not_proven"]


def test_an_architecture_outside_the_table_starts_with_a_warning(make_model: MakeModel) -> None:
    (line,) = warnings(make_model, "NewForCausalLM", "LlamaForCausalLM")
    assert line["log_level"] == "warning"
    assert line["architecture"] == "NewForCausalLM"
    assert line["model"].endswith("/target")
    assert "docs/models.md" in line["meaning"]


def test_a_draft_model_outside_the_table_has_a_warning_of_its_own(make_model: MakeModel) -> None:
    (line,) = warnings(make_model, "LlamaForCausalLM", "NewForCausalLM")
    assert line["model"].endswith("/draft")


def test_a_configuration_without_architectures_is_named_by_its_type(make_model: MakeModel) -> None:
    (line,) = warnings(make_model, "LlamaForCausalLM", None)
    assert line["architecture"] == "llama"


def test_an_architecture_of_the_table_has_no_warning(make_model: MakeModel) -> None:
    assert not warnings(make_model, "LlamaForCausalLM", "LlamaForCausalLM")


def test_a_draft_model_with_the_targets_tokenizer_is_accepted(make_model: MakeModel) -> None:
    # Models of one family often pad their embeddings to different sizes.
    padded = make_model("draft", LLAMA | {"vocab_size": 64})
    preflight.check_models(config(make_model("target"), [draft(padded)]))


@pytest.mark.parametrize("words", [(*WORDS, "dog"), WORDS[:-1], (WORDS[1], WORDS[0], *WORDS[2:])])
def test_a_draft_model_with_another_tokenizer_is_refused(
    make_model: MakeModel, words: Sequence[str]
) -> None:
    other = make_model("draft", words=words)
    error = refusal(preflight.check_models, config(make_model("target"), [draft(other)]))
    assert error.setting == "proposer"
    assert "small" in str(error)
    assert other in str(error)
    assert '"use_heterogeneous_vocab": true' in str(error)


@pytest.mark.parametrize("words", [(*WORDS, "dog"), WORDS[:-1], (WORDS[1], WORDS[0], *WORDS[2:])])
def test_an_option_allows_another_tokenizer(make_model: MakeModel, words: Sequence[str]) -> None:
    other = make_model("draft", words=words)
    fields = draft(other, use_heterogeneous_vocab=True)
    with capture_logs() as lines:
        preflight.check_models(config(make_model("target"), [fields]))
    (line,) = lines
    assert (line["event"], line["proposer"]) == ("vocabulary_mapped", "small")
    assert line["detail"].startswith(f"{len({*words} & {*WORDS}) + 1} tokens map: ")


def test_another_tokenizer_of_which_too_little_maps_is_refused(make_model: MakeModel) -> None:
    other = make_model("draft", words=[f"word{i}" for i in range(20)])
    target = make_model("target", words=[f"other{i}" for i in range(20)])
    fields = draft(other, use_heterogeneous_vocab=True)
    error = refusal(preflight.check_models, config(target, [fields]))
    assert (error.setting, error.field) == ("proposer", "use_heterogeneous_vocab")
    assert str(error).startswith("proposer: small: use_heterogeneous_vocab cannot help: only 1 ")


def test_every_draft_model_is_checked(make_model: MakeModel) -> None:
    proposers = [draft(make_model("good"), "good"), draft(make_model("bad", words="ab"), "bad")]
    error = refusal(preflight.check_models, config(make_model("target"), proposers))
    assert "bad: the tokenizer" in str(error)


def test_a_missing_draft_model_is_named_with_proposer(make_model: MakeModel) -> None:
    error = refusal(preflight.check_models, config(make_model("target"), [draft("/no/such/draft")]))
    assert "proposer" in error.setting
    assert "small" in str(error)
    assert "/no/such/draft" in str(error)


def test_a_draft_model_without_tokenizer_is_named_with_proposer(
    make_model: MakeModel,
) -> None:
    bare = make_model("draft", words=None)
    error = refusal(preflight.check_models, config(make_model("target"), [draft(bare)]))
    assert "proposer" in error.setting
    assert bare in str(error)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ("{target}", None)),
        ({"revision": "r1"}, ("{target}", "r1")),
        ({"tokenizer_revision": "r2"}, ("{target}", "r2")),
        ({"revision": "r1", "tokenizer_revision": "r2"}, ("{target}", "r2")),
        ({"tokenizer": "elsewhere", "revision": "r1"}, ("elsewhere", "r1")),
        ({"tokenizer": "elsewhere", "tokenizer_revision": "r2"}, ("elsewhere", "r2")),
    ],
)
def test_a_draft_models_tokenizer_is_compared_with_the_one_that_vllm_loads(
    make_model: MakeModel,
    monkeypatch: pytest.MonkeyPatch,
    given: dict[str, Any],
    expected: tuple[str, str | None],
) -> None:
    target, small = make_model("target"), make_model("draft")
    read: list[tuple[str, str | None]] = []

    def load(model: str, revision: str | None, *, trust_remote_code: bool) -> Any:
        read.append((model, revision))
        return SimpleNamespace(get_vocab=dict)

    monkeypatch.setattr(preflight, "load_tokenizer", load)
    preflight.check_models(config(target, [draft(small)], **given))
    name, revision = expected
    assert read == [(small, None), (name.format(target=target), revision)]


def test_a_draft_model_must_share_a_separately_set_tokenizer(make_model: MakeModel) -> None:
    target, apart = make_model("target", words=None), make_model("tokenizer")
    preflight.check_models(config(target, [draft(make_model("draft"))], tokenizer=apart))


def test_without_a_draft_model_no_tokenizer_is_read(make_model: MakeModel) -> None:
    preflight.check_models(config(make_model("target", words=None), [{"name": "ngram"}]))


# -- heads -----------------------------------------------------------------------------------

SIZES: dict[str, Any] = {"hidden": LLAMA["hidden_size"], "vocabulary": LLAMA["vocab_size"]}
HEADS = [
    ("mlp_speculator", mlp_speculator(**SIZES)),
    ("medusa", medusa(**SIZES)),
    ("medusa", fasterdecoding_medusa(**SIZES)),
]


def head(method: str, model: str, **fields: Any) -> dict[str, Any]:
    return {"name": "head", "method": method, "model": model, **fields}


@pytest.mark.parametrize(("method", "heads"), HEADS)
def test_heads_that_fit_are_accepted_without_a_tokenizer(
    make_model: MakeModel, tmp_path: Path, method: str, heads: Heads
) -> None:
    model = heads.write(tmp_path / "heads")
    preflight.check_models(config(make_model("target"), [head(method, model)]))


@pytest.mark.parametrize("other", [{"hidden_size": 32}, {"vocab_size": 48}], ids=str)
@pytest.mark.parametrize(("method", "heads"), HEADS)
def test_heads_of_another_target_are_refused_with_file_and_proposer(
    make_model: MakeModel, tmp_path: Path, method: str, heads: Heads, other: dict[str, int]
) -> None:
    model = heads.write(tmp_path / "heads")
    target = make_model("target", LLAMA | other)
    error = refusal(preflight.check_models, config(target, [head(method, model)]))
    assert error.setting == "proposer"
    assert str(error).startswith(f"proposer: head: {model}/")
    assert str(next(iter(other.values()))) in str(error)


@pytest.mark.parametrize(("method", "heads"), HEADS)
def test_a_k_above_the_steps_of_a_head_is_refused(
    make_model: MakeModel, tmp_path: Path, method: str, heads: Heads
) -> None:
    fields = head(method, heads.write(tmp_path / "heads"), num_speculative_tokens=9)
    error = refusal(preflight.check_models, config(make_model("target"), [fields]))
    assert "head: " in str(error)
    assert "num_speculative_tokens must be at most" in str(error)


@pytest.mark.parametrize("method", ["mlp_speculator", "medusa"])
def test_a_model_that_is_not_a_head_is_refused(make_model: MakeModel, method: str) -> None:
    model = make_model("draft")
    error = refusal(preflight.check_models, config(make_model("target"), [head(method, model)]))
    assert f"head: {model}/config.json: " in str(error)
    assert "'LlamaForCausalLM'" in str(error)


def test_mtp_layers_of_the_target_are_accepted(tmp_path: Path) -> None:
    target = mimo(vocabulary=32).write(tmp_path / "target")
    preflight.check_models(config(target, [{"name": "mtp"}]))


def test_mtp_is_refused_for_a_target_without_mtp_layers(make_model: MakeModel) -> None:
    target = make_model("target", LLAMA | {"architectures": ["LlamaForCausalLM"]})
    error = refusal(preflight.check_models, config(target, [{"name": "mtp"}]))
    assert error.setting == "proposer"
    assert str(error).startswith(f"proposer: mtp: {target}/config.json: architectures must be one")


@pytest.mark.parametrize("on_cpu", [True, False])
@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"model_type": "deepseek_v3", "kv_lora_rank": 8}, "latent attention"),
        ({"model_type": "minimax_m2"}, "experts chosen by a sigmoid"),
    ],
    ids=["latent attention", "sigmoid"],
)
def test_what_vllm_cannot_do_on_cpu_is_refused_there(
    make_model: MakeModel,
    monkeypatch: pytest.MonkeyPatch,
    on_cpu: bool,
    fields: dict[str, Any],
    reason: str,
) -> None:
    platform = SimpleNamespace(is_cpu=lambda: on_cpu)
    monkeypatch.setitem(vars(compat), "current_platform", platform)
    target = make_model("target", LLAMA | fields)
    if on_cpu:
        error = refusal(preflight.check_models, config(target))
        assert (error.setting, reason in str(error)) == ("model", True)
    else:
        preflight.check_models(config(target))

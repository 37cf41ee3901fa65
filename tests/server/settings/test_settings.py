"""The settings, their derived defaults, and the errors of invalid ones."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import demo
from engine_adapter.proposers.contract import ProposerSpec
from engine_adapter.seam.config import RESERVED_ARGUMENTS, HangPolicy
from server.settings import Settings
from server.settings.engine_arguments import EngineArguments
from server.settings.types import digest_of

NGRAM = {"name": "ngram", "num_speculative_tokens": 5}


def refusal(**given: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        Settings(**given)
    return str(caught.value)


def test_without_a_model_it_is_the_demo_with_a_proposer_of_every_kind() -> None:
    settings = Settings()
    assert settings.model == str(demo.model_path("target"))
    assert settings.served_model_name == ("specgate-demo",)
    assert [(p.name, p.method, p.num_speculative_tokens) for p in settings.proposer] == [
        ("ngram", "ngram", 5),
        ("suffix", "suffix", 8),
        ("draft", "draft_model", 4),
        ("draft-small", "draft_model", 4),
        ("medusa", "medusa", 4),
        ("mlp-speculator", "mlp_speculator", 4),
        ("eagle", "eagle", 4),
        ("eagle3", "eagle3", 4),
    ]
    assert settings.proposer[0].options == {"prompt_lookup_min": 2, "prompt_lookup_max": 5}
    assert (settings.primary, settings.backup, settings.spec_method) == ("draft", "ngram", "auto")
    assert settings.initial_proposer == "auto"
    assert settings.engine_config().arguments == {
        "dtype": "float32",
        "max_model_len": 2048,
        "long_prefill_token_threshold": 64,
        "kv_cache_memory_bytes": 512 * 2**20,
    }


def test_the_demo_reads_long_prompts_in_parts_that_fit_the_context() -> None:
    assert Settings(max_model_len=32).long_prefill_token_threshold == 32
    assert Settings(max_model_len="4096").long_prefill_token_threshold == 64
    assert Settings(long_prefill_token_threshold=500).long_prefill_token_threshold == 500
    assert Settings(long_prefill_token_threshold=0).long_prefill_token_threshold == 0


@pytest.mark.parametrize("value", [-1, float("inf"), float("nan"), "x"])
def test_a_timeout_is_a_number_of_seconds(value: Any) -> None:
    assert "queue_timeout_s" in refusal(queue_timeout_s=value)


@pytest.mark.parametrize("name", [name for name in Settings.model_fields if name.endswith("_s")])
def test_no_duration_is_infinite(name: str) -> None:
    assert f"{name}\n" in refusal(**{name: float("inf")})


def test_settings_override_the_demos_defaults() -> None:
    settings = Settings(dtype="bfloat16", spec_method="none", served_model_name=["a", "b"])
    assert (settings.dtype, settings.spec_method) == ("bfloat16", "none")
    assert settings.served_model_name == ("a", "b")
    assert settings.engine_config().served_model_name == "a"


def test_the_demo_can_have_other_proposers() -> None:
    settings = Settings(proposer=[NGRAM])
    assert settings.proposer_names == ("ngram",)
    assert (settings.primary, settings.spec_method) == (None, "auto")
    assert settings.max_model_len == 2048


def test_with_a_model_no_demo_setting_applies() -> None:
    settings = Settings(model="org/model")
    assert settings.served_model_name == ("org/model",)
    assert settings.proposer == ()
    assert (settings.primary, settings.backup, settings.spec_method) == (None, None, "none")
    config = settings.engine_config()
    assert (config.model, config.arguments) == ("org/model", {})


def test_the_primary_proposer_is_the_method_at_start() -> None:
    assert Settings(model="org/m", proposer=[NGRAM], primary="ngram").spec_method == "ngram"


def test_without_a_primary_proposer_a_policy_chooses_among_the_proposers() -> None:
    settings = Settings(model="org/m", proposer=[NGRAM])
    assert (settings.spec_method, settings.initial_proposer) == ("auto", "auto")


def test_the_demo_with_a_primary_proposer_begins_with_it() -> None:
    assert Settings(primary="ngram").spec_method == "ngram"


def test_policies_and_rules_are_read_as_text_and_as_structure() -> None:
    load = {"disable_by_batch_size": 8, "proposer": "ngram"}
    rule = {"name": "a", "match": {"structured": True}, "use": {"proposer": "auto"}}
    for policies, rules in (
        ({"load": load}, [rule]),
        (json.dumps({"load": load}), json.dumps([rule])),
        (json.dumps({"load": load}), [json.dumps(rule)]),
    ):
        settings = Settings(
            model="org/m", proposer=[NGRAM], spec_policy=policies, routing_rules=rules
        )
        assert settings.engine_config().policies == {"load": load}
        assert [rule.name for rule in settings.rules(())] == ["a"]


def test_parsers_reach_the_engine_and_that_of_calls_only_if_the_model_may_choose() -> None:
    parsers = {"tool_call_parser": "hermes", "reasoning_parser": "qwen3"}
    for chooses, of_calls in ((True, "hermes"), (False, None)):
        config = Settings(model="org/m", enable_auto_tool_choice=chooses, **parsers).engine_config()
        assert (config.tool_call_parser, config.reasoning_parser) == (of_calls, "qwen3")


def test_parsers_are_found_from_the_model_or_turned_off() -> None:
    by_default = Settings(model="org/m").engine_config()
    assert (by_default.tool_call_parser, by_default.reasoning_parser) == ("auto", "auto")
    off = Settings(model="org/m", tool_call_parser="none", reasoning_parser="none").engine_config()
    assert (off.tool_call_parser, off.reasoning_parser) == (None, None)


def test_named_keys_are_not_shown() -> None:
    settings = Settings(model="org/m", named_api_key=["team-a=sk-one=="])
    assert settings.named_api_key["team-a"].get_secret_value() == digest_of(b"sk-one==")
    assert "sk-one" not in repr(settings)


@pytest.mark.parametrize("name", ["primary", "[ngram]", "ngram"])
def test_the_method_at_start_can_be_named_as_in_a_switch(name: str) -> None:
    settings = Settings(model="org/m", proposer=[NGRAM], primary="ngram", spec_method=name)
    assert settings.initial_proposer == "ngram"


def test_engine_arguments_keep_their_names() -> None:
    settings = Settings(
        model="org/m",
        tensor_parallel_size="2",
        gpu_memory_utilization="0.5",
        enforce_eager="true",
        kv_cache_memory_bytes="2GiB",
        engine_args='{"max-logprobs": 5, "fake_step_ms": 3}',
    )
    arguments = settings.engine_config().arguments
    assert arguments == {
        "tensor_parallel_size": 2,
        "gpu_memory_utilization": 0.5,
        "enforce_eager": True,
        "kv_cache_memory_bytes": 2 * 2**30,
        "max_logprobs": 5,
        "fake_step_ms": 3,
    }
    assert type(arguments["kv_cache_memory_bytes"]) is int


@pytest.mark.parametrize(
    "given",
    [
        '{"name": "ngram", "num_speculative_tokens": 5}',
        '[{"name": "ngram", "num_speculative_tokens": 5}]',
        ['{"name": "ngram", "num_speculative_tokens": 5}'],
        [NGRAM],
        NGRAM,
    ],
)
def test_a_proposer_is_json_or_a_mapping(given: Any) -> None:
    (spec,) = Settings(model="org/m", proposer=given).proposer
    assert isinstance(spec, ProposerSpec)
    assert (spec.name, spec.num_speculative_tokens) == ("ngram", 5)


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError):
        Settings(model="org/m").port = 1  # type: ignore[misc]


def test_keys_are_not_shown() -> None:
    settings = Settings(model="org/m", api_key="one, two", admin_key=["sk-admin"])
    hashes = [digest_of(b"one"), digest_of(b"two")]
    assert [key.get_secret_value() for key in settings.api_key] == hashes
    assert "sk-admin" not in repr(settings)
    assert "two" not in str(settings)


@pytest.mark.parametrize("name", sorted(RESERVED_ARGUMENTS))
def test_a_reserved_engine_argument_is_refused(name: str) -> None:
    assert f"{name} is set by Specgate itself" in refusal(engine_args={name: None})


@pytest.mark.parametrize("name", ["model", "seed", "max-model-len", "served_model_name", "port"])
def test_an_engine_argument_cannot_repeat_a_setting(name: str) -> None:
    flag = "MODEL" if name == "model" else f"--{name.replace('_', '-')}"
    assert f"has a setting of its own: {flag}" in refusal(engine_args={name: 1})


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"primary": "nobody"}, "there is no proposer 'nobody'"),
        ({"backup": "nobody"}, "there is no proposer 'nobody'"),
        ({"spec_method": "nobody"}, "there is no proposer 'nobody'"),
        ({"spec_method": "AUTO"}, "there is no proposer 'AUTO'"),
        ({"proposer": [{"name": "auto", "method": "ngram"}]}, "'auto' is reserved"),
        ({"spec_policy": {"fast": {}}}, "fast: is not a policy; the policies are auto, load"),
        ({"spec_policy": {"load": {"light": {"max_running": 0.5}}}}, "load.light.max_running: "),
        ({"spec_policy": {"auto": {}, "goodput": {}}}, "goodput: is auto, which is given too"),
        ({"spec_policy": {"auto": 5}}, "auto: must be an object of parameters"),
        ({"spec_policy": "[1]"}, "must be a JSON object"),
        ({"routing_rules": "{"}, "not valid JSON"),
        ({"routing_rules": [{"name": "a"}]}, "0.use: is required"),
        ({"routing_rules": [5]}, "0: must be an object"),
        ({"named_api_key": "team-a"}, "must be NAME=KEY"),
        ({"named_api_key": "=sk"}, "must be NAME=KEY"),
        ({"named_api_key": "a=1,a=2"}, "two keys have the same name"),
        ({"max_speculative_tokens": 4}, "5, more than --max-speculative-tokens, 4"),
        ({"proposer": [NGRAM, NGRAM]}, "'ngram' is given twice"),
        ({"proposer": [{"name": "primary", "method": "ngram"}]}, "'primary' is reserved"),
        ({"proposer": [{"name": "x", "method": "magic"}]}, "'magic' is unknown"),
        ({"proposer": [{"name": "ngram", "depth": 3}]}, "no such field"),
        ({"proposer": [{"name": "d", "method": "draft_model"}]}, "needs the path"),
        ({"proposer": "{"}, "not valid JSON"),
        ({"proposer": [7]}, "must be a JSON object"),
        ({"engine_args": "[1]"}, "must be a JSON object"),
        ({"engine_args": "{"}, "not valid JSON"),
        ({"api_key": ["a", ""]}, "must not be empty"),
        ({"served_model_name": "a,"}, "must not be empty"),
        ({"port": 65536}, "less than or equal to 65535"),
        ({"model": "/no/such/folder"}, "the folder '/no/such/folder' does not exist"),
        ({"model": "./models/none"}, "the folder './models/none' does not exist"),
        ({"engine_args": {"reasoning_parser": "x"}}, "--reasoning-parser"),
        ({"chat_template": "/no/template"}, "the file '/no/template' does not exist"),
        ({"surprise": 1}, "Extra inputs"),
    ],
)
def test_invalid_settings_are_refused(given: dict[str, Any], reason: str) -> None:
    assert reason in refusal(**given)


def test_a_draft_models_folder_must_exist() -> None:
    spec = {"name": "d", "method": "draft_model", "model": "/no/draft"}
    assert "d: model: the folder '/no/draft' does not exist" in refusal(
        model="org/m", proposer=[spec]
    )


def test_a_model_folder_needs_a_configuration(tmp_path: Path) -> None:
    assert "has no config.json" in refusal(model=str(tmp_path))


@pytest.mark.parametrize("model", ["gpt2", "org/model", "org/model-1.0_x", "s3://bucket/model"])
def test_an_id_of_the_hub_is_left_to_the_engine(model: str) -> None:
    assert Settings(model=model).model == model


def test_every_setting_has_a_description() -> None:
    for name, field in Settings.model_fields.items():
        assert field.description, name
    assert set(EngineArguments.model_fields) < set(Settings.model_fields)


def test_a_default_of_output_tokens_above_the_ceiling_is_refused() -> None:
    message = refusal(default_max_tokens=31, max_output_tokens=30)
    assert "31 is above --max-output-tokens 30" in message
    settings = Settings(default_max_tokens=30, max_output_tokens=30)
    assert (settings.default_max_tokens, settings.max_output_tokens) == (30, 30)
    for name in ("default_max_tokens", "max_output_tokens"):
        assert name in refusal(**{name: 0})


def test_the_scheduling_policy_is_the_engines() -> None:
    settings = Settings(scheduling_policy="priority")
    assert settings.engine_config().arguments["scheduling_policy"] == "priority"
    assert "scheduling_policy" in refusal(scheduling_policy="random")
    assert "--scheduling-policy" in refusal(engine_args={"scheduling_policy": "priority"})


def test_the_memory_for_compiled_grammars_is_the_engines() -> None:
    assert Settings().engine_config().max_compiled_grammar_bytes == 256 * 2**20
    config = Settings(max_compiled_grammar_bytes="1GiB").engine_config()  # type: ignore[arg-type]
    assert config.max_compiled_grammar_bytes == 2**30
    assert "max_compiled_grammar_bytes" in refusal(max_compiled_grammar_bytes=0)


def test_the_hang_limits_and_the_restarts_are_the_engines() -> None:
    config = Settings(engine_hang_timeout_s=7, engine_restart_limit=2).engine_config()
    assert (config.hang.idle_s, config.hang.busy_s) == (7, 1800)
    assert (config.restart.limit, config.restart.first_delay_s) == (2, 1)
    assert Settings().engine_config().hang == HangPolicy()
    for name in ("engine_hang_timeout_s", "engine_step_timeout_s"):
        assert name in refusal(**{name: -1})


def test_the_delay_of_a_stop_is_a_part_of_its_time() -> None:
    assert "20 is not below --shutdown-timeout-s 20" in refusal(shutdown_delay_s=20)
    settings = Settings(shutdown_delay_s=20, shutdown_timeout_s=21)
    assert (settings.shutdown_delay_s, settings.shutdown_timeout_s) == (20, 21)
    assert "shutdown_delay_s" in refusal(shutdown_delay_s=-1)

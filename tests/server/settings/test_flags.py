"""Flags as users of `vllm serve` write them: each is a setting, an engine argument, or refused."""

import argparse
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import pytest

from engine_adapter.seam.config import RESERVED_ARGUMENTS
from server.settings import Settings
from server.settings.sources import load_settings
from server.settings.types import SettingsError
from server.settings.vllm_flags import ALWAYS_SO, INSTEAD

pytestmark = pytest.mark.needs_vllm

NGRAM = '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4}'


def settings(*words: str) -> Settings:
    return load_settings(["org/m", *words], {})


def refusal(*words: str) -> str:
    with pytest.raises(SettingsError) as caught:
        settings(*words)
    return str(caught.value)


# Spelling on the command line of vLLM -> the setting and its value.
OWN: list[tuple[Sequence[str], str, Any]] = [
    (("--tensor-parallel-size", "2"), "tensor_parallel_size", 2),
    (("--tensor_parallel_size=2",), "tensor_parallel_size", 2),
    (("-tp", "2"), "tensor_parallel_size", 2),
    (("-tp=2",), "tensor_parallel_size", 2),
    (("-dp", "2"), "data_parallel_size", 2),
    (("--data-parallel-size", "2"), "data_parallel_size", 2),
    (("-q", "fp8"), "quantization", "fp8"),
    (("--quantization", "fp8"), "quantization", "fp8"),
    (("--gpu-memory-utilization", "0.8"), "gpu_memory_utilization", 0.8),
    (("--gpu_memory_utilization=0.8",), "gpu_memory_utilization", 0.8),
    (("--max-model-len", "4096"), "max_model_len", 4096),
    (("--max_model_len", "2k"), "max_model_len", 2000),
    (("--max-model-len", "2K"), "max_model_len", 2048),
    (("--max-model-len=1.5k",), "max_model_len", 1500),
    (("--max-num-batched-tokens", "8K"), "max_num_batched_tokens", 8192),
    (("--max_num_batched_tokens=8k",), "max_num_batched_tokens", 8000),
    (("--max-num-seqs", "16"), "max_num_seqs", 16),
    (("--dtype", "bfloat16"), "dtype", "bfloat16"),
    (("--enable-prefix-caching",), "enable_prefix_caching", True),
    (("--no-enable-prefix-caching",), "enable_prefix_caching", False),
    (("--enable_chunked_prefill",), "enable_chunked_prefill", True),
    (("--enforce-eager",), "enforce_eager", True),
    (("--kv-cache-dtype", "fp8"), "kv_cache_dtype", "fp8"),
    (("--block-size", "32"), "block_size", 32),
    (("--api-key", "k", "--api-key", "l"), "insecure", False),
    (("--served-model-name", "a"), "served_model_name", ("a",)),
    (("--served-model-name", "a", "b"), "served_model_name", ("a", "b")),
    (("--served_model_name", "a", "b", "--seed", "1"), "served_model_name", ("a", "b")),
    (("--trust-remote-code",), "trust_remote_code", True),
    (("--revision", "main"), "revision", "main"),
    (("--load-format", "dummy"), "load_format", "dummy"),
    (("--seed", "3"), "seed", 3),
    (("--allowed-origins", "*"), "insecure", False),
    (("--scheduling-policy", "priority"), "scheduling_policy", "priority"),
    (("--enable-lora", "--max-loras", "2"), "max_loras", 2),
    (("--enable-lora", "--lora-modules", "a=/a", "b=/b"), "lora_modules", {"a": "/a", "b": "/b"}),
    (("--host", "127.0.0.1", "--port", "9"), "port", 9),
]

# The same -> the argument of the engine and its value.
OF_THE_ENGINE: list[tuple[Sequence[str], str, Any]] = [
    (("--async-scheduling",), "async_scheduling", True),
    (("--no-async-scheduling",), "async_scheduling", False),
    (("--enable-expert-parallel",), "enable_expert_parallel", True),
    (("-ep",), "enable_expert_parallel", True),
    (("--pipeline-parallel-size", "1"), "pipeline_parallel_size", 1),
    (("-pp", "1"), "pipeline_parallel_size", 1),
    (("--max-logprobs", "50"), "max_logprobs", 50),
    (("--max_logprobs=50",), "max_logprobs", 50),
    (("--hf-overrides", '{"rope_theta": 5}'), "hf_overrides", {"rope_theta": 5}),
    (("--hf-overrides.rope_theta", "5"), "hf_overrides", {"rope_theta": 5}),
    (("--hf_overrides.a.b=5", "--hf-overrides.c", "x"), "hf_overrides", {"a": {"b": 5}, "c": "x"}),
    (("--compilation-config", '{"mode": 3}'), "compilation_config", {"mode": 3}),
    (("-cc", '{"mode": 3}'), "compilation_config", {"mode": 3}),
    (("--compilation-config.mode", "3"), "compilation_config", {"mode": 3}),
    (("-O3",), "optimization_level", "3"),
    (("-O", "2"), "optimization_level", "2"),
    (("-O=1",), "optimization_level", "1"),
    (("--limit-mm-per-prompt", '{"image": 2}'), "limit_mm_per_prompt", {"image": 2}),
    (("--limit-mm-per-prompt.image", "2"), "limit_mm_per_prompt", {"image": 2}),
    (("--generation-config", "vllm"), "generation_config", "vllm"),
    (("--override-generation-config.top_k", "5"), "override_generation_config", {"top_k": 5}),
    (("--tokenizer-mode", "mistral"), "tokenizer_mode", "mistral"),
    (("--tokenizer-revision", "r"), "tokenizer_revision", "r"),
    (("--cpu-offload-gb", "1.5"), "cpu_offload_gb", 1.5),
    (("--num-gpu-blocks-override", "99"), "num_gpu_blocks_override", 99),
    (("--cudagraph-capture-sizes", "1", "2", "4"), "cudagraph_capture_sizes", [1, 2, 4]),
    (("--disable-custom-all-reduce",), "disable_custom_all_reduce", True),
    (("--attention-backend", "TORCH_SDPA"), "attention_backend", "TORCH_SDPA"),
    (("--kv-offloading-size", "4"), "kv_offloading_size", 4.0),
]

# The same -> what the refusal says.
REFUSED: list[tuple[Sequence[str], str]] = [
    (("--speculative-config", "x"), "--speculative-config: not valid JSON"),
    (("--disable-log-stats",), "--disable-log-stats: cannot be set: the metrics are made from"),
    (("--worker-cls", "x"), "--worker-cls: cannot be set: the worker is Specgate's"),
    (("--scheduler_cls", "x"), "--scheduler-cls: cannot be set: the scheduler is Specgate's"),
    (("--kv-transfer-config", "{}"), "--kv-transfer-config: cannot be set: its channel"),
    (("--uvicorn-log-level", "info"), "is a setting of vLLM's server; here: --log-level"),
    (("--root-path", "/v1"), "is a setting of vLLM's server; here: a proxy"),
    (("--api-server-count", "4"), "here: one process serves the engine"),
    (("--tool-parser-plugin", "f.py"), "here: --tool-call-parser takes vLLM's own"),
    (("--response-role", "bot"), "the role is always `assistant`"),
    (("--ssl-ca-certs", "f"), "is a setting of vLLM's server"),
    (("--middleware", "m"), "is a setting of vLLM's server"),
    (("--uds", "/s"), "here: --host and --port"),
    (("--headless",), "--data-parallel-size starts and balances the engines"),
    (("--task", "generate"), "every model is served for generation"),
    (("--model", "m"), "give the model without a flag"),
    (("--max-logprobs", "many"), "--max-logprobs: invalid int value: 'many'"),
    (("--max-model-len", "1.5K"), "--max-model-len: a number with K has no decimals"),
    (("--max-logprobs",), "--max-logprobs: expected one argument"),
    (("--hf-overrides", "{"), "--hf-overrides: invalid"),
    (("--nonsense",), "--nonsense: unknown flag"),
    (("--tensor-paralel-size", "2"), "unknown flag; did you mean --tensor-parallel-size?"),
    (("--max-num-gpu-blocks-override", "2"), "did you mean --num-gpu-blocks-override?"),
]


@pytest.mark.parametrize(("words", "name", "value"), OWN, ids=lambda each: str(each)[:40])
def test_a_spelling_of_vllm_is_the_setting(words: Sequence[str], name: str, value: Any) -> None:
    assert getattr(settings(*words), name) == value


@pytest.mark.parametrize(("words", "name", "value"), OF_THE_ENGINE, ids=lambda each: str(each)[:40])
def test_another_engine_argument_is_a_flag(words: Sequence[str], name: str, value: Any) -> None:
    assert settings(*words).engine_config().arguments[name] == value


@pytest.mark.parametrize(("words", "reason"), REFUSED, ids=lambda each: str(each)[:40])
def test_a_flag_is_refused_with_the_true_reason(words: Sequence[str], reason: str) -> None:
    assert reason in refusal(*words)


@pytest.mark.parametrize("name", ALWAYS_SO)
def test_a_flag_that_always_holds_changes_nothing(name: str) -> None:
    with_flag = settings(f"--{name.replace('_', '-')}")
    assert with_flag.model_dump() == settings().model_dump()


def test_flags_of_the_engine_are_added_to_its_other_arguments() -> None:
    words = ("--engine-args", '{"max_logprobs": 7}', "--tokenizer-mode", "hf")
    assert settings(*words).engine_args == {"max_logprobs": 7, "tokenizer_mode": "hf"}
    assert "--max-logprobs: is in --engine-args, too" in refusal(*words, "--max-logprobs", "8")


def test_the_file_may_have_arguments_of_the_engine(tmp_path: Any) -> None:
    file = tmp_path / "specgate.yaml"
    file.write_text("model: org/m\nmax-logprobs: 7\nhf_overrides:\n  rope_theta: 5\n")
    loaded = load_settings(["--config", str(file), "--max-logprobs", "9"], {})
    assert loaded.engine_args == {"max_logprobs": 9, "hf_overrides": {"rope_theta": 5}}
    file.write_text("max_logprobss: 7\nuvicorn_log_level: info\nworker_cls: x\n")
    with pytest.raises(SettingsError) as caught:
        load_settings(["--config", str(file)], {})
    assert [line.partition(": ")[2] for line in caught.value.lines] == [
        "unknown setting; did you mean max_logprobs?",
        "is a setting of vLLM's server; here: --log-level",
        "cannot be set: the worker is Specgate's",
    ]


def test_the_fake_engine_has_no_such_flags() -> None:
    assert "--max-logprobs: unknown flag" in refusal("--engine", "fake", "--max-logprobs", "5")


def test_help_lists_the_flags_of_the_engine(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        load_settings(["--help=engine"], {})
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert "--max-logprobs" in shown
    assert "--hf-overrides" in shown
    assert "--worker-cls" not in shown, "it cannot be set"
    assert "--tensor-parallel-size" not in shown, "--help has it"


def test_the_table_has_every_other_flag_of_vllm_serve() -> None:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    def names(parser: argparse.ArgumentParser) -> set[str]:
        return {action.dest for action in parser._actions}

    engine = names(AsyncEngineArgs.add_cli_args(FlexibleArgumentParser()))
    server_flags = names(cli_args().make_arg_parser(FlexibleArgumentParser())) - engine
    unlisted = server_flags - ALWAYS_SO.keys() - INSTEAD.keys() - Settings.model_fields.keys()
    assert unlisted == {"model_tag", "config"}, "MODEL and --config"
    # Flags that one of the supported releases has, and those that users still have of older ones.
    assert not (ALWAYS_SO.keys() | INSTEAD.keys()) & Settings.model_fields.keys()
    assert not INSTEAD.keys() & RESERVED_ARGUMENTS.keys()


def cli_args() -> Any:
    """vLLM's module of the arguments of its server; 0.33 has moved it."""
    for package in ("launchers", "common"):
        try:
            return import_module(f"vllm.entrypoints.{package}.cli_args")
        except ModuleNotFoundError:
            continue
    raise AssertionError("vLLM has moved the arguments of its server again")

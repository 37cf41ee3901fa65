"""Settings become vLLM's engine arguments."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
from pydantic import BaseModel, ValidationError, field_validator
from safetensors.numpy import save_file
from transformers import AutoTokenizer

from demo import model_path
from engine_adapter.proposers.methods import parse_specs
from engine_adapter.seam.config import RESERVED_ARGUMENTS, EngineConfig
from engine_adapter.seam.errors import EngineConfigError
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.gateway import arguments, ray_backend
from engine_adapter.vllm_engine.gateway.arguments import (
    CPU_KV_CACHE_BYTES,
    engine_args,
    engine_config,
    reason_of,
    refusal_of,
)


def config(**arguments: Any) -> EngineConfig:
    model = str(model_path("target"))
    return EngineConfig(model, "served", parse_specs([{"name": "ngram"}]), None, arguments)


def refusal(**arguments: Any) -> EngineConfigError:
    with pytest.raises(EngineConfigError) as caught:
        engine_args(config(**arguments), 5, None)
    return caught.value


@pytest.mark.needs_vllm
@pytest.mark.parametrize("name", RESERVED_ARGUMENTS)
def test_a_reserved_argument_is_refused_with_the_reason(name: str) -> None:
    error = refusal(**{name: "anything"})
    assert error.setting == name
    assert RESERVED_ARGUMENTS[name] in str(error)


@pytest.mark.needs_vllm
@pytest.mark.parametrize("value", [False, {}, 0])
def test_a_reserved_argument_is_refused_with_any_value(value: Any) -> None:
    assert refusal(scheduler_cls=value).setting == "scheduler_cls"


@pytest.mark.needs_vllm
@pytest.mark.parametrize("name", ["pipeline_parallel_size", "decode_context_parallel_size"])
def test_a_kind_of_parallelism_that_is_not_proven_must_be_1(name: str) -> None:
    assert refusal(**{name: 2}).setting == name
    assert getattr(engine_args(config(**{name: 1}), 5, None), name) == 1


@pytest.mark.needs_vllm
def test_a_pipeline_is_refused_with_the_reason() -> None:
    message = str(refusal(pipeline_parallel_size=2))
    assert "drafts in a pipeline's last stage" in message
    assert "tensor_parallel_size" in message


@pytest.mark.needs_vllm
def test_ray_is_replaced_by_the_executor_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_backend, "find_spec", lambda name: object())
    args = engine_args(config(distributed_executor_backend="ray"), 5, None)
    assert args.distributed_executor_backend == ray_backend.executor(config())
    assert engine_args(config(), 5, None).distributed_executor_backend is None


@pytest.mark.needs_vllm
def test_vllm_is_told_of_one_engine_only() -> None:
    several = replace(config(data_parallel_size=4), data_parallel_index=2)
    assert engine_args(several, 5, None).data_parallel_size == 1
    assert engine_args(several, 5, None).device_ids is None, "on a CPU there are no devices"


@pytest.mark.needs_vllm
def test_each_engine_on_gpus_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = SimpleNamespace(is_cpu=lambda: False, device_count=lambda: 4)
    monkeypatch.setattr(compat, "current_platform", gpus)
    arguments = {"data_parallel_size": 2, "tensor_parallel_size": 2}
    several = [replace(config(**arguments), data_parallel_index=i) for i in range(2)]
    assert [engine_args(one, 5, None).device_ids for one in several] == [[0, 1], [2, 3]]
    assert engine_args(config(), 5, None).device_ids is None, "one engine takes what it sees"


@pytest.mark.needs_vllm
@pytest.mark.parametrize("name", ["data_parallel_rank", "data_parallel_size_local"])
def test_vllms_own_data_parallelism_is_refused(name: str) -> None:
    error = refusal(**{name: 1})
    assert error.setting == name
    assert "starts and balances the engines itself" in str(error)


@pytest.mark.needs_vllm
def test_experts_are_not_spread_over_several_engines() -> None:
    error = refusal(data_parallel_size=2, enable_expert_parallel=True)
    assert error.setting == "enable_expert_parallel"
    assert "each engine has all experts" in str(error)
    assert engine_args(config(enable_expert_parallel=True), 5, None).enable_expert_parallel


@pytest.mark.needs_vllm
def test_an_argument_that_is_unknown_to_vllm_is_named() -> None:
    error = refusal(max_model_length=100)
    assert error.setting == "engine_args"
    assert "max_model_length" in str(error)


def test_a_model_that_needs_a_missing_package_is_refused_with_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    message = "Model architectures ['X'] failed to be inspected."
    monkeypatch.setattr(arguments, "find_spec", lambda name: None)
    assert "torchvision is not installed" in reason_of(ValueError(message))
    monkeypatch.setattr(arguments, "find_spec", lambda name: name)
    assert reason_of(ValueError(message)) == message


def test_a_refusal_of_vllm_is_told_without_pydantics_words() -> None:
    class Config(BaseModel):
        dtype: str
        block_size: Literal[16, 32] = 16

        @field_validator("dtype")
        @classmethod
        def check(cls, value: str) -> str:
            raise ValueError(f"{value} is not supported for quantization method awq.")

    with pytest.raises(ValidationError) as caught:
        Config(dtype="float32")
    assert reason_of(caught.value) == "float32 is not supported for quantization method awq."
    assert reason_of(OSError("no such folder")) == "no such folder"
    with pytest.raises(ValidationError) as caught:
        Config.model_validate({"dtype": 7, "block_size": 8})
    assert reason_of(caught.value) == (
        "dtype: Input should be a valid string; block_size: Input should be 16 or 32"
    )


@pytest.mark.needs_vllm
@pytest.mark.parametrize(
    ("reason", "setting", "message"),
    [
        (
            "max_num_batched_tokens (128) must be greater than or equal to max_num_seqs (256).",
            "max_num_batched_tokens",
            "max_num_batched_tokens (128) must be greater than or equal to max_num_seqs (256).",
        ),
        ("block_size: Input should be 16 or 32", "block_size", "Input should be 16 or 32"),
        ("float32 is not supported", "engine_args", "float32 is not supported"),
    ],
)
def test_a_refusal_names_the_argument_with_which_it_begins(
    reason: str, setting: str, message: str
) -> None:
    error = refusal_of(ValueError(reason))
    assert (error.setting, error.message) == (setting, message)


@pytest.mark.needs_vllm
def test_settings_reach_vllm() -> None:
    given = config(max_model_len=512, max_num_seqs=7, seed=None, dtype="float32")
    args = engine_args(given, 9, "/pipe")
    assert (args.model, args.served_model_name) == (given.model, "served")
    assert (args.max_model_len, args.max_num_seqs, args.dtype) == (512, 7, "float32")
    assert args.seed == engine_args(config(), 9, None).seed, "None means not set"
    assert args.async_scheduling is False
    assert args.speculative_config["num_speculative_tokens"] == 9
    assert args.additional_config["specgate"]["progress_pipe"] == "/pipe"
    (spec,) = args.additional_config["specgate"]["proposers"]
    assert spec["name"] == "ngram"


@pytest.mark.needs_vllm
def test_compiled_code_is_found_again_although_the_pipe_is_another_one() -> None:
    one, other = (
        engine_config(engine_args(config(), 5, pipe)) for pipe in ("/tmp/one", "/tmp/other")
    )
    assert one.additional_config["specgate"]["progress_pipe"] == "/tmp/one"
    assert one.compute_hash() == other.compute_hash()


@pytest.mark.needs_vllm
def test_code_of_a_head_that_was_replaced_at_its_path_is_not_found(tmp_path: Path) -> None:
    head = {"name": "head", "method": "eagle3", "model": str(tmp_path)}

    def key(layer: int, value: float = 0.0, bias: bool = False) -> str:
        fields = {"eagle_aux_hidden_state_layer_ids": [layer]}
        (tmp_path / "config.json").write_text(json.dumps(fields))
        names = ["fc.weight", *["fc.bias"] * bias]
        tensors = {name: np.full(2, value, np.float32) for name in names}
        save_file(tensors, tmp_path / "model.safetensors")
        made = EngineConfig(str(model_path("target")), "served", parse_specs([head]))
        found: str = engine_args(made, 5, None).additional_config.compute_hash()
        return found

    assert key(1) == key(1, value=0.5), "the values of weights do not change the code"
    assert len({key(1), key(2), key(1, bias=True)}) == 3


@pytest.mark.needs_vllm
def test_the_classes_in_dotted_paths_exist() -> None:
    from importlib import import_module

    args = engine_args(config(), 5, None)
    for path in (args.worker_cls, args.scheduler_cls):
        module, _, name = path.rpartition(".")
        assert isinstance(getattr(import_module(module), name), type)


@pytest.mark.needs_vllm
def test_building_arguments_does_not_change_the_settings() -> None:
    given = config(max_num_seqs=3)
    engine_args(given, 5, None)
    assert dict(given.arguments) == {"max_num_seqs": 3}


@pytest.mark.needs_vllm
def test_the_kv_cache_has_a_small_default_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    from engine_adapter.vllm_engine import compat

    monkeypatch.setattr(type(compat.current_platform), "is_cpu", lambda self: True)
    args = engine_args(config(), 5, None)
    assert (args.kv_cache_memory_bytes, args.enforce_eager) == (CPU_KV_CACHE_BYTES, True)
    own = engine_args(config(kv_cache_memory_bytes=1 << 20, enforce_eager=False), 5, None)
    assert (own.kv_cache_memory_bytes, own.enforce_eager) == (1 << 20, False)


@pytest.mark.needs_vllm
@pytest.mark.parametrize(("cpu", "worker"), [(True, "CPUWorker"), (False, "GPUWorker")])
def test_the_worker_fits_the_device(
    monkeypatch: pytest.MonkeyPatch, cpu: bool, worker: str
) -> None:
    from engine_adapter.vllm_engine import compat

    monkeypatch.setattr(type(compat.current_platform), "is_cpu", lambda self: cpu)
    assert engine_args(config(), 5, None).worker_cls.endswith(f".worker.{worker}")


@pytest.mark.needs_vllm
@pytest.mark.parametrize(
    ("given", "backend", "compact"),
    [
        ({}, "guidance", True),
        ({"disable_any_whitespace": False}, "guidance", False),
        ({"backend": "xgrammar"}, "xgrammar", True),
        ({"backend": "outlines"}, "outlines", False),
    ],
)
def test_structured_output_has_one_backend_and_compact_json(
    given: dict[str, Any], backend: str, compact: bool
) -> None:
    args = engine_args(config(structured_outputs_config=given), 5, None)
    made = args.create_engine_config().structured_outputs_config
    assert (made.backend, made.disable_any_whitespace) == (backend, compact)


@pytest.mark.needs_vllm
def test_a_backend_per_request_is_refused() -> None:
    error = refusal(structured_outputs_config={"backend": "auto"})
    assert error.setting == "structured_outputs_config"


@pytest.fixture
def thinking(tmp_path: Path) -> str:
    """The demo's tokenizer with the marks of reasoning."""
    tokenizer: Any = AutoTokenizer.from_pretrained(model_path("target"))
    tokenizer.add_tokens(["<think>", "</think>"], special_tokens=True)
    tokenizer.save_pretrained(tmp_path)
    return str(tmp_path)


@pytest.mark.needs_vllm
def test_the_reasoning_parser_is_that_of_structured_output_too(thinking: str) -> None:
    settings = replace(config(tokenizer=thinking), reasoning_parser="deepseek_r1")
    vllm_config = engine_args(settings, 5, None).create_engine_config()
    assert vllm_config.structured_outputs_config.reasoning_parser == "deepseek_r1"
    for setting in ("structured_outputs_config", "reasoning_config"):
        error = refusal(**{setting: {"reasoning_parser": "deepseek_r1"}})
        assert error.setting == setting
        assert "--reasoning-parser" in str(error)


@pytest.mark.needs_vllm
def test_the_marks_of_reasoning_are_those_of_the_parser_and_of_the_arguments() -> None:
    assert engine_args(config(), 5, None).reasoning_config is None
    marks = {"reasoning_end_str": "So"}
    settings = replace(config(reasoning_config=marks), reasoning_parser="qwen3")
    vllm_marks = engine_args(settings, 5, None).reasoning_config
    assert vllm_marks == {"reasoning_end_str": "So", "reasoning_parser": "qwen3"}


@pytest.mark.needs_vllm
def test_a_forced_end_that_leaves_the_reasoning_open_is_refused(thinking: str) -> None:
    def vllm_config(end: str) -> Any:
        settings = config(tokenizer=thinking, reasoning_config={"reasoning_end_str": end})
        return engine_config(engine_args(replace(settings, reasoning_parser="qwen3"), 5, None))

    forced = vllm_config("So</think>").reasoning_config.reasoning_end_token_ids
    tokenizer: Any = AutoTokenizer.from_pretrained(thinking)
    assert tokenizer.decode(forced) == "So</think>"
    with pytest.raises(EngineConfigError, match="reasoning_end_str: must end with") as caught:
        vllm_config("So")
    assert caught.value.setting == "reasoning_config"

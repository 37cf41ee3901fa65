"""Turns settings into vLLM's engine arguments and into the environment that vLLM reads."""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import fields
from importlib.util import find_spec
from typing import Any

from engine_adapter.proposers.checkpoint import Checkpoint
from engine_adapter.proposers.methods import get_method
from engine_adapter.registries import lora_registry
from engine_adapter.seam.config import RESERVED_ARGUMENTS, EngineConfig
from engine_adapter.seam.errors import EngineConfigError
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.gateway import model_runner, placement, ray_backend
from engine_adapter.vllm_engine.patches.async_on_cpu import patch_async_scheduling
from engine_adapter.vllm_engine.patches.model_inspection import patch_model_inspection
from engine_adapter.vllm_engine.patches.triton_check import patch_triton_check
from engine_adapter.vllm_engine.wire import SpecgateConfig

_MUST_BE_ONE = {
    "pipeline_parallel_size": "vLLM drafts in a pipeline's last stage and schedules a step before "
    "the one before it has ended, so a step's plan would not know what was accepted; use "
    "tensor_parallel_size",
    "decode_context_parallel_size": "more is not proven",
}
"""Arguments that cannot be above 1, each with the reason."""

_NOT_INSPECTED = "to be inspected"
"""How vLLM's message ends if a model's module cannot be imported."""

CPU_KV_CACHE_BYTES = 512 << 20
"""The KV cache's default on CPU, in bytes; vLLM's own takes most of the machine's memory."""

WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""Variables that say how OpenMP's threads wait for each other."""


def prepare_environment(config: EngineConfig) -> None:
    """Sets the environment variables that vLLM reads; must run before vLLM is imported.

    It keeps the user's values, with one exception: the memory of each start is measured.

    Raises:
        EngineConfigError: see `model_runner.check_variable`.
    """
    model_runner.check_variable(os.environ)
    os.environ[model_runner.VARIABLE] = "1"
    # vLLM would give the KV cache the memory that it had at an earlier start with the same target.
    # The proposers of this start may take more.
    os.environ["VLLM_ENABLE_STARTUP_PLAN"] = "0"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", config.log_level)
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    # A forked process would keep the clients' connections open. vLLM's own server also spawns.
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    if config.log_level != "DEBUG":
        # The engine process inherits it: vLLM's imports there warn of things that users cannot fix.
        os.environ.setdefault("PYTHONWARNINGS", "ignore::FutureWarning")
    if not any(name in os.environ for name in WAITING):
        # By default these threads spin, and if another program has the core, a step waits for a
        # thread that spins in vain: 5 times slower. Sleeping costs 14 % on an idle machine.
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    if int(config.arguments.get("tensor_parallel_size") or 1) == 1:
        # The one worker then runs in the engine process, which starts faster and saves a hop per
        # step. The engine process itself stays.
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")


def tokenizer_source(config: EngineConfig) -> tuple[str, str | None]:
    """The folder or hub id of the target's tokenizer, and its revision, as vLLM takes them."""
    arguments = config.arguments
    revision = arguments.get("tokenizer_revision") or arguments.get("revision")
    return arguments.get("tokenizer") or config.model, revision


def engine_args(config: EngineConfig, capacity: int, progress_pipe: str | None) -> Any:
    """Builds vLLM's `AsyncEngineArgs`.

    Args:
        config: the engine's settings.
        capacity: the draft capacity, `num_speculative_tokens` of the whole engine.
        progress_pipe: the named pipe to which the engine's processes report progress.

    Raises:
        EngineConfigError: an argument is reserved, not proven, or unknown to vLLM.
    """
    from vllm import AsyncEngineArgs

    patch_triton_check()
    arguments = {key: value for key, value in config.arguments.items() if value is not None}
    for name, reason in RESERVED_ARGUMENTS.items():
        if name in arguments:
            raise EngineConfigError(name, f"cannot be set: {reason}")
    for name, reason in _MUST_BE_ONE.items():
        if arguments.get(name, 1) != 1:
            raise EngineConfigError(name, f"must be 1, got {arguments[name]}: {reason}")
    arguments |= _data_parallel(config, arguments)
    if ray_backend.uses_ray(arguments):
        arguments[ray_backend.BACKEND] = ray_backend.executor(config)
    if compat.current_platform.is_cpu():
        arguments.setdefault("kv_cache_memory_bytes", CPU_KV_CACHE_BYTES)
        arguments.setdefault("enforce_eager", True)
    arguments.setdefault("use_tqdm_on_load", False)
    if arguments.get("enable_lora"):
        arguments["max_cpu_loras"] = lora_registry.max_loaded(arguments)
    arguments["structured_outputs_config"] = structured_outputs_config(config)
    if (marks := reasoning_config(config)) is not None:
        arguments["reasoning_config"] = marks
    if is_async := model_runner.is_async(config.arguments):
        patch_async_scheduling()
    scheduler = "SpecgateAsyncScheduler" if is_async else "SpecgateScheduler"
    arguments["async_scheduling"] = is_async
    worker = "CPUWorker" if compat.current_platform.is_cpu() else "GPUWorker"
    try:
        return AsyncEngineArgs(
            model=config.model,
            served_model_name=config.served_model_name,
            worker_cls=f"engine_adapter.vllm_engine.worker.worker.{worker}",
            scheduler_cls=f"engine_adapter.vllm_engine.core.scheduler.{scheduler}",
            speculative_config=model_runner.speculative_config(capacity, is_async=is_async),
            additional_config=_own_config(config, progress_pipe),
            **arguments,
        )
    except TypeError as error:
        raise EngineConfigError("engine_args", str(error)) from error


def _data_parallel(config: EngineConfig, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of one engine among several; vLLM is told of no others.

    Raises:
        EngineConfigError: an argument belongs to vLLM's own data parallelism.
    """
    for name in arguments:
        if name.startswith("data_parallel_") and name != "data_parallel_size":
            raise EngineConfigError(
                name, "cannot be set: Specgate starts and balances the engines itself"
            )
    if config.data_parallel_size == 1:
        return {}
    if arguments.get("enable_expert_parallel"):
        raise EngineConfigError(
            "enable_expert_parallel",
            "cannot be set with data_parallel_size: vLLM would spread the experts over all "
            "engines, which then step and die together; without it each engine has all experts",
        )
    if compat.current_platform.is_cpu():
        return {"data_parallel_size": 1}
    return {"data_parallel_size": 1, "device_ids": placement.device_ids(config)}


def _own_config(config: EngineConfig, progress_pipe: str | None) -> Any:
    """Specgate's part of vLLM's configuration; vLLM's annotation knows only dictionaries."""
    return SpecgateConfig(
        tuple(config.proposers),
        progress_pipe,
        config.policies,
        config.primary,
        {
            spec.name: _layout(Checkpoint(spec.model))
            for spec in config.proposers
            if spec.model and get_method(spec.method).capabilities.is_paged_head
        },
        config.max_compiled_grammar_bytes,
    ).to_additional_config()


def _layout(checkpoint: Checkpoint) -> str:
    """A hash of what a head's code depends on: its configuration, and tensors' names and shapes."""
    layout = json.dumps([checkpoint.config, checkpoint.shapes], sort_keys=True)
    return hashlib.sha256(layout.encode()).hexdigest()


def engine_config(args: Any) -> Any:
    """vLLM's `VllmConfig` of these arguments.

    The prefix cache of a target with recurrent layers is off on CPU: in an engine that speculates,
    vLLM has only a kernel for GPUs that keeps their states in it. With attention over chunks, all
    layers are in one KV cache group: vLLM's other way asserts that all groups have blocks of one
    size, which a draft model's need not have. Where vLLM's attention reads whole prompts only, as
    latent attention on a CPU without AMX, it makes its batches large enough for any prompt, but not
    the scheduler's limit: a longer prompt would wait for ever.

    Raises:
        EngineConfigError: an argument says otherwise.
    """
    if compat.current_platform.is_cpu():
        patch_model_inspection()
    caching = args.enable_prefix_caching
    config = args.create_engine_config()
    _check_end_of_reasoning(config.reasoning_config)
    if "chunked_attention" in (
        getattr(config.model_config.hf_text_config, "layer_types", ()) or ()
    ):
        if args.disable_hybrid_kv_cache_manager is False:
            raise EngineConfigError(
                "disable_hybrid_kv_cache_manager",
                "must be on for a target with attention over chunks: with several KV cache groups "
                "vLLM needs the same block size in all of them, also in those of draft models",
            )
        args.disable_hybrid_kv_cache_manager = True
        return args.create_engine_config()
    if not (scheduler := config.scheduler_config).enable_chunked_prefill:
        scheduler.max_num_scheduled_tokens = scheduler.max_num_batched_tokens
    if not config.model_config.is_hybrid or not compat.current_platform.is_cpu():
        return config
    if caching:
        raise EngineConfigError(
            "enable_prefix_caching",
            "must be off on CPU for a target with recurrent layers: vLLM keeps their states in the "
            "prefix cache only on a GPU if it speculates",
        )
    args.enable_prefix_caching = False
    return args.create_engine_config()


def _check_end_of_reasoning(marks: Any) -> None:
    """Raises `EngineConfigError` for a forced end after which the reasoning would be open.

    vLLM would force it again and again.
    """
    if marks is None or not marks.enabled:
        return
    natural = marks.natural_reasoning_end_token_ids
    if marks.reasoning_end_token_ids[-len(natural) :] != natural:
        raise EngineConfigError(
            "reasoning_config",
            f"reasoning_end_str: must end with what ends the reasoning for {marks.reasoning_parser}"
            f", got {marks.reasoning_end_str!r}",
        )


def refusal_of(error: Exception) -> EngineConfigError:
    """vLLM's refusal of its arguments, under the name of the argument with which it begins."""
    reason = reason_of(error)
    name = reason.partition(" ")[0].removesuffix(":")
    if name not in {field.name for field in fields(compat.AsyncEngineArgs)}:
        return EngineConfigError("engine_args", reason)
    return EngineConfigError(name, reason.removeprefix(f"{name}: "))


def reason_of(error: Exception) -> str:
    """Why vLLM refuses its arguments, without what pydantic prints around the reason.

    vLLM's own reasons name what is wrong; pydantic's need the name of the field before them.
    """
    listed = getattr(error, "errors", None)
    if not callable(listed):
        return _with_missing_package(str(error))
    reasons = []
    for item in listed():
        field = ".".join(map(str, item["loc"]))
        is_vllm_reason = item["type"] == "value_error" or not field
        reason = item["msg"].removeprefix("Value error, ")
        reasons.append(reason if is_vllm_reason else f"{field}: {reason}")
    return _with_missing_package("; ".join(reasons))


def _with_missing_package(reason: str) -> str:
    """The reason, and the package without which vLLM cannot import models with images."""
    if _NOT_INSPECTED not in reason or find_spec("torchvision") is not None:
        return reason
    return f"{reason} The package torchvision is not installed; models that take images need it."


def structured_outputs_config(engine: EngineConfig) -> dict[str, Any]:
    """vLLM's configuration of structured output: one backend, and compact JSON.

    llguidance enforces a schema, or refuses it and names the keyword that it does not support;
    xgrammar silently ignores some keywords (`not`, keywords beside `anyOf`). Under `auto`, vLLM
    picks a backend for each request and then compiles every grammar with the first one picked.
    Where white space is free, small models write nothing else. A constraint begins after the
    reasoning, which the reasoning parser tells.

    Raises:
        EngineConfigError: a field is reserved or not proven.
    """
    overrides = _without_parser(engine, "structured_outputs_config")
    config = {"backend": "guidance", **overrides, "reasoning_parser": engine.reasoning_parser or ""}
    if config["backend"] == "auto":
        raise EngineConfigError(
            "structured_outputs_config", "backend: must name a backend; auto is not proven"
        )
    if config["backend"] in ("xgrammar", "guidance"):
        config.setdefault("disable_any_whitespace", True)
    return config


def reasoning_config(engine: EngineConfig) -> dict[str, Any] | None:
    """vLLM's configuration of the marks of reasoning, which `thinking_token_budget` needs.

    The parser knows its marks; `None` without a parser and without marks in the arguments.

    Raises:
        EngineConfigError: the arguments name a parser.
    """
    overrides = _without_parser(engine, "reasoning_config")
    if engine.reasoning_parser is None and not overrides:
        return None
    return {**overrides, "reasoning_parser": engine.reasoning_parser or ""}


def _without_parser(engine: EngineConfig, name: str) -> Mapping[str, Any]:
    """The fields of an argument that must not name the parser of the reasoning."""
    fields: Mapping[str, Any] = engine.arguments.get(name) or {}
    if fields.get("reasoning_parser"):
        message = "reasoning_parser: has a setting of its own, --reasoning-parser"
        raise EngineConfigError(name, message)
    return fields

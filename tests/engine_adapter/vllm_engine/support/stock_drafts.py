"""Stock vLLM with one method of speculation, in a process of its own; every draft is recorded."""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

Prompt = tuple[int, ...]

_TIMEOUT_S = 400
"""For the start of the engine and all runs."""


@dataclass(frozen=True)
class StockRun:
    """What stock vLLM did with a prompt.

    Attributes:
        output: the tokens that it emitted.
        drafts: number of committed tokens -> the drafts for the next ones.
    """

    output: tuple[int, ...]
    drafts: Mapping[int, tuple[int, ...]]


def run_stock(
    model: str,
    speculation: Mapping[str, Any],
    prompts: Sequence[Prompt],
    max_tokens: int,
    arguments: Mapping[str, Any],
    prepare: Callable[[], None] | None = None,
) -> list[StockRun]:
    """Runs the prompts one after the other, greedily.

    Args:
        speculation: vLLM's `speculative_config`.
        arguments: more of vLLM's engine arguments.
        prepare: is called in the process before the engine starts.
    """
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        given = model, dict(speculation), list(prompts), max_tokens, dict(arguments), prepare
        return pool.submit(_run, *given).result(timeout=_TIMEOUT_S)


def _run(
    model: str,
    speculation: dict[str, Any],
    prompts: list[Prompt],
    max_tokens: int,
    arguments: dict[str, Any],
    prepare: Callable[[], None] | None,
) -> list[StockRun]:
    from engine_adapter.seam.config import EngineConfig
    from engine_adapter.vllm_engine.gateway.arguments import prepare_environment

    prepare_environment(EngineConfig(model, "stock", ()))
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"
    if prepare is not None:
        prepare()
    from vllm import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    args = EngineArgs(
        model=model,
        enforce_eager=True,
        async_scheduling=False,
        enable_prefix_caching=False,
        kv_cache_memory_bytes=64 << 20,
        speculative_config=speculation,
        **arguments,
    )
    engine = LLMEngine.from_vllm_config(args.create_engine_config())
    return [_run_prompt(engine, prompt, max_tokens) for prompt in prompts]


def _run_prompt(engine: Any, prompt: Prompt, max_tokens: int) -> StockRun:
    from vllm import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    engine.add_request("r", {"prompt_token_ids": list(prompt)}, params)
    drafts: dict[int, tuple[int, ...]] = {}
    last: Any = None
    while engine.has_unfinished_requests():
        for output in engine.step():
            last = output
        for request in engine.engine_core.engine_core.scheduler.running:
            if request.spec_token_ids:
                drafts[request.num_tokens] = tuple(request.spec_token_ids)
    return StockRun(tuple(last.outputs[0].token_ids), drafts)

"""Stock vLLM without speculation in a process of its own: greedy texts of one model after another.

A process imports vLLM once for all models, which `live.Stock` does for each.
"""

import gc
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from tests.engine_adapter.vllm_engine.support.processes import vllm_process

Prompt = tuple[int, ...]

_TIMEOUT_S = 400
"""For the start of the engine and all prompts."""


@dataclass(frozen=True)
class StockText:
    """A greedy continuation.

    Attributes:
        tokens: the continuation.
        gaps: for each token, how far the two best log probabilities were apart.
    """

    tokens: tuple[int, ...]
    gaps: tuple[float, ...]

    def differs_at(self, tokens: Sequence[int]) -> int | None:
        """The index of the first other token; `None` if `tokens` are the beginning of this text."""
        pairs = zip(tokens, self.tokens, strict=False)
        return next((i for i, (a, b) in enumerate(pairs) if a != b), None)


class StockTexts:
    """A process in which stock vLLM serves one model after another."""

    def __init__(self) -> None:
        self._pool = vllm_process(_prepare)

    def start(
        self,
        model: str,
        prompts: Sequence[Prompt],
        max_tokens: int,
        arguments: Mapping[str, Any],
    ) -> Future[list[StockText]]:
        """The greedy continuations of all prompts in one batch, when they are made.

        Args:
            arguments: vLLM's engine arguments.
        """
        given = model, list(prompts), max_tokens, dict(arguments)
        return self._pool.submit(_texts, *given)

    def texts(
        self,
        model: str,
        prompts: Sequence[Prompt],
        max_tokens: int,
        arguments: Mapping[str, Any],
    ) -> list[StockText]:
        """Waits for `start`."""
        return self.start(model, prompts, max_tokens, arguments).result(timeout=_TIMEOUT_S)

    def stop(self) -> None:
        """Ends the process."""
        self._pool.shutdown(cancel_futures=True)


# -- in the engine's process -----------------------------------------------------------------


def _prepare() -> None:
    from engine_adapter.seam.config import EngineConfig
    from engine_adapter.vllm_engine.gateway.arguments import prepare_environment

    prepare_environment(EngineConfig("stock", "stock", ()))
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"


def _texts(
    model: str, prompts: list[Prompt], max_tokens: int, arguments: dict[str, Any]
) -> list[StockText]:
    from vllm import EngineArgs, SamplingParams
    from vllm.v1.engine.llm_engine import LLMEngine

    args = EngineArgs(
        model=model,
        enforce_eager=True,
        async_scheduling=False,
        kv_cache_memory_bytes=64 << 20,
        **arguments,
    )
    engine = LLMEngine.from_vllm_config(args.create_engine_config())
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, logprobs=2)
    try:
        for i, prompt in enumerate(prompts):
            engine.add_request(str(i), {"prompt_token_ids": list(prompt)}, params)
        made: dict[str, Any] = {}
        output: Any
        while engine.has_unfinished_requests():
            for output in engine.step():
                made[output.request_id] = output.outputs[0]
        return [_text(made[str(i)]) for i in range(len(prompts))]
    finally:
        engine.engine_core.shutdown()
        del engine
        gc.collect()


def _text(output: Any) -> StockText:
    best = [sorted((e.logprob for e in one.values()), reverse=True) for one in output.logprobs]
    return StockText(tuple(output.token_ids), tuple(two[0] - two[1] for two in best))

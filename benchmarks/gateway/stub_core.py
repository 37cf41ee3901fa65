"""vLLM's front ends without an engine core: its client replays tokens instead of asking a process.

AsyncLLM, the output processor and the detokenizer are vLLM's own. Specgate's server and stock
vLLM's get the same client, so only what is before it differs. The cost of reading a core's messages
is left out on both sides.

Usage: python -m benchmarks.gateway.stub_core STEP_MS DELTA specgate|stock ARGUMENT...
"""

import asyncio
import runpy
import sys
from collections.abc import Sequence
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

from engine_adapter.fake.replay import StepClock, made_deltas
from engine_adapter.fake.vocabulary import load_vocabulary
from engine_adapter.seam.types import SpecMethod
from engine_adapter.vllm_engine import compat


class ReplayingClient:
    """What AsyncLLM calls of its core, without the core.

    It has no process, so Specgate watches none. Each step gives every live request `delta` tokens,
    at first one.
    """

    def __init__(self, step_s: float, delta: int, vllm_config: Any, *_: Any, **__: Any) -> None:
        self._delta = delta
        self.engine_ranks_managed = [0]
        processes: list[Any] = []
        manager = SimpleNamespace(processes=processes)
        self.resources = SimpleNamespace(engine_dead=False, engine_manager=manager)
        self._vocabulary = load_vocabulary(vllm_config.model_config.tokenizer)
        self._steps = cache(self._make_steps)
        self._clock = StepClock(step_s)
        self._step = 0
        self._live: dict[str, list[list[int]]] = {}
        self._sent: dict[str, int] = {}
        self._added = asyncio.Event()

    def _make_steps(self, num_tokens: int) -> list[list[int]]:
        deltas = made_deltas(self._vocabulary, SpecMethod("replayed", self._delta - 1), num_tokens)
        return [list(delta.token_ids) for delta in deltas]

    async def get_supported_tasks_async(self) -> tuple[str, ...]:
        """Generation only."""
        return ("generate",)

    async def add_request_async(self, request: Any) -> None:
        """A request begins."""
        self._live[request.request_id] = self._steps(request.sampling_params.max_tokens)
        self._sent[request.request_id] = 0
        self._added.set()

    async def abort_requests_async(self, request_ids: Sequence[str]) -> None:
        """Requests end early."""
        for request_id in request_ids:
            self._live.pop(request_id, None)
            self._sent.pop(request_id, None)

    async def get_output_async(self) -> Any:
        """The outputs of the next step."""
        if not self._live:
            self._added.clear()
            await self._added.wait()
            self._step = self._clock.next_step()
        await self._clock.reach(self._step)
        self._step += 1
        return compat.EngineCoreOutputs(
            outputs=[self._next(request) for request in tuple(self._live)]
        )

    def _next(self, request_id: str) -> Any:
        steps, number = self._live[request_id], self._sent[request_id]
        self._sent[request_id] = number + 1
        if number + 1 < len(steps):
            return compat.EngineCoreOutput(request_id, steps[number])
        del self._live[request_id], self._sent[request_id]
        reason = compat.FinishReason.LENGTH
        return compat.EngineCoreOutput(request_id, steps[number], finish_reason=reason)

    async def call_utility_async(self, method: str, *args: Any) -> None:
        """A call to the core; there is none."""

    async def collective_rpc_async(self, *_: Any, **__: Any) -> list[dict[str, Any]]:
        """A call to the workers; none has memory."""
        return [{}]

    async def reset_mm_cache_async(self) -> None:
        """Nothing is cached."""

    def shutdown(self, timeout: float | None = None) -> None:
        """There is nothing to stop."""


def main() -> None:
    """Replaces the client, then runs the server."""
    step_ms, delta, front_end, *arguments = sys.argv[1:]
    client = type("Client", (ReplayingClient, compat.EngineCoreClient), {})
    make = partial(client, float(step_ms) / 1e3, int(delta))
    compat.EngineCoreClient.make_async_mp_client = staticmethod(make)
    sys.argv[1:] = arguments
    if front_end == "stock":
        runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__")
        return
    from server.cli import main as specgate

    sys.exit(specgate(arguments))


if __name__ == "__main__":
    main()

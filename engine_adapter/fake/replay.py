"""`fake_replay`: deltas that are made once and sent to every request, at no cost for the engine.

What is left of an event's CPU time is the gateway's.
"""

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from prometheus_client import CollectorRegistry

from engine_adapter.fake.admission import check_request
from engine_adapter.fake.detokenizer import Detokenizer
from engine_adapter.fake.engine import FakeEngine
from engine_adapter.fake.tokens import draw
from engine_adapter.fake.vocabulary import Vocabulary
from engine_adapter.policies.names import POLICY_NAMES
from engine_adapter.seam.config import EngineConfig
from engine_adapter.seam.counts import ProposerCounts, SpecStats
from engine_adapter.seam.errors import InvalidRequest
from engine_adapter.seam.interface import EngineObserver
from engine_adapter.seam.types import (
    NONE,
    Delta,
    FinishReason,
    GenerationRequest,
    SamplingOptions,
    SpecMethod,
)

_KEPT_TEXTS = 64


def create_fake_engine(
    config: EngineConfig, registry: CollectorRegistry, observer: EngineObserver
) -> FakeEngine:
    """A fake engine; with `fake_replay` one that replays. Raises `EngineConfigError`."""
    if config.arguments.get("fake_replay"):
        return ReplayEngine(config, registry, observer)
    return FakeEngine(config, registry, observer)


class StepClock:
    """Steps at the multiples of `step_s` seconds of `time.monotonic`, for all streams at once.

    It steps in time even if the event loop is late, as an engine in another process does. With 0
    every iteration of the event loop is a step.
    """

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self._step = 0
        self._waiting: list[asyncio.Future[None]] = []

    def next_step(self) -> int:
        """The number of the step that comes next."""
        return int(time.monotonic() / self._step_s) + 1 if self._step_s else 0

    async def reach(self, step: int) -> None:
        """Returns when the step has come, at once if it is past."""
        if not self._step_s:
            await asyncio.sleep(0)
            return
        while self._step < step:
            woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(woken)
            if len(self._waiting) == 1:
                self._set_timer()
            await woken

    def wake_all(self) -> None:
        """Wakes every stream that waits."""
        waiting, self._waiting = self._waiting, []
        for woken in waiting:
            if not woken.done():
                woken.set_result(None)

    def _set_timer(self) -> None:
        """For the next step. uvloop's timers count whole milliseconds, so it is rounded up."""
        now_s = time.monotonic()
        due_s = (int(now_s / self._step_s) + 1) * self._step_s
        asyncio.get_running_loop().call_later(math.ceil((due_s - now_s) * 1e3) / 1e3, self._tick)

    def _tick(self) -> None:
        self._step = int(time.monotonic() / self._step_s)
        self.wake_all()


class _Life:
    """The time between two deaths of the engine; `end` is the error that ended it."""

    end: Exception | None = None


class ReplayEngine(FakeEngine):
    """A fake engine that sends every request the same deltas, up to its `max_tokens`.

    Each delta after the first has one token, or k + 1 with a proposer: all drafts are accepted.
    `fake_step_ms` is the time between deltas. There are no step reports and no `vllm:` metrics;
    requests do not wait, and switches do not change running ones. What would need a text of its
    own (log probabilities, stop strings, a schema) is refused.
    """

    def __init__(
        self, config: EngineConfig, registry: CollectorRegistry, observer: EngineObserver
    ) -> None:
        """Checks the settings; loads nothing. Raises `EngineConfigError`."""
        super().__init__(config, registry, observer)
        self._clock = StepClock(self._options.fake_step_ms / 1e3)
        self._life = _Life()
        self._replaying: set[str] = set()
        self._deltas: Callable[[SpecMethod, int], tuple[Delta, ...]] | None = None

    @property
    def num_running(self) -> int:
        """The number of requests that are being replayed."""
        return len(self._replaying)

    async def start(self, on_progress: Callable[[str], None]) -> None:
        """See `Engine.start`."""
        await super().start(on_progress)
        vocabulary = self._vocabulary
        assert vocabulary is not None
        make = lru_cache(_KEPT_TEXTS)(lambda *key: tuple(made_deltas(vocabulary, *key)))
        self._deltas = make

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        """See `Engine.generate`."""
        clock, life, request_id = self._clock, self._life, request.request_id
        deltas = self._admitted(request)
        self._replaying.add(request_id)
        step = clock.next_step()
        try:
            for delta in deltas:
                await clock.reach(step)
                if life.end is not None:
                    raise life.end
                step += 1
                yield delta
        finally:
            self._replaying.discard(request_id)

    def _admitted(self, request: GenerationRequest) -> tuple[Delta, ...]:
        self._begin_call("generate")
        info = self.info
        check_request(request, info, self._proposer_registry.specs)
        _check_replayable(request.sampling)
        if request.request_id in self._replaying:
            raise InvalidRequest("request_id", f"{request.request_id!r} is in use")
        remaining = info.max_model_len - len(request.prompt_token_ids)
        num_tokens = min(request.sampling.max_tokens or remaining, remaining)
        assert self._deltas is not None
        return self._deltas(self._method_for(request), num_tokens)

    def _end_all(self, error: Exception) -> None:
        super()._end_all(error)
        self._life.end = error
        self._life = _Life()
        self._clock.wake_all()


def made_deltas(vocabulary: Vocabulary, method: SpecMethod, num_tokens: int) -> Iterator[Delta]:
    """The deltas of `num_tokens` tokens: one, then as many as a step with perfect drafts emits."""
    drafts = method.proposer not in (NONE, *POLICY_NAMES)
    k = method.num_speculative_tokens if drafts else 0
    text = Detokenizer(vocabulary.tokenizer, (), SamplingOptions())
    spec, num_made, words = SpecStats(), 0, vocabulary.words
    while num_made < num_tokens:
        size = 1 if not num_made else min(k + 1, num_tokens - num_made)
        tokens = tuple(words[draw(num_made + i) % len(words)] for i in range(size))
        for token in tokens:
            text.add(token, may_stop=False)
        if num_made:
            spec += SpecStats(1, size, _perfect(method.proposer, min(k, size), size))
        num_made += size
        finished = num_made == num_tokens
        yield Delta(
            text=text.take(finished=finished),
            token_ids=tokens,
            finish_reason=FinishReason.LENGTH if finished else None,
            spec=spec,
        )


def _perfect(proposer: str, drafted: int, emitted: int) -> Mapping[str, ProposerCounts]:
    """A step whose drafts were all accepted."""
    if not drafted:
        return {}
    return {proposer: ProposerCounts(1, drafted, drafted, (1,) * drafted, emitted)}


def _check_replayable(sampling: SamplingOptions) -> None:
    requested: dict[str, Any] = {
        "logprobs": sampling.logprobs is not None,
        "prompt_logprobs": sampling.prompt_logprobs is not None,
        "stop": sampling.stop,
        "stop_token_ids": sampling.stop_token_ids,
    }
    if sampling.structured_output is not None:
        requested[sampling.structured_output.param] = True
    for param, is_requested in requested.items():
        if is_requested:
            raise InvalidRequest(param, f"fake_replay does not support {param}")

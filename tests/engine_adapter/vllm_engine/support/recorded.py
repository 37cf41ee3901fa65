"""A real engine in a process of its own, stepped by hand, with every draft on record.

What an engine drafted is not among its outputs. Here its core is in reach, so that a run under
switches can be compared with one that never switched, draft by draft.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any

from engine_adapter.config import EngineConfig, draft_capacity
from engine_adapter.types import SpecDecodeParams, SpecMethod, Switch

Drafted = dict[int, tuple[str, tuple[int, ...]]]
"""Committed tokens at the time -> who drafted, and what."""

Prompt = tuple[int, ...]

_TIMEOUT_S = 400
"""For the engine to start, or for a run."""


@dataclass(frozen=True)
class Ask:
    """A request.

    Attributes:
        method: who drafts; pinned, unless the run has switches.
        at: the step before which it is added.
    """

    prompt: Prompt
    max_tokens: int
    method: SpecMethod
    at: int = 0


@dataclass
class Recording:
    """What a run did, by request."""

    drafts: list[Drafted]
    outputs: list[tuple[int, ...]]
    cached: list[int]
    preemptions: int
    catchup: dict[str, int]

    def of(self, i: int, proposer: str) -> dict[int, tuple[int, ...]]:
        """A request's drafts by one proposer."""
        return {n: drafts for n, (name, drafts) in self.drafts[i].items() if name == proposer}


@dataclass
class _Tape:
    """Notes what the dispatch of the engine in this process does."""

    drafts: dict[str, Drafted] = field(default_factory=dict)
    catchup: dict[str, int] = field(default_factory=dict)

    def attach(self, dispatch: Any) -> None:
        propose = dispatch.propose

        def noting(plan: Mapping[str, SpecMethod], step: Any) -> list[list[int]]:
            merged: list[list[int]] = propose(plan, step)
            batch = dispatch._runner.input_batch
            for row, tokens in enumerate(merged):
                if tokens:
                    request_id = batch.req_ids[row]
                    by_length = self.drafts.setdefault(request_id, {})
                    length = int(batch.num_tokens_no_spec[row])
                    by_length[length] = plan[request_id].proposer, tuple(tokens)
            report = dispatch._report
            assert not report.faults, report.faults
            for name, count in report.catchup.items():
                self.catchup[name] = self.catchup.get(name, 0) + count
            return merged

        dispatch.propose = noting


class RecordedEngine:
    """Runs requests in the engine of another process.

    Args:
        config: as the adapter gets it.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._pool = ProcessPoolExecutor(
            1, get_context("spawn"), initializer=_start, initargs=(config,)
        )

    def run(
        self, asks: Sequence[Ask], switches: Mapping[int, SpecMethod] | None = None
    ) -> Recording:
        """Runs the requests to their end.

        Args:
            switches: step -> the method that all requests get before it. Without, each keeps
                its own.
        """
        recording: Recording = self._pool.submit(_run, asks, switches).result(timeout=_TIMEOUT_S)
        return recording

    def forget_prefixes(self) -> None:
        """Empties the prefix cache."""
        self._pool.submit(_forget_prefixes).result(timeout=_TIMEOUT_S)

    def stop(self) -> None:
        """Ends the process."""
        self._pool.shutdown(cancel_futures=True)


# -- in the engine's process -----------------------------------------------------------------

_engine: Any = None
_count = 0


def _start(config: EngineConfig) -> None:
    from engine_adapter.vllm_engine.gateway import arguments

    global _engine
    arguments.prepare_environment(config)
    args = arguments.engine_args(
        config, draft_capacity(config.proposers, config.max_speculative_tokens), None
    )
    from vllm.v1.engine.llm_engine import LLMEngine

    _engine = LLMEngine.from_vllm_config(args.create_engine_config())


def _forget_prefixes() -> None:
    assert _engine.reset_prefix_cache()


def _run(asks: Sequence[Ask], switches: Mapping[int, SpecMethod] | None) -> Recording:
    global _count
    core = _engine.engine_core.engine_core
    runner = core.model_executor.driver_worker.worker.model_runner
    tape = _Tape()
    tape.attach(runner.drafter)
    first, _count = _count, _count + len(asks)
    ids = [f"r{first + i}" for i in range(len(asks))]
    outputs: dict[str, Any] = {}
    added = step = 0
    preempted = 0
    scheduler = core.scheduler
    try:
        while added < len(asks) or _engine.has_unfinished_requests():
            if switches and step in switches:
                scheduler.switch(Switch(switches[step], step + 1))
            while added < len(asks) and asks[added].at <= step:
                _add(ids[added], asks[added], pinned=not switches)
                added += 1
            for output in _engine.step():
                outputs[output.request_id] = output
            preempted = max(preempted, sum(r.num_preemptions for r in scheduler.running))
            step += 1
    finally:
        del runner.drafter.propose
    made = [outputs[request_id] for request_id in ids]
    return Recording(
        drafts=[_drafts_of(tape, request_id) for request_id in ids],
        outputs=[tuple(output.outputs[0].token_ids) for output in made],
        cached=[output.num_cached_tokens or 0 for output in made],
        preemptions=preempted,
        catchup=tape.catchup,
    )


def _drafts_of(tape: _Tape, request_id: str) -> Drafted:
    # vLLM appends a random part to the ids of its requests.
    found = [d for name, d in tape.drafts.items() if name.startswith(f"{request_id}-")]
    return found[0] if found else tape.drafts.get(request_id, {})


def _add(request_id: str, ask: Ask, *, pinned: bool) -> None:
    from vllm import SamplingParams

    from engine_adapter.vllm_engine.wire import to_extra_args

    spec = SpecDecodeParams(ask.method, pinned=pinned)
    params = SamplingParams(
        temperature=0,
        max_tokens=ask.max_tokens,
        ignore_eos=True,
        extra_args=to_extra_args(spec),
    )
    _engine.add_request(request_id, {"prompt_token_ids": list(ask.prompt)}, params)

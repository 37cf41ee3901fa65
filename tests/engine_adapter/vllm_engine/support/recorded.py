"""A real engine in a process of its own, stepped by hand; every draft is recorded.

An engine's outputs do not contain its drafts. This one's core is accessible, so that a run with
switches can be compared with a run without, draft by draft.
"""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from engine_adapter.policies.contract import StepPlan
from engine_adapter.seam.config import EngineConfig, draft_capacity
from engine_adapter.seam.types import SpecDecodeParams, SpecMethod, Switch
from tests.engine_adapter.vllm_engine.support.processes import vllm_process

Drafted = dict[int, tuple[str, tuple[int, ...]]]
"""Number of committed tokens -> the proposer, and its drafts."""

Prompt = tuple[int, ...]

_TIMEOUT_S = 400
"""For the start of the engine, or for a run."""


@dataclass(frozen=True)
class RecordedRequest:
    """A request.

    Attributes:
        method: its proposer and k; pinned, unless the run has switches.
        at: the step before which it is added.
        options: of its sampling, with vLLM's names; greedy without.
        salt: requests with different ones share no cached prefix.
        prediction: what the proposer `prediction` drafts from.
    """

    prompt: Prompt
    max_tokens: int
    method: SpecMethod
    at: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    salt: str | None = None
    prediction: tuple[int, ...] = ()


@dataclass
class RecordedRun:
    """The drafts and outputs of a run, by request."""

    drafts: list[Drafted]
    outputs: list[tuple[int, ...]]
    cached: list[int]
    preemptions: int
    catchup: dict[str, int]
    freed: int = 0
    """The most blocks that were free behind windows at once."""
    steps: int = 0

    def of(self, i: int, proposer: str) -> dict[int, tuple[int, ...]]:
        """A request's drafts by one proposer."""
        return {n: drafts for n, (name, drafts) in self.drafts[i].items() if name == proposer}

    def accepted(self, i: int, proposer: str, prompt: Prompt) -> tuple[int, int]:
        """How many tokens it drafted within a request's text, and how many of them are the text's.

        A target that drafts for itself has all of them right if its KV is.
        """
        text = prompt + self.outputs[i]
        drafted = accepted = 0
        for length, drafts in self.of(i, proposer).items():
            pairs = list(zip(drafts, text[length:], strict=False))
            drafted += len(pairs)
            accepted += sum(a == b for a, b in pairs)
        return drafted, accepted


@dataclass
class _DraftRecorder:
    """Records the drafts of the dispatch of the engine in this process."""

    drafts: dict[str, Drafted] = field(default_factory=dict)
    catchup: dict[str, int] = field(default_factory=dict)

    def attach(self, dispatch: Any) -> None:
        propose = dispatch.propose

        def recording(plan: StepPlan, step: Any) -> Any:
            merged, report = propose(plan, step)
            batch = dispatch._runner.input_batch
            for row, tokens in enumerate(merged):
                if tokens:
                    request_id = batch.req_ids[row]
                    by_length = self.drafts.setdefault(request_id, {})
                    length = int(batch.num_tokens_no_spec[row])
                    second = request_id in report.fallbacks
                    methods = plan.fallbacks if second else plan.drafts
                    by_length[length] = methods[request_id].proposer, tuple(tokens)
            assert not report.faults, report.faults
            for name, count in report.catchup.items():
                self.catchup[name] = self.catchup.get(name, 0) + count
            return merged, report

        dispatch.propose = recording


class RecordedEngine:
    """Runs requests in the engine of another process.

    Args:
        config: the engine's configuration.
        prepare: a function of a module, called in the process before it starts the engine.
    """

    def __init__(self, config: EngineConfig, prepare: Callable[[], None] | None = None) -> None:
        self._pool = vllm_process(_start, config, prepare)

    def restart(self, config: EngineConfig) -> None:
        """Replaces the engine by another one in the same process, which has imported vLLM."""
        self._pool.submit(_restart, config).result(timeout=_TIMEOUT_S)

    def run(
        self,
        requests: Sequence[RecordedRequest],
        switches: Mapping[int, SpecMethod] | None = None,
        blocks: int | None = None,
    ) -> RecordedRun:
        """Runs the requests to their end.

        Args:
            switches: step -> the method that all requests get before it. Without switches
                each request keeps its own method.
            blocks: how many blocks all KV cache groups together have for this run; all of the
                engine's without.
        """
        recording: RecordedRun = self._pool.submit(_run, requests, switches, blocks).result(
            timeout=_TIMEOUT_S
        )
        return recording

    def call(self, function: Callable[[], Any]) -> Any:
        """Calls a function of a module in the engine's process, between two runs."""
        return self._pool.submit(function).result(timeout=_TIMEOUT_S)

    def kv_cache_groups(self) -> list[tuple[str, frozenset[str]]]:
        """For each KV cache group, the kind of its layers and their names."""
        groups: list[tuple[str, frozenset[str]]] = self.call(_kv_cache_groups)
        return groups

    def reset_prefix_cache(self) -> None:
        """Empties the prefix cache."""
        self._pool.submit(_reset_prefix_cache).result(timeout=_TIMEOUT_S)

    def memory(self) -> dict[str, tuple[int, int]]:
        """Bytes of weights and of KV of every proposer that has any."""
        sizes: dict[str, tuple[int, int]] = self._pool.submit(_memory).result(timeout=_TIMEOUT_S)
        return sizes

    def stop(self) -> None:
        """Ends the process."""
        self._pool.shutdown(cancel_futures=True)


# -- in the engine's process -----------------------------------------------------------------

_engine: Any = None
_count = 0


def _start(config: EngineConfig, prepare: Callable[[], None] | None = None) -> None:
    from engine_adapter.vllm_engine.gateway import arguments

    global _engine
    arguments.prepare_environment(config)
    if prepare is not None:
        prepare()
    args = arguments.engine_args(
        config, draft_capacity(config.proposers, config.max_speculative_tokens), None
    )
    from vllm.v1.engine.llm_engine import LLMEngine

    _engine = LLMEngine.from_vllm_config(arguments.engine_config(args))
    # As the gateway does: every run shows that a smoke test leaves no trace.
    faults = _engine.collective_rpc("specgate_smoke_test")
    assert faults == [{}], faults


def _restart(config: EngineConfig) -> None:
    global _engine
    if _engine is not None:  # None after a start that failed
        _engine.engine_core.shutdown()
    _engine = None
    gc.collect()
    _start(config)


def _reset_prefix_cache() -> None:
    assert _engine.reset_prefix_cache()


def _memory() -> dict[str, tuple[int, int]]:
    sizes: dict[str, tuple[int, int]] = running_runner().drafter.host.memory()
    return sizes


def running_runner() -> Any:
    return _engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner


def _kv_cache_groups() -> list[tuple[str, frozenset[str]]]:
    groups = running_runner().kv_cache_config.kv_cache_groups
    return [(type(g.kv_cache_spec).__name__, frozenset(g.layer_names)) for g in groups]


@contextmanager
def _with_blocks(left: int | None) -> Iterator[None]:
    """Takes away all free blocks but some."""
    if left is None:
        yield
        return
    manager = _engine.engine_core.engine_core.scheduler.kv_cache_manager
    held = manager.block_pool.get_new_blocks(manager.block_pool.get_num_free_blocks() - left)
    try:
        yield
    finally:
        manager.block_pool.free_blocks(held)


def _run(
    requests: Sequence[RecordedRequest],
    switches: Mapping[int, SpecMethod] | None,
    blocks: int | None,
) -> RecordedRun:
    with _with_blocks(blocks):
        return _run_all(requests, switches)


def _run_all(
    requests: Sequence[RecordedRequest], switches: Mapping[int, SpecMethod] | None
) -> RecordedRun:
    global _count
    runner = running_runner()
    recorder = _DraftRecorder()
    recorder.attach(runner.drafter)
    first, _count = _count, _count + len(requests)
    ids = [f"r{first + i}" for i in range(len(requests))]
    outputs: dict[str, Any] = {}
    added = step = 0
    preempted = freed = 0
    scheduler = _engine.engine_core.engine_core.scheduler
    blocks_of = scheduler.kv_cache_manager.get_block_ids
    try:
        while added < len(requests) or _engine.has_unfinished_requests():
            if switches and step in switches:
                scheduler.row_table.switch(Switch(switches[step], step + 1))
            while added < len(requests) and requests[added].at <= step:
                _add(ids[added], requests[added], pinned=not switches)
                added += 1
            for output in _engine.step():
                outputs[output.request_id] = output
            preempted = max(preempted, sum(r.num_preemptions for r in scheduler.running))
            held = [blocks_of(r.request_id) for r in scheduler.running]
            freed = max(freed, sum(ids.count(0) for groups in held for ids in groups))
            step += 1
    finally:
        del runner.drafter.propose
    made = [outputs[request_id] for request_id in ids]
    return RecordedRun(
        drafts=[_drafts_of(recorder, request_id) for request_id in ids],
        outputs=[tuple(output.outputs[0].token_ids) for output in made],
        cached=[output.num_cached_tokens or 0 for output in made],
        preemptions=preempted,
        catchup=recorder.catchup,
        freed=freed,
        steps=step,
    )


def _drafts_of(recorder: _DraftRecorder, request_id: str) -> Drafted:
    # vLLM appends a random part to the ids of its requests.
    found = [d for name, d in recorder.drafts.items() if name.startswith(f"{request_id}-")]
    return found[0] if found else recorder.drafts.get(request_id, {})


def _add(request_id: str, request: RecordedRequest, *, pinned: bool) -> None:
    from vllm import SamplingParams

    from engine_adapter.vllm_engine.wire import to_extra_args

    spec = SpecDecodeParams(request.method, pinned=pinned, prediction=request.prediction)
    options = {"temperature": 0, **request.options}
    params = SamplingParams(
        **options,
        max_tokens=request.max_tokens,
        ignore_eos=True,
        extra_args=to_extra_args(spec),
    )
    prompt: dict[str, Any] = {"prompt_token_ids": list(request.prompt)}
    if request.salt is not None:
        prompt["cache_salt"] = request.salt
    _engine.add_request(request_id, prompt, params)

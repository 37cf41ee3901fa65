"""Specgate's scheduler without vLLM's part of it, and what takes it through a step."""

from types import SimpleNamespace
from typing import Any

import pytest

from engine_adapter.policies.fixed import FixedPolicy
from engine_adapter.types import NO_SWITCH, SpecDecodeParams, SpecMethod
from engine_adapter.vllm_engine.core.counting import StepTally
from engine_adapter.vllm_engine.core.quarantine import Quarantine
from engine_adapter.vllm_engine.wire import decode_request, to_extra_args

NGRAM, DRAFT = SpecMethod("ngram", 5), SpecMethod("small", 4)
CONTEXT = 100


def make_scheduler(module: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A scheduler with Specgate's state alone; vLLM's methods are replaced by what they do."""
    base = module.SpecgateScheduler.__mro__[1]

    def schedule(self: Any) -> Any:
        return self.next_output

    def update_request(self: Any, request: Any, tokens: list[int]) -> tuple[list[int], bool]:
        request.num_output_tokens += len(tokens)
        request.num_tokens += len(tokens)
        return tokens, False

    monkeypatch.setattr(base, "schedule", schedule)
    monkeypatch.setattr(
        base, "add_request", lambda self, r: self.requests.update({r.request_id: r})
    )
    monkeypatch.setattr(base, "_free_request", lambda self, request: ({"theirs": 1}, "ec"))
    monkeypatch.setattr(base, "make_spec_decoding_stats", lambda self, *a, **k: "vllm's")
    monkeypatch.setattr(base, "_update_request_with_output", update_request)
    made = object.__new__(module.SpecgateScheduler)
    made.max_model_len = CONTEXT
    made.requests = {}
    made._policy = FixedPolicy()
    made._quarantine = Quarantine()
    made._rows = {}
    made._drafting = 0
    made._last_running_switch = NO_SWITCH
    made._step = StepTally()
    made._step_began = 0.0
    made._draft_report = None
    return made


def request(
    request_id: str,
    method: SpecMethod = NGRAM,
    *,
    pinned: bool = False,
    generation: int = 0,
    prompt: int = 10,
    output: int = 0,
    max_tokens: int = 50,
    stop: list[str] | None = None,
) -> Any:
    """A request as vLLM has it, as far as it is read."""
    params = SpecDecodeParams(method, pinned, generation)
    return SimpleNamespace(
        request_id=request_id,
        sampling_params=SimpleNamespace(extra_args=to_extra_args(params), stop=stop or []),
        num_tokens=prompt + output,
        num_output_tokens=output,
        max_tokens=max_tokens,
        is_prefill_chunk=False,
    )


def admit(scheduler: Any, *requests: Any) -> None:
    """Adds the requests in turn."""
    for each in requests:
        scheduler.add_request(each)


def step(
    scheduler: Any, *request_ids: str, drafts: dict[str, int] | None = None, new: int = 0
) -> Any:
    """Schedules a step in which the drafts of `drafts` are verified."""
    drafts = drafts or {}
    scheduled = {name: 1 + drafts.get(name, 0) for name in request_ids}
    scheduler.next_output = SimpleNamespace(
        scheduled_spec_decode_tokens={name: [0] * count for name, count in drafts.items()},
        num_scheduled_tokens=scheduled,
        total_num_scheduled_tokens=sum(scheduled.values()),
        scheduled_new_reqs=[None] * new,
    )
    return scheduler.schedule()


def verify(scheduler: Any, name: str, drafted: int, accepted: int) -> None:
    """What vLLM calls when a row's drafts were verified and its tokens are known."""
    if drafted:
        scheduler.make_spec_decoding_stats(
            None,
            num_draft_tokens=drafted,
            num_accepted_tokens=accepted,
            num_invalid_spec_tokens=None,
            request_id=name,
        )
    scheduler._update_request_with_output(scheduler.requests[name], [7] * (accepted + 1))


def counts_of(scheduler: Any, name: str) -> Any:
    """The request's statistics, as they are sent."""
    stats = decode_request(scheduler._rows[name].to_wire())
    assert stats is not None
    return stats

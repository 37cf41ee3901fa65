"""Spoils up to which token a recurrent state counts, in the engine of the process that calls it."""

from typing import Any

import torch

from engine_adapter.vllm_engine.gateway.model_runner import is_v2
from tests.engine_adapter.vllm_engine.support.recorded import running_runner

_V1_METHOD, _V2_METHOD = "_update_states_after_model_execute", "postprocess_state"


def commit_a_token_too_far() -> None:
    """From now on, a row with a rejected draft continues from the state after that draft."""
    runner = running_runner()
    if is_v2():
        setattr(runner.model_state, _V2_METHOD, _too_far_on_v2(runner))
    else:
        setattr(runner, _V1_METHOD, _too_far_on_v1(runner))


def commit_what_was_accepted() -> None:
    """The engine's own method again."""
    runner = running_runner()
    if is_v2():
        delattr(runner.model_state, _V2_METHOD)
    else:
        delattr(runner, _V1_METHOD)


def _too_far_on_v1(runner: Any) -> Any:
    original = getattr(runner, _V1_METHOD)

    def too_far(sampled: Any, scheduler_output: Any) -> None:
        original(sampled, scheduler_output)
        drafts = scheduler_output.scheduled_spec_decode_tokens
        counts = runner.input_batch.num_accepted_tokens_cpu
        for row, request_id in enumerate(runner.input_batch.req_ids):
            if counts[row] <= len(drafts.get(request_id, ())):
                counts[row] += 1

    return too_far


def _too_far_on_v2(runner: Any) -> Any:
    original = getattr(runner.model_state, _V2_METHOD)

    def too_far(rows: torch.Tensor, sampled: torch.Tensor, *computed: Any) -> None:
        drafts = runner._step.scheduled.scheduled_spec_decode_tokens
        ids = runner.req_states.index_to_req_id
        drafted = torch.tensor([len(drafts.get(ids[row], ())) for row in rows.tolist()])
        original(rows, sampled + (sampled <= drafted), *computed)

    return too_far

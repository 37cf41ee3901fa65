"""Spoils up to which token a recurrent state counts, in the engine of the process that calls it."""

from typing import Any

import torch

from tests.engine_adapter.vllm_engine.support.recorded import running_runner

_METHOD = "postprocess_state"


def commit_a_token_too_far() -> None:
    """From now on, a row with a rejected draft continues from the state after that draft."""
    runner = running_runner()
    original = getattr(runner.model_state, _METHOD)

    def too_far(rows: torch.Tensor, sampled: torch.Tensor, *computed: Any) -> None:
        drafts = runner._step.scheduled.scheduled_spec_decode_tokens
        ids = runner.req_states.index_to_req_id
        drafted = torch.tensor([len(drafts.get(ids[row], ())) for row in rows.tolist()])
        original(rows, sampled + (sampled <= drafted), *computed)

    setattr(runner.model_state, _METHOD, too_far)


def commit_what_was_accepted() -> None:
    """The engine's own method again."""
    delattr(running_runner().model_state, _METHOD)

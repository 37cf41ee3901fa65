"""Spoils up to which token a recurrent state counts, in the engine of the process that calls it."""

from typing import Any

from tests.engine_adapter.vllm_engine.support.recorded import running_runner

_METHOD = "_update_states_after_model_execute"


def commit_a_token_too_far() -> None:
    """From now on, a row with a rejected draft continues from the state after that draft."""
    runner = running_runner()
    original = getattr(runner, _METHOD)

    def too_far(sampled: Any, scheduler_output: Any) -> None:
        original(sampled, scheduler_output)
        drafts = scheduler_output.scheduled_spec_decode_tokens
        counts = runner.input_batch.num_accepted_tokens_cpu
        for row, request_id in enumerate(runner.input_batch.req_ids):
            if counts[row] <= len(drafts.get(request_id, ())):
                counts[row] += 1

    setattr(runner, _METHOD, too_far)


def commit_what_was_accepted() -> None:
    """The engine's own method again."""
    delattr(running_runner(), _METHOD)

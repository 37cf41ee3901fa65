"""What EngineCore logs of the step in which it fails: sizes, and nothing of the requests.

vLLM's own dump has their stop strings, their forbidden words and the tokens of their predictions.
"""

from typing import Any

from engine_adapter.vllm_engine import compat


def patch_fatal_dump() -> None:
    """Makes vLLM's dump of a `SchedulerOutput` say only what `step_sizes` says."""
    compat.dump_input.prepare_object_to_dump = step_sizes


def step_sizes(output: Any) -> str:
    """The sizes of a step, from vLLM's `SchedulerOutput`."""
    drafts = sum(map(len, output.scheduled_spec_decode_tokens.values()))
    return (
        f"{len(output.scheduled_new_reqs)} new requests, "
        f"{len(output.scheduled_cached_reqs.req_ids)} running ones, "
        f"{output.total_num_scheduled_tokens} tokens, {drafts} of them drafts"
    )

"""Whether the drafts of a recorded run are those of a run without switches, draft by draft."""

from collections.abc import Sequence

from engine_adapter.seam.types import SpecMethod
from tests.engine_adapter.vllm_engine.support.recorded import (
    Prompt,
    RecordedEngine,
    RecordedRequest,
    RecordedRun,
)


def more_than_fit(prompts: Sequence[Prompt]) -> list[Prompt]:
    """Prompts that begin with one KV block each and grow beyond it: some are preempted.

    Args:
        prompts: the fixture `prompts`, whose last eight are long.
    """
    return [prompts[16 + i // 3][20 * (i % 3) :][:120] for i in range(14)]


def never_switched(
    engine: RecordedEngine, prompts: Sequence[Prompt], method: SpecMethod, length: int
) -> RecordedRun:
    """Runs the prompts one after the other; one proposer drafts from the start."""
    parts = []
    for prompt in prompts:
        engine.reset_prefix_cache()
        parts.append(engine.run([RecordedRequest(prompt, length, method)]))
    engine.reset_prefix_cache()
    assert not any(part.preemptions for part in parts)
    return RecordedRun(
        drafts=[part.drafts[0] for part in parts],
        outputs=[part.outputs[0] for part in parts],
        cached=[part.cached[0] for part in parts],
        preemptions=0,
        catchup={},
    )


def same_drafts(got: RecordedRun, want: RecordedRun, proposer: str) -> int:
    """Asserts that all drafts equal those of the other run; returns how many were compared."""
    compared = 0
    for i in range(len(want.outputs)):
        assert got.outputs[i] == want.outputs[i]
        expected = want.of(i, proposer)
        for length, drafts in got.of(i, proposer).items():
            if length in expected:
                most = min(len(drafts), len(expected[length]))
                assert drafts[:most] == expected[length][:most], f"at {length} of request {i}"
                compared += 1
    return compared


def check_fresh_drafts(
    engine: RecordedEngine,
    prompts: Sequence[Prompt],
    got: RecordedRun,
    method: SpecMethod,
    positions: int,
) -> None:
    """Asserts that a run's drafts are those of fresh requests whose prompts end there.

    Two runs of different steps may draft at no position of both. Here there is one fresh request
    for each draft that is compared.

    Args:
        positions: how many of each request's drafts are compared, spread over its text. Fewer are
            a failure.
    """
    for i, prompt in enumerate(prompts):
        text, made = prompt + got.outputs[i], got.of(i, method.proposer)
        assert len(made) >= positions, f"request {i} has {len(made)} drafts"
        lengths = sorted(made)
        for length in lengths[:: len(lengths) // positions][:positions]:
            engine.reset_prefix_cache()
            max_tokens = method.num_speculative_tokens + 3  # the last steps of a request draft less
            fresh = engine.run([RecordedRequest(text[: length - 1], max_tokens, method)])
            assert fresh.outputs[0][0] == text[length - 1]
            drafts = fresh.of(0, method.proposer)[length]
            most = min(len(drafts), len(made[length]))
            assert made[length][:most] == drafts[:most], f"at {length} of request {i}"

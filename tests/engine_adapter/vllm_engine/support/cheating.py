"""A choice of the draft length that depends on the sampled draft, as no policy may make it.

The control of the distribution tests. After the drafts of `CHEAT` are sampled, each is cut before
its first token that is not the likeliest of its distribution: only tokens that will probably be
accepted are verified. With a target of (1/2, 1/2) and drafts from (4/5, 1/5), the first token then
has a probability of 3/5: verification raises what a draft favours back to its share only if the
drafts that it does not favour are verified too.
"""

from typing import Any

from engine_adapter.proposers.batch import DraftBatch, Drafts
from engine_adapter.vllm_engine.worker.dispatch import ProposerDispatch
from engine_adapter.vllm_engine.worker.drafting.draft_sampling import SampledDraftStore
from tests.engine_adapter.vllm_engine.support.live import CHEAT
from tests.engine_adapter.vllm_engine.support.random_plans import (
    RandomPlanAsyncScheduler,
    RandomPlanScheduler,
)


def shortened(name: str, drafts: Drafts) -> Drafts:
    """The drafts of `CHEAT` up to their first unlikely token; those of others as they are."""
    if name != CHEAT or drafts.probabilities is None:
        return drafts
    lengths = [
        next((i for i, token in enumerate(row) if q[i, token] < q[i].max()), len(row))
        for row, q in zip(drafts.tokens, drafts.probabilities, strict=True)
    ]
    return Drafts(
        [row[:n] for row, n in zip(drafts.tokens, lengths, strict=True)],
        [q[:n] for q, n in zip(drafts.probabilities, lengths, strict=True)],
        drafts.catchup_tokens,
    )


def cut_drafts() -> None:
    """From now on the dispatch of this process cuts the drafts of `CHEAT`.

    It does not remember the first token that was cut, which verification would need.
    """
    store, draft = SampledDraftStore.store, ProposerDispatch.draft

    def store_rest(self: Any, name: str, batch: DraftBatch, drafts: Drafts) -> None:
        store(self, name, batch, shortened(name, drafts))

    def draft_rest(self: Any, name: str, batch: DraftBatch) -> Drafts:
        return shortened(name, draft(self, name, batch))

    SampledDraftStore.store = store_rest  # type: ignore[method-assign]
    ProposerDispatch.draft = draft_rest  # type: ignore[method-assign]


class Cheating:
    """Mixed into a scheduler: with one rank, the dispatch is in its process."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        cut_drafts()


class CheatingScheduler(Cheating, RandomPlanScheduler):
    """The scheduler with random plans, beside a dispatch that cheats."""


class CheatingAsyncScheduler(Cheating, RandomPlanAsyncScheduler):
    """The same that schedules asynchronously."""

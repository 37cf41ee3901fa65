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


class CheatingStore(SampledDraftStore):
    """Does not remember the first token that was cut, which verification would need."""

    def store(self, name: str, batch: DraftBatch, drafts: Drafts) -> None:
        """Stores what is left of the drafts."""
        super().store(name, batch, shortened(name, drafts))


class CheatingDispatch(ProposerDispatch):
    """The dispatch, which cuts the drafts of `CHEAT`."""

    def bind(self, runner: Any) -> None:
        """Takes the runner, with a store that forgets."""
        super().bind(runner)
        self.sampled_drafts = CheatingStore(runner, self.host.specs, self.host.constraints)

    def draft(self, name: str, batch: DraftBatch) -> Drafts:
        """The drafts, cut."""
        return shortened(name, super().draft(name, batch))

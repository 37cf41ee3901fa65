"""`draft_model`: a smaller model of the target's tokenizer drafts k tokens, greedily.

Source: speculative decoding, arXiv 2211.17192. Greedy drafts are one-hot, so they need no draft
probabilities to be verified exactly: a draft is kept with the target's probability for it.
"""

from collections.abc import Sequence

from engine_adapter.proposers.contract import (
    Capabilities,
    DraftBatch,
    DraftHost,
    DraftModel,
    Drafts,
    Method,
    ProposerSpec,
)


class DraftModelProposer:
    """Hands every batch to the draft model that the engine runs for it."""

    def __init__(self, model: DraftModel) -> None:
        self._model = model

    @property
    def weights_bytes(self) -> int:
        """See `Proposer.weights_bytes`."""
        return self._model.weights_bytes

    def propose(self, batch: DraftBatch) -> Drafts:
        """The draft model's greedy continuation of each row."""
        return self._model.draft(batch)

    def forget(self, request_ids: Sequence[str]) -> None:
        """The draft KV belongs to the engine's blocks and goes with them."""


def _validate(spec: ProposerSpec) -> None:
    """Every option is already known by name; there is none beyond the common ones."""


def _create(spec: ProposerSpec, host: DraftHost) -> DraftModelProposer:
    return DraftModelProposer(host.draft_model(spec))


METHOD = Method(
    name="draft_model",
    capabilities=Capabilities(model=True, tokenizer=True, draft_kv=True),
    default_k=4,
    options={},
    validate=_validate,
    create=_create,
)
"""The catalog's entry."""

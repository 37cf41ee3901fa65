"""`grammar`: drafts the tokens that a request's constraint forces.

Source: fast-forward tokens of llguidance, and jump-forward decoding of SGLang
(arXiv 2312.07104). Where the constraint leaves one text, as between the
values of a JSON object with a schema, this text is drafted in the tokenizer's usual tokens. It is
verified like any draft, since the target may spell the same text in other tokens.
"""

from collections.abc import Sequence

from engine_adapter.proposers.batch import DraftBatch, Drafts
from engine_adapter.proposers.contract import Capabilities, ProposerMethod


class GrammarProposer:
    """Asks each row's constraint, which has read the row. Has no state, so it never lags."""

    weights_bytes = 0

    def propose(self, batch: DraftBatch) -> Drafts:
        """The forced tokens of each row; none for a row without a constraint."""
        constraints = batch.constraints or [None] * len(batch.rows)
        return Drafts(
            [
                constraint.forced(k) if constraint is not None else []
                for constraint, k in zip(constraints, batch.k.tolist(), strict=True)
            ]
        )

    def forget(self, request_ids: Sequence[str]) -> None:
        """Nothing to drop: it has no state."""


METHOD = ProposerMethod(
    name="grammar",
    capabilities=Capabilities(constraint=True),
    default_k=8,
    options={},
    validate=lambda spec: None,
    create=lambda spec, host: GrammarProposer(),
)
"""The entry in `METHODS`."""

"""`eagle` and `eagle3`: a layer on top of the target's hidden states drafts k tokens, greedily.

Sources: EAGLE, arXiv 2401.15077; EAGLE-3, arXiv 2503.01840. A head predicts the next hidden state
from the last one and the next token, and the token after it with the output layer. EAGLE reads
the target's final hidden state; EAGLE-3 combines those of several layers, and may have an output
layer of its own over a smaller vocabulary. Greedy drafts need no draft probabilities.
"""

from engine_adapter.proposers.contract import Capabilities, DraftHost, Method, ProposerSpec
from engine_adapter.proposers.draft_model import DraftModelProposer


def _validate(spec: ProposerSpec) -> None:
    """Every option is already known by name; there is none beyond the common ones."""


def _create(spec: ProposerSpec, host: DraftHost) -> DraftModelProposer:
    return DraftModelProposer(host.draft_head(spec))


EAGLE = Method(
    name="eagle",
    capabilities=Capabilities(model=True, draft_kv=True),
    default_k=4,
    options={},
    validate=_validate,
    create=_create,
)
"""The catalog's entry for EAGLE heads."""

EAGLE3 = Method(
    name="eagle3",
    capabilities=Capabilities(model=True, draft_kv=True),
    default_k=4,
    options={},
    validate=_validate,
    create=_create,
)
"""The catalog's entry for EAGLE-3 heads."""

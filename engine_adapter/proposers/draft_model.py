"""`draft_model`: a smaller model of the target's tokenizer drafts k tokens, greedily or sampled.

Source: speculative decoding, arXiv 2211.17192. Greedy drafts are one-hot, so they need no draft
probabilities to be verified exactly: a draft is kept with the target's probability for it.
"""

from collections.abc import Sequence

from engine_adapter.proposers import draft_options
from engine_adapter.proposers.batch import DraftBatch, Drafts
from engine_adapter.proposers.contract import (
    Capabilities,
    DraftHost,
    DraftModel,
    ProposerMethod,
    ProposerSpec,
    TargetSizes,
)

TENSOR_PARALLEL_SIZE = "draft_tensor_parallel_size"
"""The option for the ranks that share each layer: 1, or the target's, which is the default."""


class DraftModelProposer:
    """Hands every batch to the draft model that the engine runs for it."""

    def __init__(self, model: DraftModel) -> None:
        self._model = model

    @property
    def weights_bytes(self) -> int:
        """See `Proposer.weights_bytes`."""
        return self._model.weights_bytes

    def propose(self, batch: DraftBatch) -> Drafts:
        """The draft model's continuation of each row."""
        return self._model.draft(batch)

    def forget(self, request_ids: Sequence[str]) -> None:
        """The draft KV belongs to the engine's blocks and goes with them."""


def _validate(spec: ProposerSpec) -> None:
    draft_options.validate(spec)
    size = spec.options[TENSOR_PARALLEL_SIZE]
    if size is not None and (type(size) is not int or size < 1):
        raise ValueError(f"{TENSOR_PARALLEL_SIZE} must be an integer of at least 1, got {size!r}")


def _check(spec: ProposerSpec, target: TargetSizes) -> None:
    size, whole = spec.options[TENSOR_PARALLEL_SIZE], target.tensor_parallel_size
    if size not in (None, 1, whole):
        raise ValueError(f"{TENSOR_PARALLEL_SIZE} must be 1 or the target's {whole}, got {size}")


def _create(spec: ProposerSpec, host: DraftHost) -> DraftModelProposer:
    return DraftModelProposer(host.draft_model(spec))


METHOD = ProposerMethod(
    name="draft_model",
    capabilities=Capabilities(model=True, tokenizer=True, draft_kv=True),
    default_k=4,
    options={**draft_options.OPTIONS, TENSOR_PARALLEL_SIZE: None},
    validate=_validate,
    create=_create,
    check=_check,
)
"""The catalog's entry."""

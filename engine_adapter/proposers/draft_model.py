"""`draft_model`: a smaller model drafts k tokens, greedily or sampled.

It has the target's tokenizer, or its vocabulary is mapped: see `vocabulary_map`.

Source: speculative decoding, arXiv 2211.17192. The engine runs the model, so its
`DraftHost.draft_model` is the proposer. Greedy drafts have one-hot distributions: each is accepted
with the target's probability for it, so exact verification needs no draft probabilities.
"""

from engine_adapter.proposers import draft_options
from engine_adapter.proposers.contract import (
    Capabilities,
    OptionError,
    ProposerMethod,
    ProposerSpec,
    TargetSizes,
)
from engine_adapter.proposers.vocabulary_map import HETEROGENEOUS_VOCAB
from engine_adapter.seam.text import short_repr

TENSOR_PARALLEL_SIZE = "draft_tensor_parallel_size"
"""The option for the number of ranks that share each layer: 1, or the target's (the default)."""


def _validate(spec: ProposerSpec) -> None:
    draft_options.validate(spec)
    size = spec.options[TENSOR_PARALLEL_SIZE]
    if size is not None and (type(size) is not int or size < 1):
        message = f"must be an integer of at least 1, got {short_repr(size)}"
        raise OptionError(TENSOR_PARALLEL_SIZE, message)
    if type(mapped := spec.options[HETEROGENEOUS_VOCAB]) is not bool:
        raise OptionError(HETEROGENEOUS_VOCAB, f"must be true or false, got {short_repr(mapped)}")


def _check(spec: ProposerSpec, target: TargetSizes) -> None:
    size, ranks = spec.options[TENSOR_PARALLEL_SIZE], target.tensor_parallel_size
    if size not in (None, 1, ranks):
        raise OptionError(TENSOR_PARALLEL_SIZE, f"must be 1 or the target's {ranks}, got {size}")


METHOD = ProposerMethod(
    name="draft_model",
    capabilities=Capabilities(model=True, tokenizer=True, draft_kv=True),
    default_k=4,
    options={**draft_options.OPTIONS, TENSOR_PARALLEL_SIZE: None, HETEROGENEOUS_VOCAB: False},
    validate=_validate,
    create=lambda spec, host: host.draft_model(spec),
    check=_check,
)
"""The entry in `METHODS`."""

"""`suffix`: suffix decoding. Drafts from a suffix tree of the row and one of all outputs.

Source: arXiv 2411.04975. The last tokens of the row are looked up in both trees. The draft is the
most likely continuation there; of the two, the one with the better score wins. It is at most
`suffix_decoding_max_spec_factor` times as long as the match. The trees are those of Arctic
Inference (package `arctic-inference`), which keeps the outputs of ended requests.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine_adapter.proposers.batch import DraftBatch, Drafts
from engine_adapter.proposers.contract import (
    Capabilities,
    DraftHost,
    OptionError,
    ProposerMethod,
    ProposerSpec,
)
from engine_adapter.seam.text import short_repr

if TYPE_CHECKING:
    from arctic_inference.suffix_decoding import SuffixDecodingCache


class SuffixProposer:
    """Adds each row's new tokens to the trees, then drafts from them.

    The new tokens are all since its last call for the row. So the trees do not depend on whether
    another proposer drafted for the row in between.
    """

    weights_bytes = 0

    def __init__(
        self,
        cache: "SuffixDecodingCache",
        max_spec_factor: float,
        min_token_prob: float,
    ) -> None:
        self._cache = cache
        self._max_spec_factor = max_spec_factor
        self._min_token_prob = min_token_prob
        self._fed: dict[str, int] = {}

    def propose(self, batch: DraftBatch) -> Drafts:
        """The most likely continuation of each row, by its own tree or the shared one."""
        count = len(batch.request_ids)
        caught_up = sum(self._feed(batch, i) for i in range(count))
        return Drafts([self._speculate(batch, i) for i in range(count)], None, caught_up)

    def forget(self, request_ids: Sequence[str]) -> None:
        """Frees the requests' own trees. Their outputs stay in the shared tree."""
        for request_id in request_ids:
            if self._fed.pop(request_id, None) is not None:
                self._cache.stop_request(request_id)

    def _feed(self, batch: DraftBatch, i: int) -> int:
        """Adds the row's new tokens to the trees. Returns the lag that this removed, in tokens."""
        request_id, tokens = batch.request_ids[i], batch.context(i)
        fed = self._fed.get(request_id)
        if fed is None:
            fed = int(batch.num_prompt_tokens[i])
            # Copies: the batch's arrays are read only, which the library does not accept.
            self._cache.start_request(request_id, tokens[:fed].copy())
        self._cache.add_active_response(request_id, tokens[fed:].copy())
        self._fed[request_id] = len(tokens)
        return max(int(batch.num_computed[i]) - fed, 0)

    def _speculate(self, batch: DraftBatch, i: int) -> Sequence[int]:
        drafted: Sequence[int] = self._cache.speculate(
            batch.request_ids[i],
            batch.prefix(i)[-self._cache.max_tree_depth :].copy(),
            max_spec_tokens=int(batch.k[i]),
            max_spec_factor=self._max_spec_factor,
            min_token_prob=self._min_token_prob,
        ).token_ids
        return drafted


def _validate(spec: ProposerSpec) -> None:
    def check(name: str, kinds: tuple[type, ...], low: float, high: float) -> None:
        value = spec.options[name]
        if type(value) not in kinds or not low <= value <= high:
            raise OptionError(name, f"must be a number in [{low}, {high}], got {short_repr(value)}")

    check("suffix_decoding_max_tree_depth", (int,), 1, 4096)
    check("suffix_decoding_max_cached_requests", (int,), 0, 2**31 - 1)
    check("suffix_decoding_max_spec_factor", (int, float), 0, 100)
    check("suffix_decoding_min_token_prob", (int, float), 0, 1)


def _create(spec: ProposerSpec, host: DraftHost) -> SuffixProposer:
    from arctic_inference.suffix_decoding import SuffixDecodingCache

    return SuffixProposer(
        SuffixDecodingCache(
            max_tree_depth=spec.options["suffix_decoding_max_tree_depth"],
            max_cached_requests=spec.options["suffix_decoding_max_cached_requests"],
        ),
        spec.options["suffix_decoding_max_spec_factor"],
        spec.options["suffix_decoding_min_token_prob"],
    )


METHOD = ProposerMethod(
    name="suffix",
    capabilities=Capabilities(continues=True),
    default_k=8,
    options={
        "suffix_decoding_max_tree_depth": 24,
        "suffix_decoding_max_cached_requests": 10_000,
        "suffix_decoding_max_spec_factor": 1.0,
        "suffix_decoding_min_token_prob": 0.1,
    },
    validate=_validate,
    create=_create,
)
"""The entry in `METHODS`; the options' defaults are vLLM's."""

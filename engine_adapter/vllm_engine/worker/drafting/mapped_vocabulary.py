"""A draft model's vocabulary as the target's: its inputs and its logits are mapped, nothing else.

Samplers, constraints and the verifier see one vocabulary, the target's. The logits of tokens that
the draft model lacks are -inf before anything is drawn, so these tokens are never drafted, and the
distribution of a sampled draft is one over the target's tokens.
"""

from typing import Any

import torch
from torch.nn import functional

from engine_adapter.proposers.contract import ProposerSpec
from engine_adapter.proposers.vocabulary_map import (
    HETEROGENEOUS_VOCAB,
    NO_TOKEN,
    VocabularyMap,
    load_tokenizer,
    map_vocabularies,
)


class SameVocabulary:
    """That of a draft model with the target's tokenizer; only the widths of logits may differ.

    Args:
        size: V, the target's tokens.
    """

    def __init__(self, size: int) -> None:
        self._size = size

    @staticmethod
    def inputs(tokens: torch.Tensor) -> torch.Tensor:
        """See `MappedVocabulary.inputs`."""
        return tokens

    def logits(self, logits: torch.Tensor) -> torch.Tensor:
        """See `MappedVocabulary.logits`."""
        missing = self._size - logits.shape[1]
        if missing > 0:
            return functional.pad(logits, (0, missing), value=float("-inf"))
        return logits[:, : self._size] if missing else logits


class MappedVocabulary:
    """The tensors of a `VocabularyMap`, of a target with V tokens and a draft model with D.

    Args:
        vocabulary_map: the map.
        draft_size: D.
        device: where the draft model runs.
    """

    def __init__(
        self, vocabulary_map: VocabularyMap, draft_size: int, device: torch.device
    ) -> None:
        self._inputs = torch.from_numpy(vocabulary_map.inputs).to(device)
        outputs = torch.from_numpy(vocabulary_map.outputs)
        # After the draft model's logits there is one column more, of -inf.
        self._columns = torch.where(outputs == NO_TOKEN, draft_size, outputs).to(device)
        self._draft_size = draft_size

    def inputs(self, tokens: torch.Tensor) -> torch.Tensor:
        """The draft model's tokens for the target's, int [T] -> int64 [T]."""
        return self._inputs[tokens.long()]

    def logits(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits over the draft model's tokens, [N, D or more], as those over the target's, [N, V].

        -inf for tokens that the draft model lacks.
        """
        draft_logits = logits[:, : self._draft_size]
        missing = self._draft_size + 1 - draft_logits.shape[1]
        padded = functional.pad(draft_logits, (0, missing), value=float("-inf"))
        return padded.index_select(1, self._columns)


def map_draft_vocabulary(
    spec: ProposerSpec, target: Any, draft: Any, device: torch.device
) -> MappedVocabulary | SameVocabulary:
    """The vocabulary of a proposer's model: a mapped one, if it may have another tokenizer.

    Every rank computes the same.

    Args:
        target: vLLM's `ModelConfig` of the target.
        draft: that of the draft model.

    Raises:
        OptionError: too few tokens map.
    """
    if not spec.options.get(HETEROGENEOUS_VOCAB):
        return SameVocabulary(target.get_vocab_size())
    trust = target.trust_remote_code
    tokenizers = (
        load_tokenizer(target.tokenizer, target.tokenizer_revision, trust_remote_code=trust),
        load_tokenizer(draft.model, draft.revision, trust_remote_code=trust),
    )
    draft_size = draft.get_vocab_size()
    vocabulary_map = map_vocabularies(*tokenizers, target.get_vocab_size(), draft_size)
    return MappedVocabulary(vocabulary_map, draft_size, device)

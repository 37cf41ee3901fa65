"""The confidence gate: a row's draft ends before the first token that will probably be rejected.

At each position the model has a distribution over the next token; the highest probability in it is
the model's confidence there. The confidence of a path is the product of the confidences up to a
position, as in EAGLE-2 (arXiv 2406.16858), which found it close to the chance that the target
accepts so far. A position is drafted only where this product is at least a threshold. The
distribution is that of the logits before the request's temperature, top-k and top-p: at a low
temperature a draft would seem sure wherever it is. To stop by
the draft's own probability is also the rule of DISCO (arXiv 2405.04304) and SpecDec++ (arXiv
2405.19715), with trained predictors, and of Hugging Face's `assistant_confidence_threshold`, which
looks at one token instead of the path.

The output keeps the target's distribution. Greedy drafts, and those of rows with a seed, are
verified by exact match, which is exact for any drafts. For drafts sampled from q: whether position
i is drafted is a function of the logits at the positions up to i, so of the committed text and of
the drafts before i. It does not depend on the token that is drawn at i: where the gate closes, the
token is dropped unseen. So given the drafts before i, either nothing is drafted at i, or a
token that has exactly the stated q. The token rule needs no more: if all drafts before i are
accepted, the token at i is a sample of p, or the accepted or replaced draft, which has the
distribution p too. The block rule (`rejection`) accepts the first i drafts with a chance whose
mean, over what is drafted later, is w_i. With the formula for a position before the last one this
follows from the same equation at i + 1, and at the last position w_i is the chance itself. So its
induction, from the ends of the drafts to their beginnings, holds at every end that depends on the
drafts before it only.

A rule that decides by the token that was drawn whether to drop it is not exact: the tokens that are
left no longer have the distribution q (`tests/engine_adapter/vllm_engine/support/cheating.py` does
this, and the distribution test detects it).
"""

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import torch

from engine_adapter.proposers.batch import Drafts
from engine_adapter.proposers.staging import to_device


@dataclass(frozen=True, slots=True)
class ConfidenceGate:
    """Where the drafts of R rows end, in one step. It follows the draws, depth by depth.

    `add` changes the tensors in place, which selections of rows share.

    Attributes:
        threshold: of the product of confidences, above 0.
        rows: each row's index in the tensors, int [R].
        path: float32, the product so far, on the device.
        lengths: int64, how many tokens each row drafts, as far as they have been drawn.
        is_readable: reading `path` costs no wait for the device, and no rank could read another
            value. If not, all rows draft to their ends, and only `cut` shortens their drafts.
    """

    threshold: float
    rows: npt.NDArray[np.intp]
    path: torch.Tensor
    lengths: torch.Tensor
    is_readable: bool
    _indexed: list[tuple[npt.NDArray[np.intp], torch.Tensor]] = field(
        default_factory=list, init=False, compare=False
    )

    @classmethod
    def new(
        cls, threshold: float, count: int, device: torch.device, *, is_readable: bool
    ) -> "ConfidenceGate":
        """The gate for `count` rows before their first draft."""
        path = torch.ones(count, dtype=torch.float32, device=device)
        lengths = torch.zeros(count, dtype=torch.int64, device=device)
        return cls(threshold, np.arange(count), path, lengths, is_readable)

    def add(self, rows: npt.NDArray[np.intp], logits: torch.Tensor) -> None:
        """Takes the next position of N rows.

        Args:
            rows: indices among the R rows, [N].
            logits: [N, V], as the requests' options leave them.
        """
        logits_f32 = logits.float()
        confidence = (logits_f32.amax(dim=-1) - logits_f32.logsumexp(dim=-1)).exp()
        index = self._index(rows)
        path = self.path[index] * confidence
        self.path[index] = path
        self.lengths[index] += path >= self.threshold

    def _index(self, rows: npt.NDArray[np.intp]) -> torch.Tensor:
        """Where N rows are in the tensors. Rows that begin those of the last call are known."""
        if not self._indexed or not np.array_equal(self._indexed[0][0][: len(rows)], rows):
            (index,) = to_device(self.path.device, self.rows[rows])
            self._indexed[:] = [(rows.copy(), index)]
        return self._indexed[0][1][: len(rows)]

    def is_open(self, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.bool_] | None:
        """Which of N rows draft further, bool [N]; `None` if it is not readable."""
        if not self.is_readable:
            return None
        is_open: npt.NDArray[np.bool_] = self.path.numpy()[self.rows[rows]] >= self.threshold
        return is_open

    def cut(self, drafts: Drafts) -> Drafts:
        """The drafts of the R rows, each up to where the gate closed."""
        lengths = self.lengths.cpu().numpy()[self.rows].tolist()
        tokens = [row[:n] for row, n in zip(drafts.tokens, lengths, strict=True)]
        probabilities = drafts.probabilities
        if probabilities is not None:
            pairs = zip(probabilities, lengths, strict=True)
            probabilities = [None if q is None else q[:n] for q, n in pairs]
        return replace(drafts, tokens=tokens, probabilities=probabilities)

    def select(self, index: npt.NDArray[np.intp]) -> "ConfidenceGate":
        """The gate for the rows at `index`, which this one follows too."""
        return replace(self, rows=self.rows[index])

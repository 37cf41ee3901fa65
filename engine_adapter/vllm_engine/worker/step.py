"""What the target did in a step, as far as drafting after it needs to know."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch


@dataclass(frozen=True, slots=True)
class TargetStep:
    """The outcome of one step of the target, over the rows of the batch.

    Attributes:
        scheduled: request id -> tokens that the target read in this step.
        sampled: for each row of the batch, the tokens it emitted; none in mid-prompt.
        draft_counts: for each row, how many drafts the step verified.
        sample_hidden: [T + B, H], the final hidden state of every position that was sampled:
            of each row those of its T_i drafts, then one more.
    """

    scheduled: Mapping[str, int]
    sampled: Sequence[Sequence[int]]
    draft_counts: Sequence[int]
    sample_hidden: torch.Tensor

    def last_hidden(self, rows: npt.NDArray[np.intp]) -> torch.Tensor:
        """The hidden state from which each row's newest token was sampled, [R, H].

        The rows must have emitted tokens.
        """
        sizes = np.asarray(self.draft_counts) + 1
        starts = np.cumsum(sizes) - sizes
        emitted = np.array([len(self.sampled[row]) for row in rows])
        last = torch.from_numpy(starts[rows] + emitted - 1)
        return self.sample_hidden[last.to(self.sample_hidden.device)]

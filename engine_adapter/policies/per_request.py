"""`per_request`: divide and conquer. Each row has the proposer that is best for itself.

Source: vLLM pull request 7947. Every row takes the proposer with the most accepted tokens at the
current price. All rows wait for all proposers of the step, so a proposer must gain more over the
rows that chose it than the batch loses while it runs; otherwise its rows choose again without it.
Unlike `auto` it neither tries a lookup before a model nor weighs the lengths of all rows
against each other.
"""

import numpy as np

from engine_adapter.policies.choice import Chooser
from engine_adapter.policies.choice_types import NOTHING, Choice
from engine_adapter.policies.goodput import GoodputPolicy


class PerRequestPolicy(GoodputPolicy):
    """Plans each row by itself; the guard and the probes are those of `auto`."""

    def _pick(self, chooser: Chooser) -> Choice:
        values = chooser.values()
        costs = chooser.call_costs()
        open_ = np.ones(values.shape[1], np.bool_)
        while True:
            candidates = np.where(open_, values, 0.0)
            best = candidates.argmax(axis=1)
            gain = candidates[np.arange(len(best)), best]
            best = np.where(gain > 0, best, NOTHING)
            totals = np.array([gain[best == j].sum() for j in range(len(open_))])
            losing = (totals > 0) & (totals <= costs)
            if not losing.any():
                return chooser.at_price(best)
            # The one that loses most leaves first: the others may gain its rows.
            open_[int(np.where(losing, costs - totals, -np.inf).argmax())] = False

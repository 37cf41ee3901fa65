"""`per_request`: divide and conquer. Each row has the proposer that is best for itself.

Source: vLLM pull request 7947. Every row takes the proposer with the most accepted tokens at the
current price. All rows wait for all proposers of the step, so proposers come one by one, that
which adds most first, as long as the rows that take the next gain more by it than its call costs.
Unlike `auto` it neither tries a lookup before a model nor weighs the lengths of all rows
against each other.
"""

import numpy as np

from engine_adapter.policies.acceptance import Floats, Ints
from engine_adapter.policies.choice import Chooser
from engine_adapter.policies.choice_types import NOTHING, Choice
from engine_adapter.policies.goodput import GoodputPolicy


class PerRequestPolicy(GoodputPolicy):
    """Plans each row by itself; the guard and the probes are those of `auto`."""

    def _pick(self, chooser: Chooser) -> Choice:
        return chooser.at_price(divide_rows(chooser.values(), chooser.call_costs()))


def divide_rows(values: Floats, costs: Floats) -> Ints:
    """Each row's proposer, or `NOTHING`, [R].

    Args:
        values: tokens that each proposer gains for each row, [R, J].
        costs: each proposer's call in tokens, [J].
    """
    gain = np.zeros(len(values))
    proposer = np.full(len(values), NOTHING)
    while True:
        added = np.maximum(values - gain[:, None], 0.0).sum(axis=0) - costs
        best = int(added.argmax())
        if added[best] <= 0:
            return proposer
        proposer = np.where(values[:, best] > gain, best, proposer)
        gain = np.maximum(values[:, best], gain)

"""The choice that maximizes tokens per second: proposers and draft lengths for all rows of a step.

Maximized is, over all choices of proposer and length for each row,

    rate = (B + sum of expected accepted tokens) / (target's time + proposers' times)

with B rows. Source: goodput from TurboSpec (arXiv 2406.14066), there for one proposer and one
length; the ratio is maximized as by Dinkelbach (1967): with the rate of the plan before, `rate`, a
second is worth `rate` tokens, and a verified token that costs `price` tokens' worth of time is
drafted only if it is accepted with a higher chance.

1. Each row has its best lookup proposer, at the price.
2. A proposer with a model drafts for a row by itself, or where the lookup that goes best before it
   finds nothing. It is used if what it gains over all rows pays for its passes. A second one
   follows by the same rule.
3. The lengths are chosen for all rows together: all positions of all rows that are accepted with at
   least a chance, and of `THRESHOLDS` chances the one with the highest rate. Chances fall along a
   row, so each row gets a prefix of its draft.
"""

import numpy as np
import numpy.typing as npt

from engine_adapter.policies.acceptance import Floats, Ints
from engine_adapter.policies.choice_types import NOTHING, Choice, Load, Prices
from engine_adapter.policies.evidence import Evidence, Outlook

HORIZON = 64
"""The most steps over which the costs of a catch-up are spread."""

THRESHOLDS = 64
"""How many chances of acceptance are tried as the one up to which tokens are drafted."""


class Chooser:
    """Chooses for one step.

    Args:
        evidence: acceptance and times.
        outlook: the expectations of its rows and proposers.
        load: the step.
        prices: from the plan before.
    """

    def __init__(self, evidence: Evidence, outlook: Outlook, load: Load, prices: Prices) -> None:
        self._evidence = evidence
        self._outlook = outlook
        self._load = load
        self._prices = prices
        lookup = [evidence.traits(int(i)).lookup for i in outlook.proposers]
        self._lookups = np.flatnonzero(lookup)
        self._models = np.flatnonzero(np.logical_not(lookup))
        shown = [int(i) in prices.shown for i in outlook.proposers]
        self._bonus = np.where(shown, prices.bonus, 1.0)
        self._row = np.arange(len(outlook.limit))
        times = [evidence.draft_times[int(i)].fit.weights for i in outlook.proposers]
        self._times = np.array(times).reshape(len(times), 5)
        # A catch-up pays for the rest of the request, as far as that can be seen.
        self._catchup = outlook.lag / np.clip(outlook.limit / 2, 1, HORIZON)[:, None]
        self._lengths = (outlook.survival > self._token_prices()[:, None]).sum(axis=2)

    def plain(self) -> Choice:
        """Plain decoding of every row."""
        nothing, zero = np.full_like(self._row, NOTHING), np.zeros_like(self._row)
        rate = self._load.rows / float(self._target_seconds(np.zeros(1))[0])
        price = self._marginal_price(rate, 0.0)
        return Choice(nothing, zero, nothing, zero, rate, price)

    def models_by_gain(self) -> list[int]:
        """The proposers with a model, the one that gains most over all rows first."""
        gains = np.maximum(self.values()[:, self._models], 0.0).sum(axis=0)
        gains -= self.call_costs()[self._models]
        return [int(self._outlook.proposers[self._models[i]]) for i in np.argsort(-gains)]

    def best(self) -> Choice:
        """The choice with the highest rate, plain decoding included."""
        values = self.values()
        first, value = self._best_lookups(values)
        nothing = np.full(len(first), NOTHING)
        choices = [self.plain()]
        if len(self._lookups):
            choices.append(self._with_lengths(first, nothing))
        with_models = self._add_models(values, first, value)
        if with_models is not None:
            choices.append(self._with_lengths(*with_models))
        return max(choices, key=lambda choice: choice.rate)

    def values(self) -> Floats:
        """Tokens that each proposer gains for each row, less what its row costs, [R, J]."""
        outlook, times, rate = self._outlook, self._times, self._prices.rate
        gains = np.maximum(outlook.survival - self._token_prices()[:, None], 0.0)
        values: Floats = (outlook.offer * gains).sum(axis=2)
        values -= rate * (times[:, 1] + times[:, 4] * self._catchup)
        return values

    def call_costs(self) -> Floats:
        """Each proposer's call and passes in tokens, [J]."""
        passes = self._lengths.max(axis=0)
        costs: Floats = self._prices.rate * (self._times[:, 0] + self._times[:, 2] * passes)
        return costs

    def at_price(self, first: Ints) -> Choice:
        """Each row's proposer, with as many tokens as pay at the price of the plan before."""
        chance, weight = self._positions(first, None)
        k = (chance > self._prices.token).sum(axis=1)
        first = np.where(k > 0, first, NOTHING)
        weight = np.where(np.arange(chance.shape[1]) < k[:, None], weight, 0.0)
        missed = np.where(first == NOTHING, 1.0, 0.0)
        nothing, zero = np.full_like(first, NOTHING), np.zeros_like(first)
        seconds = float(self._target_seconds(np.array([weight.sum()]))[0])
        draft_seconds = self._draft_seconds(first, nothing, missed)
        rate = (self._load.rows + float((weight * chance).sum())) / (seconds + draft_seconds)
        price = self._marginal_price(rate, float(weight.sum()))
        return Choice(first, k, nothing, zero, rate, price)

    def _token_prices(self) -> Floats:
        """The chance of acceptance at which a token of each proposer pays, [J]."""
        prices: Floats = self._prices.token + self._prices.rate * self._times[:, 3]
        return prices

    def _target_seconds(self, tokens: Floats) -> Floats:
        """The target's time with so many draft tokens, [N]."""
        load = self._load
        return self._evidence.step_time.seconds(load.rows, load.tokens + tokens, load.context)

    def _best_lookups(self, values: Floats) -> tuple[Ints, Floats]:
        """Each row's best lookup or `NOTHING`, and its value, [R]."""
        if not len(self._lookups):
            return np.full_like(self._row, NOTHING), np.zeros(len(values))
        best = self._lookups[(values * self._bonus)[:, self._lookups].argmax(axis=1)]
        value = values[self._row, best]
        return np.where(value > 0, best, NOTHING), np.maximum(value, 0.0)

    def _add_models(self, values: Floats, first: Ints, value: Floats) -> tuple[Ints, Ints] | None:
        """Each row's first and second proposer; `None` if no model pays.

        Args:
            values: of each proposer for each row, [R, J].
            first, value: each row's best lookup without a model, and its value, [R].
        """
        alone = values[:, self._models]
        lookups, after, missed = self._chains(values)
        by_itself = (alone > after) | (lookups == NOTHING)
        best = np.maximum(alone, after)
        second = np.full_like(first, NOTHING)
        used: list[int] = []
        while len(used) < len(self._models):
            gain = np.maximum(best - value[:, None], 0.0)
            net = gain.sum(axis=0) - self._fixed_costs(gain > 0, by_itself, missed)
            net += (self._bonus[self._models] - 1) * gain.sum(axis=0)
            net[used] = -np.inf
            at = int(net.argmax())
            if net[at] <= 0:
                break
            rows, own = gain[:, at] > 0, by_itself[:, at]
            model = self._models[at]
            first = np.where(rows, np.where(own, model, lookups[:, at]), first)
            second = np.where(rows, np.where(own, NOTHING, model), second)
            value = value + gain[:, at]
            used.append(at)
        return (first, second) if used else None

    def _chains(self, values: Floats) -> tuple[Ints, Floats, Floats]:
        """The lookup that goes best before each model, for each row.

        A lookup that rarely finds a draft may go better before a model than one that finds many
        poor ones, although it is worth less by itself.

        Returns:
            The lookups, or `NOTHING`; the values of lookup and model together; and the chances
            that the lookup finds nothing, each [R, M].
        """
        alone = np.maximum(values[:, self._models], 0.0)
        if not len(self._lookups):
            return np.full(alone.shape, NOTHING), np.full(alone.shape, -np.inf), np.ones_like(alone)
        missed = 1 - self._outlook.offer[:, self._lookups, 0]
        chains = values[:, self._lookups, None] + missed[:, :, None] * alone[:, None, :]
        preferred = np.where(chains > 0, chains * self._bonus[self._lookups, None], chains)
        best = preferred.argmax(axis=1)
        after = np.take_along_axis(chains, best[:, None, :], axis=1)[:, 0]
        return self._lookups[best], after, np.take_along_axis(missed, best, axis=1)

    def _fixed_costs(
        self, rows: npt.NDArray[np.bool_], by_itself: npt.NDArray[np.bool_], missed: Floats
    ) -> Floats:
        """Each model's call and passes in tokens, times the chance that any row needs it, [M]."""
        found = np.where(rows, np.where(by_itself, 0.0, 1 - missed), 1.0)
        needed = 1 - found.prod(axis=0)
        costs: Floats = needed * self.call_costs()[self._models]
        return costs

    def _with_lengths(self, first: Ints, second: Ints) -> Choice:
        """The lengths that maximize the rate; see the head of the module."""
        first_chance, first_weight = self._positions(first, None)
        missed = self._missed(first)
        chances, weights = first_chance, first_weight
        second_chance = None
        if (second != NOTHING).any():
            second_chance, second_weight = self._positions(second, missed)
            chances = np.concatenate((first_chance, second_chance))
            weights = np.concatenate((first_weight, second_weight))
        # The likeliest positions come first: all with a chance above a threshold.
        bins = (chances.ravel() * THRESHOLDS).astype(np.intp)
        drafted = np.bincount(bins, weights.ravel(), THRESHOLDS)[:0:-1].cumsum()
        gained = np.bincount(bins, (weights * chances).ravel(), THRESHOLDS)[:0:-1].cumsum()
        seconds = self._target_seconds(drafted) + self._draft_seconds(first, second, missed)
        rates = (self._load.rows + gained) / seconds
        best = int(rates.argmax())
        threshold = (THRESHOLDS - 1 - best) / THRESHOLDS
        price = self._marginal_price(float(rates[best]), float(drafted[best]))
        first_k = (first_chance >= threshold).sum(axis=1)
        second_k = np.zeros_like(first_k)
        if second_chance is not None:
            second_k = (second_chance >= threshold).sum(axis=1)
            # A first proposer without a position is none; a second one then takes its place.
            empty = first_k == 0
            first = np.where(empty, second, first)
            first_k = np.where(empty, second_k, first_k)
            second = np.where(empty | (second_k == 0), NOTHING, second)
        first = np.where(first_k == 0, NOTHING, first)
        return Choice(first, first_k, second, second_k, float(rates[best]), price)

    def _marginal_price(self, rate: float, drafted: float) -> float:
        """The tokens that the time of the last verified token is worth.

        The tokens before it cost no more, so a draft in the flat part of the time's curve is not
        refused for the price beyond it.
        """
        last = self._target_seconds(np.array([max(drafted - 1, 0.0), max(drafted, 1.0)]))
        return rate * float(last[1] - last[0])

    def _missed(self, first: Ints) -> Floats:
        """The chance that each row's first proposer finds nothing; 1 without one, [R]."""
        found = self._outlook.offer[self._row, first, 0]
        return np.where(first == NOTHING, 1.0, 1 - found)

    def _positions(self, proposer: Ints, share: Floats | None) -> tuple[Floats, Floats]:
        """The chance of acceptance of each position, and the chance that it is drafted, [R, K].

        `share`: the chance that the proposer is asked at all, [R]; `None` is 1.
        """
        chance = self._outlook.survival[self._row, proposer]
        chance[proposer == NOTHING] = 0.0
        weight = self._outlook.offer[self._row, proposer]
        return chance, weight if share is None else weight * share[:, None]

    def _draft_seconds(self, first: Ints, second: Ints, missed: Floats) -> float:
        """The proposers' time, with the lengths that the price of the plan before gives."""
        used = np.bincount(first + 1, minlength=len(self._times) + 1)[1:]
        used = used + np.bincount(second + 1, minlength=len(self._times) + 1)[1:]
        total = 0.0
        for j in np.flatnonzero(used):
            call, per_row, per_pass, per_token, per_catchup = self._times[j].tolist()
            mine, later = first == j, second == j
            rows = mine | later
            expected = float(mine.sum() + missed[later].sum())
            needed = 1.0 if mine.any() else 1 - float((1 - missed[later]).prod())
            lengths = self._lengths[rows, j]
            total += needed * (call + per_pass * int(lengths.max()))
            total += expected * (per_row + per_token * float(lengths.mean()))
            if per_catchup:
                total += per_catchup * float(self._catchup[rows, j].sum())
        return total

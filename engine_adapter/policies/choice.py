"""The choice that maximizes tokens per second: proposers and draft lengths for all rows of a step.

It maximizes, over all choices of proposer and length for each row,

    rate = (B + sum of expected accepted tokens) / (target's time + proposers' times)

with B rows. Source: goodput from TurboSpec (arXiv 2406.14066), there for one proposer and one
length; the ratio is maximized as by Dinkelbach (1967): with the rate of the plan before, `rate`, a
second is worth `rate` tokens. Verifying one more token takes time that is worth `price` tokens, so
it is drafted only if its chance of acceptance is higher.

1. Each row has its best lookup proposer, at the price.
2. A proposer with a model drafts for a row by itself, or where the lookup that goes best before it
   finds nothing better: a lookup's draft whose length says that it is worth less is dropped. The
   model is used if what it gains over all rows pays for its passes. A second one follows by the
   same rule.
3. The lengths are chosen for all rows together: all positions of all drafts that can come and are
   accepted with at least a chance, and of `THRESHOLDS` chances the one with the highest rate.
   Chances fall along a draft, so a prefix of it is verified.
"""

import numpy as np
import numpy.typing as npt

from engine_adapter.policies.acceptance import Floats, Ints
from engine_adapter.policies.choice_types import NOTHING, Chains, Choice, Load, Prices
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
        self._row = np.arange(len(outlook.remaining))
        times = [evidence.draft_times[int(i)].fit.weights for i in outlook.proposers]
        self._times = np.array(times).reshape(len(times), 5)
        # A catch-up pays for the rest of the request, as far as that can be seen.
        self._catchup = outlook.lag / np.clip(outlook.remaining / 2, 1, HORIZON)[:, None]
        self._of = outlook.cases.proposer
        self._starts = np.searchsorted(self._of, np.arange(len(times)))
        over = outlook.survival - self._token_prices()[self._of, None]
        reached = outlook.reach * (over > 0)
        self._gains = (over * reached).sum(axis=2)
        self._lengths = np.maximum.reduceat((over > 0).sum(axis=2), self._starts, axis=1)
        self._tokens = np.maximum.reduceat(reached.sum(axis=2), self._starts, axis=1)

    def plain(self) -> Choice:
        """Plain decoding of every row."""
        nothing, zero = np.full_like(self._row, NOTHING), np.zeros_like(self._row)
        rate = self._load.rows / float(self._target_seconds(np.zeros(1))[0])
        price = self._marginal_price(rate, 0.0)
        keeps = np.zeros((len(nothing), self._outlook.survival.shape[2] + 1), np.intp)
        return Choice(nothing, zero, keeps, nothing, zero, rate, price)

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
            choices.append(self._with_lengths(first, nothing, np.full(len(first), -np.inf)))
        with_models = self._add_models(values, first, value)
        if with_models is not None:
            choices.append(self._with_lengths(*with_models))
        return max(choices, key=lambda choice: choice.rate)

    def values(self) -> Floats:
        """Tokens that each proposer gains for each row, less what its row costs, [R, J]."""
        gained = np.add.reduceat(self._outlook.chance * self._gains, self._starts, axis=1)
        values: Floats = gained - self._row_costs()
        return values

    def _row_costs(self) -> Floats:
        """What it costs to ask each proposer for each row, in tokens, [R, J]."""
        times = self._times
        costs: Floats = self._prices.rate * (times[:, 1] + times[:, 4] * self._catchup)
        return costs

    def call_costs(self) -> Floats:
        """Each proposer's call and passes in tokens, [J]."""
        passes = self._lengths.max(axis=0)
        costs: Floats = self._prices.rate * (self._times[:, 0] + self._times[:, 2] * passes)
        return costs

    def at_price(self, first: Ints) -> Choice:
        """Each row's proposer, with as many tokens as pay at the prices of the plan before."""
        prices = self._token_prices()[self._of, None]
        counts = (self._outlook.survival > prices).sum(axis=2)
        nothing = np.full_like(first, NOTHING)
        return self._chosen(first, nothing, counts, np.full(len(first), -np.inf))

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

    def _add_models(
        self, values: Floats, first: Ints, value: Floats
    ) -> tuple[Ints, Ints, Floats] | None:
        """Each row's first and second proposer, and its gate; `None` if no model pays.

        A lookup's draft that gains no more than the gate is dropped for the model's.

        Args:
            values: of each proposer for each row, [R, J].
            first, value: each row's best lookup without a model, and its value, [R].
        """
        alone = values[:, self._models]
        chains = self._chains(np.maximum(alone, 0.0))
        by_itself = (alone > chains.values) | (chains.lookups == NOTHING)
        best = np.maximum(alone, chains.values)
        second, gate = np.full_like(first, NOTHING), np.full(len(first), -np.inf)
        used: list[int] = []
        while len(used) < len(self._models):
            gain = np.maximum(best - value[:, None], 0.0)
            net = gain.sum(axis=0) - self._fixed_costs(gain > 0, by_itself, chains.missed)
            net += (self._bonus[self._models] - 1) * gain.sum(axis=0)
            net[used] = -np.inf
            at = int(net.argmax())
            if net[at] <= 0:
                break
            rows, own = gain[:, at] > 0, by_itself[:, at]
            model = self._models[at]
            first = np.where(rows, np.where(own, model, chains.lookups[:, at]), first)
            second = np.where(rows, np.where(own, NOTHING, model), second)
            gate = np.where(rows, np.where(own, -np.inf, chains.gates[:, at]), gate)
            value = value + gain[:, at]
            used.append(at)
        return (first, second, gate) if used else None

    def _chains(self, alone: Floats) -> Chains:
        """The lookup that goes best before each model, for each row.

        A lookup that rarely finds a draft may go better before a model than one that finds many
        poor ones, although it is worth less by itself.

        Args:
            alone: what each model gains for each row by itself, at least 0, [R, M].
        """
        shape = len(self._lookups), *alone.shape
        values, missed, gates = np.empty(shape), np.empty(shape), np.empty(shape)
        row_costs, costs = self._row_costs(), self.call_costs()[self._models]
        for at, lookup in enumerate(self._lookups.tolist()):
            own = self._of == lookup
            chance, gains = self._outlook.chance[:, own, None], self._gains[:, own, None]
            found = np.clip(chance.sum(axis=1), 1e-3, 1.0)
            # If no other row calls the model, a dropped draft pays for the whole call.
            gates[at] = alone - costs * (found.prod(axis=0) / found)
            kept = gains > gates[at][:, None, :]
            missed[at] = 1 - (chance * kept).sum(axis=1)
            values[at] = (chance * gains * kept).sum(axis=1) + missed[at] * alone
            values[at] -= row_costs[:, lookup, None]
        if not len(self._lookups):
            nothing = np.full(alone.shape, NOTHING)
            return Chains(nothing, np.full(alone.shape, -np.inf), np.ones_like(alone), alone)
        preferred = values * np.where(values > 0, self._bonus[self._lookups, None, None], 1.0)
        best = preferred.argmax(axis=0)
        chosen = (np.take_along_axis(one, best[None], axis=0)[0] for one in (values, missed, gates))
        return Chains(self._lookups[best], *chosen)

    def _fixed_costs(
        self, rows: npt.NDArray[np.bool_], by_itself: npt.NDArray[np.bool_], missed: Floats
    ) -> Floats:
        """Each model's call and passes in tokens, times the chance that any row needs it, [M]."""
        found = np.where(rows, np.where(by_itself, 0.0, 1 - missed), 1.0)
        needed = 1 - found.prod(axis=0)
        costs: Floats = needed * self.call_costs()[self._models]
        return costs

    def _with_lengths(self, first: Ints, second: Ints, gate: Floats) -> Choice:
        """The lengths that maximize the rate; see the head of the module."""
        survival, reach = self._outlook.survival, self._outlook.reach
        weights, missed = self._weights(first, second, self._kept(first, gate))
        # The likeliest positions come first: all with a chance above a threshold.
        at = weights > 0
        chances = survival[at].ravel()
        repeated = (weights[at][:, None] * reach[at]).ravel()
        bins = (chances * THRESHOLDS).astype(np.intp)
        drafted = np.bincount(bins, repeated, THRESHOLDS)[:0:-1].cumsum()
        gained = np.bincount(bins, repeated * chances, THRESHOLDS)[:0:-1].cumsum()
        seconds = self._target_seconds(drafted) + self._draft_seconds(first, second, missed)
        best = int(((self._load.rows + gained) / seconds).argmax())
        threshold = (THRESHOLDS - 1 - best) / THRESHOLDS
        return self._chosen(first, second, (survival >= threshold).sum(axis=2), gate)

    def _chosen(self, first: Ints, second: Ints, counts: Ints, gate: Floats) -> Choice:
        """The choice with these lengths.

        Args:
            counts: how many tokens of each case are verified, [R, Q].
            gate: see `_add_models`, [R].
        """
        kept = self._kept(first, gate) & (counts > 0)
        weights, missed = self._weights(first, second, kept)
        positions = np.arange(self._outlook.survival.shape[2]) < counts[:, :, None]
        reached = weights[:, :, None] * self._outlook.reach * positions
        drafted = float(reached.sum())
        gained = float((reached * self._outlook.survival).sum())
        seconds = float(self._target_seconds(np.array([drafted]))[0])
        first_k = np.where(kept, counts, 0).max(axis=1, initial=0)
        second_k = np.where(self._of == second[:, None], counts, 0).max(axis=1, initial=0)
        keeps = np.zeros((len(first), positions.shape[2] + 1), np.intp)
        row, case = kept.nonzero()
        keeps[row, self._outlook.cases.length[case]] = counts[row, case]
        # A first proposer without a position is none; a second one then takes its place.
        empty = first_k == 0
        first, first_k = np.where(empty, second, first), np.where(empty, second_k, first_k)
        second = np.where(empty | (second_k == 0), NOTHING, second)
        first = np.where(first_k == 0, NOTHING, first)
        rate = (self._load.rows + gained) / (seconds + self._draft_seconds(first, second, missed))
        price = self._marginal_price(rate, drafted)
        return Choice(first, first_k, keeps, second, second_k, rate, price)

    def _marginal_price(self, rate: float, drafted: float) -> float:
        """The tokens that the time of the last verified token is worth.

        The tokens before it cost no more, so a draft in the flat part of the time's curve is not
        refused for the price beyond it.
        """
        last = self._target_seconds(np.array([max(drafted - 1, 0.0), max(drafted, 1.0)]))
        return rate * float(last[1] - last[0])

    def _kept(self, first: Ints, gate: Floats) -> npt.NDArray[np.bool_]:
        """The cases of each row's first proposer that are not dropped, [R, Q]."""
        kept: npt.NDArray[np.bool_] = (self._of == first[:, None]) & (self._gains > gate[:, None])
        return kept

    def _weights(
        self, first: Ints, second: Ints, kept: npt.NDArray[np.bool_]
    ) -> tuple[Floats, Floats]:
        """The chance that each case is drafted and kept, [R, Q].

        Also the chance that each row's first proposer drafts nothing that is kept, [R].
        """
        weights: Floats = np.where(kept, self._outlook.chance, 0.0)
        missed: Floats = 1 - weights.sum(axis=1)
        after = (self._of == second[:, None]) * self._outlook.chance
        return weights + after * missed[:, None], missed

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
            total += needed * (call + per_pass * int(self._lengths[rows, j].max()))
            total += expected * (per_row + per_token * float(self._tokens[rows, j].mean()))
            if per_catchup:
                total += per_catchup * float(self._catchup[rows, j].sum())
        return total

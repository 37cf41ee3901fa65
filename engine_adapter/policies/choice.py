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
from engine_adapter.policies.choice_types import NOTHING, Cascades, Choice, Load, Prices
from engine_adapter.policies.measurements import Forecast, Measurements

HORIZON = 64
"""The most steps over which the costs of a catch-up are spread."""

THRESHOLDS = 64
"""How many chances of acceptance are tried as the one up to which tokens are drafted."""


class Chooser:
    """Chooses for one step.

    Args:
        measurements: acceptance and times.
        forecast: the expectations of its rows and proposers.
        load: the step.
        prices: from the plan before.
    """

    def __init__(
        self, measurements: Measurements, forecast: Forecast, load: Load, prices: Prices
    ) -> None:
        self._measurements = measurements
        self._forecast = forecast
        self._load = load
        self._prices = prices
        lookup = [measurements.traits(int(i)).lookup for i in forecast.proposers]
        self._lookups = np.flatnonzero(lookup)
        self._models = np.flatnonzero(np.logical_not(lookup))
        in_use = [int(i) in prices.in_use for i in forecast.proposers]
        self._bonus = np.where(in_use, prices.bonus, 1.0)
        self._row = np.arange(len(forecast.remaining))
        times = [measurements.draft_times[int(i)].fit.weights for i in forecast.proposers]
        self._times = np.array(times).reshape(len(times), 5)
        # A catch-up pays for the rest of the request, as far as that can be seen.
        self._catchup = forecast.lag / np.clip(forecast.remaining / 2, 1, HORIZON)[:, None]
        self._case_proposer = forecast.cases.proposer
        self._starts = np.searchsorted(self._case_proposer, np.arange(len(times)))
        over = forecast.p_accepted - self._token_prices()[self._case_proposer, None]
        p_drafted = forecast.p_reached * (over > 0)
        self._gains = (over * p_drafted).sum(axis=2)
        self._lengths = np.maximum.reduceat((over > 0).sum(axis=2), self._starts, axis=1)
        self._tokens = np.maximum.reduceat(p_drafted.sum(axis=2), self._starts, axis=1)

    def plain(self) -> Choice:
        """Plain decoding of every row."""
        no_proposer, no_tokens = np.full_like(self._row, NOTHING), np.zeros_like(self._row)
        rate = self._load.rows / float(self._target_seconds(np.zeros(1))[0])
        price = self._marginal_price(rate, 0.0)
        verify_caps = np.zeros((len(no_proposer), self._forecast.p_accepted.shape[2] + 1), np.intp)
        return Choice(no_proposer, no_tokens, verify_caps, no_proposer, no_tokens, rate, price)

    def models_by_gain(self) -> list[int]:
        """The proposers with a model, the one that gains most over all rows first."""
        gains = np.maximum(self.values()[:, self._models], 0.0).sum(axis=0)
        gains -= self.call_costs()[self._models]
        return [int(self._forecast.proposers[self._models[i]]) for i in np.argsort(-gains)]

    def best(self) -> Choice:
        """The choice with the highest rate, plain decoding included."""
        values = self.values()
        lookups, value = self._best_lookups(values)
        no_fallback = np.full(len(lookups), NOTHING)
        choices = [self.plain()]
        if len(self._lookups):
            choices.append(self._with_lengths(lookups, no_fallback, np.full(len(lookups), -np.inf)))
        with_models = self._add_models(values, lookups, value)
        if with_models is not None:
            choices.append(self._with_lengths(*with_models))
        return max(choices, key=lambda choice: choice.rate)

    def values(self) -> Floats:
        """Tokens that each proposer gains for each row, less what its row costs, [R, J]."""
        gains = np.add.reduceat(self._forecast.p_length * self._gains, self._starts, axis=1)
        values: Floats = gains - self._row_costs()
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

    def at_price(self, proposers: Ints) -> Choice:
        """Each row's proposer, with as many tokens as pay at the prices of the plan before."""
        prices = self._token_prices()[self._case_proposer, None]
        counts = (self._forecast.p_accepted > prices).sum(axis=2)
        no_fallback = np.full_like(proposers, NOTHING)
        return self._build_choice(proposers, no_fallback, counts, np.full(len(proposers), -np.inf))

    def _token_prices(self) -> Floats:
        """The chance of acceptance at which a token of each proposer pays, [J]."""
        prices: Floats = self._prices.token + self._prices.rate * self._times[:, 3]
        return prices

    def _target_seconds(self, tokens: Floats) -> Floats:
        """The target's time with so many draft tokens, [N]."""
        load = self._load
        return self._measurements.step_time.seconds(load.rows, load.tokens + tokens, load.context)

    def _best_lookups(self, values: Floats) -> tuple[Ints, Floats]:
        """Each row's best lookup or `NOTHING`, and its value, [R]."""
        if not len(self._lookups):
            return np.full_like(self._row, NOTHING), np.zeros(len(values))
        best = self._lookups[(values * self._bonus)[:, self._lookups].argmax(axis=1)]
        value = values[self._row, best]
        return np.where(value > 0, best, NOTHING), np.maximum(value, 0.0)

    def _add_models(
        self, values: Floats, proposer: Ints, value: Floats
    ) -> tuple[Ints, Ints, Floats] | None:
        """Each row's proposer and fallback, and its gate; `None` if no model pays.

        A lookup's draft that gains no more than the gate is dropped for the model's.

        Args:
            values: of each proposer for each row, [R, J].
            proposer, value: each row's best lookup without a model, and its value, [R].
        """
        model_values = values[:, self._models]
        cascades = self._cascades(np.maximum(model_values, 0.0))
        by_itself = (model_values > cascades.values) | (cascades.lookups == NOTHING)
        best = np.maximum(model_values, cascades.values)
        fallback, gate = (np.full_like(proposer, NOTHING), np.full(len(proposer), -np.inf))
        added: list[int] = []
        while len(added) < len(self._models):
            gain = np.maximum(best - value[:, None], 0.0)
            net = gain.sum(axis=0) - self._fixed_costs(gain > 0, by_itself, cascades.p_missed)
            net += (self._bonus[self._models] - 1) * gain.sum(axis=0)
            net[added] = -np.inf
            best_model = int(net.argmax())
            if net[best_model] <= 0:
                break
            rows, model_alone = gain[:, best_model] > 0, by_itself[:, best_model]
            model = self._models[best_model]
            proposer = np.where(
                rows, np.where(model_alone, model, cascades.lookups[:, best_model]), proposer
            )
            fallback = np.where(rows, np.where(model_alone, NOTHING, model), fallback)
            model_gate = np.where(model_alone, -np.inf, cascades.gates[:, best_model])
            gate = np.where(rows, model_gate, gate)
            value = value + gain[:, best_model]
            added.append(best_model)
        return (proposer, fallback, gate) if added else None

    def _cascades(self, model_values: Floats) -> Cascades:
        """The lookup that goes best before each model, for each row.

        A lookup that rarely finds a draft may go better before a model than one that finds many
        poor ones, although it is worth less by itself.

        Args:
            model_values: what each model gains for each row by itself, at least 0, [R, M].
        """
        shape = len(self._lookups), *model_values.shape
        values, p_missed, gates = np.empty(shape), np.empty(shape), np.empty(shape)
        row_costs, costs = self._row_costs(), self.call_costs()[self._models]
        for i, lookup in enumerate(self._lookups.tolist()):
            lookup_cases = self._case_proposer == lookup
            p_length, gains = (
                self._forecast.p_length[:, lookup_cases, None],
                self._gains[:, lookup_cases, None],
            )
            p_found = np.clip(p_length.sum(axis=1), 1e-3, 1.0)
            # If no other row calls the model, a dropped draft pays for the whole call.
            gates[i] = model_values - costs * (p_found.prod(axis=0) / p_found)
            kept_cases = gains > gates[i][:, None, :]
            p_missed[i] = 1 - (p_length * kept_cases).sum(axis=1)
            values[i] = (p_length * gains * kept_cases).sum(axis=1) + p_missed[i] * model_values
            values[i] -= row_costs[:, lookup, None]
        if not len(self._lookups):
            no_lookup = np.full(model_values.shape, NOTHING)
            return Cascades(
                no_lookup,
                np.full(model_values.shape, -np.inf),
                np.ones_like(model_values),
                model_values,
            )
        preferred = values * np.where(values > 0, self._bonus[self._lookups, None, None], 1.0)
        best = preferred.argmax(axis=0)
        best_values = (
            np.take_along_axis(array, best[None], axis=0)[0] for array in (values, p_missed, gates)
        )
        return Cascades(self._lookups[best], *best_values)

    def _fixed_costs(
        self, rows: npt.NDArray[np.bool_], by_itself: npt.NDArray[np.bool_], p_missed: Floats
    ) -> Floats:
        """Each model's call and passes in tokens, times the chance that any row needs it, [M]."""
        p_unneeded = np.where(rows, np.where(by_itself, 0.0, 1 - p_missed), 1.0)
        p_needed = 1 - p_unneeded.prod(axis=0)
        costs: Floats = p_needed * self.call_costs()[self._models]
        return costs

    def _with_lengths(self, proposer: Ints, fallback: Ints, gate: Floats) -> Choice:
        """The lengths that maximize the rate; see the head of the module."""
        p_accepted, p_reached = self._forecast.p_accepted, self._forecast.p_reached
        weights, p_missed = self._weights(proposer, fallback, self._kept_cases(proposer, gate))
        # The likeliest positions come first: all with a chance above a threshold.
        possible = weights > 0
        chances = p_accepted[possible].ravel()
        p_drafted = (weights[possible][:, None] * p_reached[possible]).ravel()
        bins = (chances * THRESHOLDS).astype(np.intp)
        num_drafted = np.bincount(bins, p_drafted, THRESHOLDS)[:0:-1].cumsum()
        num_accepted = np.bincount(bins, p_drafted * chances, THRESHOLDS)[:0:-1].cumsum()
        seconds = self._target_seconds(num_drafted) + self._draft_seconds(
            proposer, fallback, p_missed
        )
        best = int(((self._load.rows + num_accepted) / seconds).argmax())
        threshold = (THRESHOLDS - 1 - best) / THRESHOLDS
        return self._build_choice(proposer, fallback, (p_accepted >= threshold).sum(axis=2), gate)

    def _build_choice(self, proposer: Ints, fallback: Ints, counts: Ints, gate: Floats) -> Choice:
        """The choice with these lengths.

        Args:
            counts: how many tokens of each case are verified, [R, Q].
            gate: see `_add_models`, [R].
        """
        kept_cases = self._kept_cases(proposer, gate) & (counts > 0)
        weights, p_missed = self._weights(proposer, fallback, kept_cases)
        positions = np.arange(self._forecast.p_accepted.shape[2]) < counts[:, :, None]
        p_drafted = weights[:, :, None] * self._forecast.p_reached * positions
        num_drafted = float(p_drafted.sum())
        num_accepted = float((p_drafted * self._forecast.p_accepted).sum())
        seconds = float(self._target_seconds(np.array([num_drafted]))[0])
        k = np.where(kept_cases, counts, 0).max(axis=1, initial=0)
        fallback_k = np.where(self._case_proposer == fallback[:, None], counts, 0).max(
            axis=1, initial=0
        )
        verify_caps = np.zeros((len(proposer), positions.shape[2] + 1), np.intp)
        row, case = kept_cases.nonzero()
        verify_caps[row, self._forecast.cases.length[case]] = counts[row, case]
        # A proposer without a position is none; the fallback then takes its place.
        empty = k == 0
        proposer, k = (np.where(empty, fallback, proposer), np.where(empty, fallback_k, k))
        fallback = np.where(empty | (fallback_k == 0), NOTHING, fallback)
        proposer = np.where(k == 0, NOTHING, proposer)
        rate = (self._load.rows + num_accepted) / (
            seconds + self._draft_seconds(proposer, fallback, p_missed)
        )
        price = self._marginal_price(rate, num_drafted)
        return Choice(proposer, k, verify_caps, fallback, fallback_k, rate, price)

    def _marginal_price(self, rate: float, num_drafted: float) -> float:
        """The tokens that the time of the last verified token is worth.

        The tokens before it cost no more, so a draft in the flat part of the time's curve is not
        refused for the price beyond it.
        """
        seconds = self._target_seconds(np.array([max(num_drafted - 1, 0.0), max(num_drafted, 1.0)]))
        return rate * float(seconds[1] - seconds[0])

    def _kept_cases(self, proposer: Ints, gate: Floats) -> npt.NDArray[np.bool_]:
        """The cases of each row's proposer that are not dropped, [R, Q]."""
        kept_cases: npt.NDArray[np.bool_] = (self._case_proposer == proposer[:, None]) & (
            self._gains > gate[:, None]
        )
        return kept_cases

    def _weights(
        self, proposer: Ints, fallback: Ints, kept_cases: npt.NDArray[np.bool_]
    ) -> tuple[Floats, Floats]:
        """The chance that each case is drafted and kept, [R, Q].

        Also the chance that each row's proposer drafts nothing that is kept, [R].
        """
        weights: Floats = np.where(kept_cases, self._forecast.p_length, 0.0)
        p_missed: Floats = 1 - weights.sum(axis=1)
        fallback_weights = (self._case_proposer == fallback[:, None]) * self._forecast.p_length
        return weights + fallback_weights * p_missed[:, None], p_missed

    def _draft_seconds(self, proposer: Ints, fallback: Ints, p_missed: Floats) -> float:
        """The proposers' time, with the lengths that the price of the plan before gives."""
        call_counts = np.bincount(proposer + 1, minlength=len(self._times) + 1)[1:]
        call_counts = call_counts + np.bincount(fallback + 1, minlength=len(self._times) + 1)[1:]
        total = 0.0
        for j in np.flatnonzero(call_counts):
            call, per_row, per_pass, per_token, per_catchup = self._times[j].tolist()
            is_first, is_fallback = proposer == j, fallback == j
            rows = is_first | is_fallback
            num_rows = float(is_first.sum() + p_missed[is_fallback].sum())
            p_needed = 1.0 if is_first.any() else 1 - float((1 - p_missed[is_fallback]).prod())
            total += p_needed * (call + per_pass * int(self._lengths[rows, j].max()))
            total += num_rows * (per_row + per_token * float(self._tokens[rows, j].mean()))
            if per_catchup:
                total += per_catchup * float(self._catchup[rows, j].sum())
        return total

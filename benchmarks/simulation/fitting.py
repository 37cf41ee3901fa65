"""The costs of a simulation from timed steps of an engine."""

import statistics
from collections.abc import Sequence
from dataclasses import replace

from benchmarks.simulation.costs import Costs, DraftCost, TargetCost
from engine_adapter.policies.planner import StepOutcome
from engine_adapter.policies.timing import DraftTimeModel, StepTimeModel

EDGES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Tokens at which a new point of the target's cost begins."""

MIN_STEPS = 3
"""Fewer steps give no point."""


def fit_costs(outcomes: Sequence[StepOutcome], names: Sequence[str]) -> Costs:
    """The target's cost as medians by tokens, each proposer's as a fitted linear model.

    Args:
        outcomes: steps; from those with prefill only the cost of a prompt's token is taken.
        names: the proposers.

    Raises:
        ValueError: there are too few steps.
    """
    prefills = [step for step in outcomes if step.prefill]
    outcomes = [step for step in outcomes if not step.prefill]
    model = StepTimeModel()
    for step in outcomes:
        model.add(step.rows, step.tokens, step.context, step.seconds)
    context_token_s = float(model.fit.weights[2]) / 1024
    target = TargetCost(_points(outcomes, context_token_s), context_token_s)
    each = [
        max(step.seconds - target.seconds(step.rows, step.context), 0.0) / (step.tokens - step.rows)
        for step in prefills
        if step.tokens > step.rows
    ]
    return Costs(
        replace(target, prompt_token_s=statistics.median(each) if each else 0.0),
        {name: _draft_cost(outcomes, name) for name in names},
    )


def _points(
    outcomes: Sequence[StepOutcome], context_token_s: float
) -> tuple[tuple[int, float], ...]:
    points = []
    for low, high in zip(EDGES, (*EDGES[1:], 1 << 30), strict=True):
        steps = [step for step in outcomes if low <= step.tokens < high]
        if len(steps) >= MIN_STEPS:
            tokens = round(statistics.median(step.tokens for step in steps))
            own_s = [max(step.seconds - context_token_s * step.context, 1e-6) for step in steps]
            points.append((tokens, statistics.median(own_s)))
    if not points:
        raise ValueError(f"{len(outcomes)} timed steps are too few for the costs")
    return tuple(points)


def _draft_cost(outcomes: Sequence[StepOutcome], name: str) -> DraftCost:
    model = DraftTimeModel()
    calls = [work for step in outcomes for proposer, work in step.work if proposer == name]
    # Twice, so that the weights have settled.
    for work in (*calls, *calls):
        model.add(work.rows, work.longest, work.tokens, work.catchup, work.seconds)
    return DraftCost(*(float(weight) for weight in model.fit.weights))

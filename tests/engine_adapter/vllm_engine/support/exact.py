"""The target's exact distribution, independent of the code under test, and a test against it.

Everything here is numpy in float64, from logits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

ALPHA = 1e-9
"""The probability that a test against the true distribution fails."""

LEAST = 10.0
"""Cells with fewer expected outcomes are merged."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Sampling:
    """The sampling of a request, with the names of `SamplingOptions`."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)


CONDITIONS = {
    "temperature 0.7": Sampling(temperature=0.7),
    "temperature 1.0": Sampling(),
    "top-k": Sampling(top_k=3),
    "top-p": Sampling(top_p=0.8),
    "min-p": Sampling(min_p=0.3),
    "logit_bias": Sampling(logit_bias={1: 1.5, 2: -2.0}),
    "repetition penalty": Sampling(temperature=0.7, repetition_penalty=1.6),
}


def distribution(logits: Floats, sampling: Sampling, seen: Sequence[int] = ()) -> Floats:
    """The probabilities of the next token, [V].

    Args:
        logits: [V], the target's.
        sampling: the request's.
        seen: the tokens of prompt and output so far, for the repetition penalty.
    """
    scores = np.array(logits, np.float64)
    for token, bias in sampling.logit_bias.items():
        scores[token] += bias
    again = np.unique(np.asarray(seen, np.int64))
    factor = np.where(
        scores[again] > 0, 1 / sampling.repetition_penalty, sampling.repetition_penalty
    )
    scores[again] *= factor
    p = np.exp((scores - scores.max()) / sampling.temperature)
    p /= p.sum()
    p[p < sampling.min_p * p.max()] = 0.0
    order = np.argsort(-p, kind="stable")
    if sampling.top_k:
        p[order[sampling.top_k :]] = 0.0
    p /= p.sum()
    before = np.cumsum(p[order]) - p[order]
    p[order[before >= sampling.top_p]] = 0.0
    return p / p.sum()


def p_value(observed: npt.NDArray[np.int64], expected: Floats) -> float:
    """Pearson's chi-square test.

    Args:
        observed: how often each outcome was seen, any shape.
        expected: the probability of each, of the same shape.

    Returns:
        The probability of a fit at least as bad under `expected`; 0 if an impossible outcome was
        seen.
    """
    counts, expectation = observed.ravel(), expected.ravel() * observed.sum()
    if counts[expectation == 0].any():
        return 0.0
    rare = expectation < LEAST
    if expectation[rare].sum() < LEAST:
        rare[np.argmin(np.where(rare, np.inf, expectation))] = True
    counts = np.append(counts[~rare], counts[rare].sum())
    expectation = np.append(expectation[~rare], expectation[rare].sum())
    statistic = float(((counts - expectation) ** 2 / expectation).sum())
    freedom = torch.tensor((len(counts) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, torch.tensor(statistic / 2, dtype=torch.float64)))


def power(expected: Floats, alternative: Floats, samples: int, trials: int = 400) -> float:
    """How often a test of samples of `alternative` against `expected` fails, by simulation."""
    draws = np.random.default_rng(1).multinomial(samples, alternative.ravel(), trials)
    return float(np.mean([p_value(draw, expected.ravel()) < ALPHA for draw in draws]))

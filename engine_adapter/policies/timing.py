"""How long a step takes: non-negative linear models, fitted while the engine serves.

The time of the target's part is a sum of a constant, a part per row, a part per token of context,
and a convex function of the verified tokens, with a knee at every power of two: on a GPU as on a
CPU a step costs the same until its arithmetic outweighs reading the weights. A proposer's time is
a constant, a part per row, per pass, per drafted token, and per token of catch-up. No coefficient
is negative, so more work never looks faster.

The fit minimizes squared relative errors with exponential forgetting. A sample far above its
prediction counts as one at the limit (Huber), so that a pause of the machine does not move the fit;
a sample that no clock can give is dropped.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

FORGETTING = 0.998
"""Per sample: half is forgotten in 350."""

SOLVE_EVERY = 8
"""Samples between two solutions, after the first ones."""

RIDGE = 1e-4
"""Of the slopes, relative to the samples' weight."""

OUTLIER = 2.0
"""A sample counts at most as this factor times its prediction, and at least as its inverse."""

MIN_SAMPLES = 8
"""Before this many samples a fit has no outliers."""

MAX_SECONDS = 60.0
"""A longer step is a pause of the machine, not a measurement."""

MIN_SECONDS = 1e-6
"""No step is predicted to take less: rates divide by the time."""

KNEES = tuple(float(1 << i) for i in range(1, 11))
"""Verified tokens at which a step's cost per token may rise."""


class NonNegativeFit:
    """`seconds ~ features . weights`, weights at least 0, fitted sample by sample.

    Args:
        prior: the weights before the first sample.
        scale: of each feature, so that the equations are well conditioned.

    Attributes:
        weights: float64 [F].
        samples: how many samples it has taken.
        error: decayed mean of the relative error of predictions, before each sample was taken.
    """

    def __init__(self, prior: Sequence[float], scale: Sequence[float]) -> None:
        self.weights: Floats = np.array(prior, np.float64)
        self._scale = np.array(scale, np.float64)
        self._gram = np.zeros((len(prior), len(prior)))
        self._moment = np.zeros(len(prior))
        self.samples = 0
        self.error = 0.0

    def predict(self, features: Floats) -> Any:
        """Seconds: a number for features [F], an array [N] for [N, F]."""
        return features @ self.weights

    def add(self, features: Floats, seconds: float) -> None:
        """Takes a sample; ignores one that is not a time."""
        if not (math.isfinite(seconds) and 0 < seconds < MAX_SECONDS):
            return
        predicted = float(self.predict(features))
        if self.samples >= MIN_SAMPLES and predicted > 0:
            relative = min(abs(seconds - predicted) / predicted, 1.0)
            self.error += 0.02 * (relative - self.error)
            seconds = min(max(seconds, predicted / OUTLIER), predicted * OUTLIER)
        scaled = features * self._scale / seconds
        self._gram *= FORGETTING
        self._moment *= FORGETTING
        self._gram += np.outer(scaled, scaled)
        self._moment += scaled
        self.samples += 1
        if self.samples < MIN_SAMPLES or self.samples % SOLVE_EVERY == 0:
            self._solve()

    def _solve(self) -> None:
        """The normal equations; features whose weight would be negative are left out in turn.

        A feature never seen keeps its weight. Features that always come together share theirs so
        that the constant has most of it: a small ridge makes slopes dearer than the constant.
        """
        weights = self.weights / self._scale
        features = np.flatnonzero(self._gram.diagonal() > 1e-12)
        weights[features] = 0.0
        while len(features):
            gram = self._gram[np.ix_(features, features)]
            gram = gram + np.diag(np.where(features == 0, 1e-6, RIDGE) * self._gram[0, 0])
            solution = np.linalg.solve(gram, self._moment[features])
            if (solution >= 0).all():
                weights[features] = solution
                break
            features = features[solution >= 0]
        self.weights = weights * self._scale

    def export(self) -> list[Any]:
        """The fit's state, as `restore` takes it."""
        return [self.weights.tolist(), self._gram.tolist(), self._moment.tolist(), self.samples]

    def restore(self, exported: Sequence[Any]) -> None:
        """Takes the state of a process before. Does nothing if it has another shape."""
        weights, gram, moment, samples = exported
        if np.shape(weights) == self.weights.shape:
            self.weights = np.array(weights, np.float64)
            self._gram = np.array(gram, np.float64)
            self._moment = np.array(moment, np.float64)
            self.samples = int(samples)


class StepTimeModel:
    """Seconds of the target's part of a step."""

    def __init__(self) -> None:
        size = 4 + len(KNEES)
        prior = [1e-3, 1e-6, 0.0, 1e-6, *[0.0] * len(KNEES)]
        self.fit = NonNegativeFit(prior, [1.0, 0.1, 1.0, 0.1, *(1 / knee for knee in KNEES)])
        self._knees = np.array(KNEES)
        self._plain = np.zeros(size)

    def seconds(self, rows: int, tokens: Floats, context: float) -> Floats:
        """The time of steps that differ in their tokens, [N].

        Args:
            rows: rows of the step.
            tokens: tokens that the target reads, drafts included, [N]; `rows` is plain decoding.
            context: the rows' tokens in total.
        """
        weights = self.fit.weights
        base = weights[0] + weights[1] * rows + weights[2] * context / 1024
        knees = np.maximum(tokens[:, None] - self._knees, 0.0) @ weights[4:]
        seconds: Floats = np.maximum(base + weights[3] * tokens + knees, MIN_SECONDS)
        return seconds

    def plain_seconds(self, rows: int, context: float) -> float:
        """The time of a step of plain decoding."""
        return float(self.seconds(rows, np.array([float(rows)]), context)[0])

    def add(self, rows: int, tokens: int, context: float, seconds: float) -> float:
        """Takes a step; returns what the model predicted for it."""
        features = np.empty(4 + len(KNEES))
        features[:4] = 1.0, rows, context / 1024, tokens
        np.maximum(tokens - self._knees, 0.0, out=features[4:])
        predicted = float(self.fit.predict(features))
        self.fit.add(features, seconds)
        return predicted


class DraftTimeModel:
    """Seconds that one proposer takes in a step.

    Attributes:
        fit: the weights of: the call, a row, a pass, a drafted token, a token of catch-up.
    """

    def __init__(self) -> None:
        self.fit = NonNegativeFit([1e-4, 0.0, 0.0, 0.0, 0.0], [1.0, 0.1, 1.0, 0.1, 0.01])

    def seconds(self, rows: float, longest: float, tokens: float, catchup: float) -> float:
        """The time to draft `tokens` tokens for some rows in `longest` passes, after a catch-up."""
        return float(self.fit.predict(np.array([1.0, rows, longest, tokens, catchup])))

    def add(self, rows: int, longest: int, tokens: int, catchup: int, seconds: float) -> None:
        """Takes a measurement."""
        self.fit.add(np.array([1.0, rows, longest, tokens, catchup], np.float64), seconds)

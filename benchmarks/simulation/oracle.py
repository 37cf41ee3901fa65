"""The hindsight oracle: the best choice at every step, if every draft's outcome were known.

Before each step it knows, for each row and proposer, how many tokens the target will accept, and
asks for exactly these, so it verifies no rejected token. It takes the proposers and lengths with
the most tokens less time, time valued at its own speed so far (so it maximizes the ratio over the
whole run, as by Dinkelbach). It tries every set of at most two proposers with a model beside all
lookups, every limit on the lengths, and for each row the best proposer of the set. It never calls a
proposer in vain and never pays for a catch-up, so no policy can reach it. It is greedy: a step's
choice does not look at where it leaves the rows.
"""

from collections.abc import Sequence
from itertools import combinations

import numpy as np
import numpy.typing as npt

from benchmarks.simulation.arrivals import Arrivals
from benchmarks.simulation.costs import QUIET, Clock, Noise
from benchmarks.simulation.rows import Draft, Row
from benchmarks.simulation.trace import Trace
from benchmarks.simulation.workloads import Workload
from engine_adapter.seam.types import PLAIN

PROMPT_BUDGET = 2048
MODELS = 2
"""The most proposers with a model in one step."""

MEMORY = 0.99
"""Per step: what is kept of the oracle's own speed."""

Ints = npt.NDArray[np.intp]


def oracle_tokens_per_s(trace: Trace, workload: Workload, noise: Noise = QUIET) -> float:
    """Tokens per second of the oracle; see the module."""
    return _Oracle(trace, workload, noise).run()


class _Oracle:
    def __init__(self, trace: Trace, workload: Workload, noise: Noise) -> None:
        self._trace = trace
        self._arrivals = Arrivals(workload)
        self._clock = Clock(noise)
        self._now_s = self._busy_s = 0.0
        self._tokens = 0
        self._rate = 1 / trace.costs.target.seconds(1)
        self._rows: list[Row] = []
        lookups = [i for i, traits in enumerate(trace.proposers) if traits.lookup]
        models = [i for i, traits in enumerate(trace.proposers) if not traits.lookup]
        self._sets = [
            np.array([*lookups, *subset], np.intp)
            for count in range(min(MODELS, len(models)) + 1)
            for subset in combinations(models, count)
        ]
        costs = [trace.costs.drafts[traits.name] for traits in trace.proposers]
        self._call, self._row, self._pass, self._token = (
            np.array([getattr(cost, name) for cost in costs])
            for name in ("call_s", "row_s", "pass_s", "token_s")
        )

    def run(self) -> float:
        step = 0
        while self._admit():
            self._clock.start_step(step)
            step += 1
            self._step()
        return self._tokens / self._busy_s if self._busy_s else 0.0

    def _admit(self) -> bool:
        while started := self._arrivals.next(len(self._rows), self._now_s):
            self._now_s = max(self._now_s, started.at_s)
            row = Row(started.request_id, started.request, PLAIN)
            row.unread = started.request.prompt_tokens
            self._rows.append(row)
        return bool(self._rows)

    def _step(self) -> None:
        budget, prompt, emitted, verified, decoding = PROMPT_BUDGET, 0, 0, 0, 0
        context = sum(row.length for row in self._rows)
        for row in self._rows:
            if row.unread:
                num_read = min(row.unread, budget)
                row.unread, budget, prompt = (
                    row.unread - num_read,
                    budget - num_read,
                    prompt + num_read,
                )
                new = int(num_read > 0 and not row.unread)
            else:
                accepted = row.pending.accepted if row.pending else 0
                new, verified, decoding = 1 + accepted, verified + accepted, decoding + 1
            row.pending = None
            row.written += new
            emitted += new
        target = self._trace.costs.target.seconds(max(decoding + verified, 1), context, prompt)
        draft_s = self._draft([row for row in self._rows if not row.unread and not row.ended])
        seconds = self._clock.measure(target) + draft_s
        self._now_s += seconds
        self._busy_s += seconds
        self._tokens += emitted
        if not prompt:
            self._rate = MEMORY * self._rate + (1 - MEMORY) * emitted / seconds
        self._rows = [row for row in self._rows if not row.ended]

    def _draft(self, rows: Sequence[Row]) -> float:
        """Gives each row its drafts; returns the proposers' time."""
        if not rows:
            return 0.0
        acceptable = np.array([row.request.accepted[row.written] for row in rows], np.intp)
        num_left = np.array([row.request.output_tokens - row.written - 1 for row in rows])
        acceptable = np.minimum(acceptable, np.maximum(num_left, 0)[:, None])
        best: tuple[float, float, Ints, Ints] | None = None
        for columns in self._sets:
            for limit in range(1, int(acceptable[:, columns].max(initial=0)) + 1):
                k = np.minimum(acceptable[:, columns], limit)
                column, length, value, seconds = self._value(columns, k, len(rows))
                if value > 0 and (best is None or value > best[0]):
                    best = value, seconds, column, length
        if best is None:
            return 0.0
        for row, j, k in zip(rows, best[2].tolist(), best[3].tolist(), strict=True):
            if k:
                row.pending = Draft(self._trace.proposers[j].name, k, k, k, k, row.written)
        return self._clock.measure(best[1])

    def _value(self, columns: Ints, k: Ints, rows: int) -> tuple[Ints, Ints, float, float]:
        """Each row's proposer and length, what they are worth in tokens, and their seconds."""
        rate = self._rate
        worth = k * (1 - rate * self._token[columns]) - rate * self._row[columns]
        best = worth.argmax(axis=1)
        row = np.arange(rows)
        length = np.where(worth[row, best] > 0, k[row, best], 0)
        column = columns[best]
        seconds = 0.0
        for j in np.unique(column[length > 0]):
            own_lengths = length[column == j]
            seconds += self._call[j] + self._pass[j] * own_lengths.max()
            seconds += self._row[j] * (own_lengths > 0).sum() + self._token[j] * own_lengths.sum()
        target = self._trace.costs.target
        added = target.seconds(rows + int(length.sum())) - target.seconds(rows)
        value = float(length.sum()) - rate * (seconds + added)
        return column, length, value, float(seconds)

"""Rows whose format has slow masks sit out steps: the others do not wait for them."""

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from engine_adapter.vllm_engine.core.constrained import BoundedGrammar

REST_PER_SLOW_S = 4.0
"""Seconds without slow rows for each second that their matchers took: a fifth of the time."""


class SlowRows:
    """Chooses which rows a step leaves out.

    A step has at most one slow row, since each computes its mask while all others wait. After it
    slow rows rest, and then the one that has waited longest has its turn. When all rows are slow
    and none waits, all of them run.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._rest_until_s = 0.0
        self._turns = 0

    def set_aside(self, running: Sequence[Any], *, others_wait: bool, drops_drafts: bool) -> None:
        """Decides for the next step, which vLLM schedules then.

        Args:
            running: vLLM's requests.
            others_wait: requests wait for a place in `running`.
            drops_drafts: the drafts of a slow row are not verified: each needs one more mask.
        """
        grammars = [
            (request, constrained.grammar)
            for request in running
            if (constrained := request.structured_output_request) is not None
            and isinstance(constrained.grammar, BoundedGrammar)
        ]
        if not grammars:
            return
        now_s = self._clock()
        if slow_s := sum(grammar.take_slow_s() for _, grammar in grammars):
            self._rest_until_s = now_s + REST_PER_SLOW_S * slow_s
        for request, _ in grammars:
            request.next_decode_eligible_step = 0
        slow = [(request, grammar) for request, grammar in grammars if grammar.is_slow]
        if drops_drafts:
            for request, _ in slow:
                request.spec_token_ids = []
        if len(slow) == len(running) and not others_wait:
            return
        slow.sort(key=lambda row: row[1].last_turn)
        if slow and now_s >= self._rest_until_s:
            self._turns += 1
            slow.pop(0)[1].last_turn = self._turns
        for request, _ in slow:
            # vLLM leaves out rows until this step; else it uses that for pipeline stages only.
            request.next_decode_eligible_step = sys.maxsize

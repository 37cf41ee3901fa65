"""The checks of the table of dtypes: every proposer in four situations, under the tie rule.

The tie rule: a text may differ from stock vLLM's if plain decoding finds each of its tokens, after
those before it, the best or behind the best by no more than the dtype's noise. So a text is checked
to its end also after it has left stock vLLM's.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from engine_adapter.seam.types import PLAIN, SpecMethod
from tests.engine_adapter.vllm_engine.dtypes.stock_engine import Measured, StockEngine, Text
from tests.engine_adapter.vllm_engine.support.accepting import (
    accept_every_first_draft,
    accept_what_matches,
)
from tests.engine_adapter.vllm_engine.support.recorded import (
    RecordedEngine,
    RecordedRequest,
    RecordedRun,
)
from tests.engine_adapter.vllm_engine.support.stock_texts import Prompt

LENGTH, SHORT, BLOCK = 64, 24, 32

FEW_BLOCKS = 7
"""Of each KV cache group: three prompts that lack six tokens to two blocks fit.

However fast one row is, it has not ended when the others need a third block.
"""

OWN = "self"
"""The target as its own draft model: a draft of it that is refused must be refused at a tie."""

BEYOND = 2.0
"""The limit of a tie, in times of the largest measured noise, which is that of a sample."""


@dataclass
class Counts:
    """The texts of a proposer.

    Attributes:
        texts: how many were compared.
        ties: how many of them left stock vLLM's text, at ties only.
        wrong: how many have a token that no tie explains.
    """

    texts: int = 0
    ties: int = 0
    wrong: int = 0


@dataclass
class Found:
    """What the checks of a dtype found.

    Attributes:
        limit: of a tie, in log probability.
        by_proposer: the texts of each proposer.
        farthest: the most by which a token of any text was behind the best.
        own: tokens that the target drafted for itself.
        own_refused: how many drafts of it were cut by verification.
        own_wrong: how many of these at no tie.
        drafted, accepted: proposer -> tokens.
    """

    limit: float
    by_proposer: dict[str, Counts] = field(default_factory=dict)
    farthest: float = 0.0
    own: int = 0
    own_refused: int = 0
    own_wrong: int = 0
    drafted: dict[str, int] = field(default_factory=dict)
    accepted: dict[str, int] = field(default_factory=dict)

    @property
    def wrong(self) -> int:
        """Texts and drafts of the target for itself that no tie explains."""
        return self.own_wrong + sum(counts.wrong for counts in self.by_proposer.values())


class Checks:
    """Runs the checks on an engine.

    Args:
        engine: Specgate's.
        stock: serves the same model.
        measured: stock vLLM's texts of all prompts, and the noise.
        methods: the proposers.
    """

    def __init__(
        self,
        engine: RecordedEngine,
        stock: StockEngine,
        measured: Measured,
        methods: Sequence[SpecMethod],
    ) -> None:
        self._engine, self._stock, self._measured = engine, stock, measured
        self._texts, self._methods = measured.texts, methods
        self.found = Found(BEYOND * max(measured.shifts))

    def plain(self) -> None:
        """Without speculation a text is stock vLLM's to the last token, in the same batch."""
        self._engine.reset_prefix_cache()
        requests = [RecordedRequest(prompt, LENGTH, PLAIN) for prompt in self._texts]
        got = self._engine.run(requests)
        assert got.outputs == list(self._texts.values())

    def greedy(self) -> None:
        """Every proposer with every prompt, in one batch and without a prefix hit."""
        self._engine.reset_prefix_cache()
        requests = [
            RecordedRequest(prompt, LENGTH, method, salt=method.proposer)
            for method in self._methods
            for prompt in self._texts
        ]
        self._compare(requests, self._engine.run(requests))

    def switch(self, prompts: Sequence[Prompt]) -> None:
        """All requests get another proposer every three steps: each in turn, then at random."""
        self._engine.reset_prefix_cache()
        rng = random.Random(11)
        turns = [*self._methods, *rng.choices([PLAIN, *self._methods], k=400)]
        switches = {3 * i: method for i, method in enumerate(turns)}
        requests = [RecordedRequest(p, LENGTH, PLAIN, at=6 * i) for i, p in enumerate(prompts)]
        self._compare(requests, self._engine.run(requests, switches))

    def prefix_hit(self, prompt: Prompt) -> None:
        """The prompt is in the prefix cache when the proposers first draft for it."""
        self._engine.reset_prefix_cache()
        self._engine.run([RecordedRequest(prompt, 1, PLAIN)])
        requests = [RecordedRequest(prompt, SHORT, method) for method in self._methods]
        got = self._engine.run(requests)
        assert min(got.cached) >= BLOCK
        self._compare(requests, got)

    def preemption(self, prompts: Sequence[Prompt]) -> None:
        """Three requests of one proposer, with the KV of two."""
        for method in self._methods:
            self._engine.reset_prefix_cache()
            requests = [RecordedRequest(prompt, LENGTH, method) for prompt in prompts]
            got = self._engine.run(requests, blocks=FEW_BLOCKS)
            assert got.preemptions > 0
            self._compare(requests, got)

    def control(self) -> Found:
        """What the tie rule finds if verification accepts the first draft of every row."""
        checks = Checks(self._engine, self._stock, self._measured, self._methods)
        self._engine.call(accept_every_first_draft)
        try:
            checks.greedy()
        finally:
            self._engine.call(accept_what_matches)
        return checks.found

    def _compare(self, requests: Sequence[RecordedRequest], got: RecordedRun) -> None:
        """Counts the texts of every proposer that drafted for them, and the target's own drafts."""
        for i, losses in enumerate(self._losses(requests, got)):
            farthest = max(losses, default=0.0)
            self.found.farthest = max(self.found.farthest, farthest)
            for name in {name for name, _ in got.drafts[i].values()}:
                counts = self.found.by_proposer.setdefault(name, Counts())
                counts.texts += 1
                counts.wrong += farthest > self.found.limit
                counts.ties += bool(losses) and farthest <= self.found.limit
                drafted, accepted = got.accepted(i, name, requests[i].prompt)
                self._add(name, drafted, accepted)
        self._compare_own(requests, got)

    def _add(self, name: str, drafted: int, accepted: int) -> None:
        found = self.found
        found.drafted[name] = found.drafted.get(name, 0) + drafted
        found.accepted[name] = found.accepted.get(name, 0) + accepted

    def _losses(
        self, requests: Sequence[RecordedRequest], got: RecordedRun
    ) -> list[Sequence[float]]:
        """The losses of each text; none if it is stock vLLM's."""
        losses: list[Sequence[float]] = [()] * len(requests)
        texts = {
            i: (request.prompt, got.outputs[i])
            for i, request in enumerate(requests)
            if got.outputs[i] != self._texts[request.prompt][: request.max_tokens]
        }
        for i, loss in zip(texts, self._stock.losses(texts.values()), strict=True):
            losses[i] = loss
        return losses

    def _compare_own(self, requests: Sequence[RecordedRequest], got: RecordedRun) -> None:
        """Each first token of the target's own drafts that is not the text's must be a tie."""
        refused: list[tuple[Prompt, Text]] = []
        for i, request in enumerate(requests):
            text = request.prompt + got.outputs[i]
            for length, drafts in got.of(i, OWN).items():
                pairs = list(zip(drafts, text[length:], strict=False))
                self.found.own += len(pairs)
                at = next((n for n, (a, b) in enumerate(pairs) if a != b), None)
                if at is not None:
                    refused.append((text[: length + at], (drafts[at],)))
        losses = [loss for (loss,) in self._stock.losses(refused)]
        self.found.own_refused += len(refused)
        self.found.own_wrong += sum(loss > self.found.limit for loss in losses)
        self.found.farthest = max([self.found.farthest, *losses])

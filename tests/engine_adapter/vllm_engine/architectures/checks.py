"""The checks of the table: every proposer of an architecture, in five situations.

Texts are compared with stock vLLM's; sampled texts with plain decoding under the same seed, whose
noise is Specgate's own. What a check needs is made by its construction: prompts that contain all
the tokens that a text has, more blocks of KV than there are, a prompt that was served before.
"""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine_adapter.seam.types import PLAIN, SpecMethod
from tests.engine_adapter.vllm_engine.architectures.results import Result
from tests.engine_adapter.vllm_engine.architectures.small_models import LOUD
from tests.engine_adapter.vllm_engine.support.live import TIE
from tests.engine_adapter.vllm_engine.support.recorded import (
    RecordedEngine,
    RecordedRequest,
    RecordedRun,
)
from tests.engine_adapter.vllm_engine.support.stock_texts import Prompt, StockText

K, LENGTH, SHORT, BLOCK = 4, 48, 24, 32
OF_A_MODEL = ("self", "sibling", "medusa", "eagle")
"""Proposers whose drafts depend on the text alone, so they can be compared with another run's."""

SHORT_PROMPTS = 3
"""How many requests run with too little KV."""

_FEW, _STATES = 2 * SHORT_PROMPTS + 1, (1 + K) * SHORT_PROMPTS
"""Blocks of a KV cache group with which short prompts fit and their texts do not.

`_FEW` of KV; those of recurrent states are taken at once, one for each token of a step.
"""

ENGINE: dict[str, Any] = {
    "dtype": "float32",
    "max_model_len": 256,
    "max_num_seqs": 64,
    "max_num_batched_tokens": 320,
    "block_size": BLOCK,
    "num_gpu_blocks_override": 1600,
}


def make_prompts() -> tuple[list[Prompt], list[Prompt]]:
    """Four prompts of 66 to 150 tokens, and three that take two blocks but for six tokens."""
    rng = random.Random(7)

    def prompt(length: int) -> Prompt:
        every = rng.sample(LOUD, len(LOUD))
        return tuple((rng.choices(LOUD, k=max(0, length - len(every))) + every)[-length:])

    short = [prompt(2 * BLOCK - 6) for _ in range(SHORT_PROMPTS)]
    return [prompt(n) for n in (66, 100, 140, 150)], short


class Checks:
    """Runs the checks on an engine and counts what they find.

    Args:
        engine: of the architecture, with the proposers.
        proposers: their names.
        texts: prompt -> stock vLLM's text.
        result: gets the counts.
    """

    def __init__(
        self,
        engine: RecordedEngine,
        proposers: Sequence[str],
        texts: dict[Prompt, StockText],
        result: Result,
    ) -> None:
        self._engine = engine
        self._methods = [SpecMethod(name, K) for name in proposers]
        self._texts = texts
        self._result = result
        self._cold: dict[tuple[str, Prompt], dict[int, tuple[int, ...]]] = {}
        self._counts: dict[str, list[int]] = {name: [0, 0] for name in proposers}

    def run_all(self) -> None:
        """The five checks."""
        prompts, short = make_prompts()
        self.greedy([*prompts, *short])
        self.sampled(prompts[:3])
        self.switch(prompts)
        if not self._result.recurrent:
            for prompt in prompts[2:]:
                self.prefix_hit(prompt)
        for method in self._methods:
            self.preemption(method, short)
        for name, (drafted, accepted) in self._counts.items():
            self._result.acceptance[name] = round(accepted / max(drafted, 1), 3)

    def greedy(self, prompts: Sequence[Prompt]) -> None:
        """Every proposer with every prompt, in one batch and without a prefix hit."""
        requests = [
            RecordedRequest(prompt, LENGTH, method, salt=method.proposer)
            for method in self._methods
            for prompt in prompts
        ]
        got = self._engine.run(requests)
        assert not any(got.cached)
        self._compare("greedy", requests, got)
        for i, request in enumerate(requests):
            name = request.method.proposer
            if name in OF_A_MODEL:
                self._cold[name, request.prompt] = got.of(i, name)

    def sampled(self, prompts: Sequence[Prompt]) -> None:
        """A text under a seed is that of plain decoding."""
        requests = [
            RecordedRequest(prompt, SHORT, method, options={"temperature": 0.8, "seed": i})
            for method in (PLAIN, *self._methods)
            for i, prompt in enumerate(prompts)
        ]
        outputs = self._engine.run(requests).outputs
        plain = outputs[: len(prompts)]
        greedy = [self._texts[prompt].tokens[:SHORT] for prompt in prompts]
        assert all(text != other for text, other in zip(plain, greedy, strict=True))
        for i in range(len(prompts), len(requests)):
            cell = self._result.cell(requests[i].method.proposer, "sampled")
            cell.add(outputs[i] == plain[i % len(prompts)])

    def switch(self, prompts: Sequence[Prompt]) -> None:
        """All requests get another proposer every three steps: each in turn, then at random."""
        self._engine.reset_prefix_cache()
        rng = random.Random(11)
        turns = [*self._methods, *rng.choices([PLAIN, *self._methods], k=400)]
        switches = {3 * i: method for i, method in enumerate(turns)}
        rows = [*prompts, *prompts]
        requests = [RecordedRequest(p, LENGTH, PLAIN, at=6 * i) for i, p in enumerate(rows)]
        got = self._engine.run(requests, switches)
        self._result.steps += got.steps
        for i, request in enumerate(requests):
            same = self._is_stocks(request.prompt, got.outputs[i])
            for method in self._methods:
                if got.of(i, method.proposer):
                    self._result.cell(method.proposer, "switch").add(same)
        self._compare_drafts(requests, got)

    def prefix_hit(self, prompt: Prompt) -> None:
        """The prompt is in the prefix cache when the proposers first draft for it."""
        self._engine.reset_prefix_cache()
        self._engine.run([RecordedRequest(prompt, 1, PLAIN)])
        requests = [RecordedRequest(prompt, SHORT, method) for method in self._methods]
        got = self._engine.run(requests)
        assert min(got.cached) >= BLOCK
        self._result.cached += sum(got.cached)
        self._compare("prefix hit", requests, got)

    def preemption(self, method: SpecMethod, prompts: Sequence[Prompt]) -> None:
        """Three requests of one proposer, with the KV of two."""
        self._engine.reset_prefix_cache()
        requests = [RecordedRequest(prompt, SHORT, method) for prompt in prompts]
        kinds = [kind for kind, _ in self._engine.kv_cache_groups()]
        blocks = sum(_STATES if kind == "MambaSpec" else _FEW for kind in kinds)
        got = self._engine.run(requests, blocks=blocks)
        assert got.preemptions > 0
        self._result.preemptions += 1
        self._compare("preemption", requests, got)

    def _compare(self, check: str, requests: Sequence[RecordedRequest], got: RecordedRun) -> None:
        """Counts the texts and the drafts of requests that keep their proposers."""
        for i, request in enumerate(requests):
            cell = self._result.cell(request.method.proposer, check)
            cell.add(self._is_stocks(request.prompt, got.outputs[i]))
        for name in {request.method.proposer for request in requests}:
            assert any(got.of(i, name) for i in range(len(requests))), f"{name} never drafted"
        self._compare_drafts(requests, got)

    def _compare_drafts(self, requests: Sequence[RecordedRequest], got: RecordedRun) -> None:
        for name, counts in self._counts.items():
            for i, request in enumerate(requests):
                drafted, accepted = got.accepted(i, name, request.prompt)
                counts[0] += drafted
                counts[1] += accepted
                if name == "self":
                    self._result.own_drafts += drafted
                    self._result.own_wrong += drafted - accepted
                self._compare_with_cold(name, request.prompt, got.of(i, name))

    def _compare_with_cold(
        self, name: str, prompt: Prompt, made: dict[int, tuple[int, ...]]
    ) -> None:
        cold = self._cold.get((name, prompt), {})
        for length, drafts in made.items():
            if length in cold:
                most = min(len(drafts), len(cold[length]))
                self._result.drafts += 1
                self._result.drafts_differ += drafts[:most] != cold[length][:most]

    def _is_stocks(self, prompt: Prompt, tokens: tuple[int, ...]) -> bool:
        """Whether a text is stock vLLM's, or differs from it at a tie."""
        text = self._texts[prompt]
        at = text.differs_at(tokens)
        if at is None:
            return True
        if text.gaps[at] >= TIE:
            return False
        self._result.ties += 1
        return True


def layers_of(folder: str) -> str:
    """The kinds of attention of a model's layers, as its configuration says."""
    config = json.loads((Path(folder) / "config.json").read_text())
    kinds = set(config.get("layer_types") or ())
    if kinds == {"sliding_attention", "full_attention"}:
        return "sliding and full"
    if "chunked_attention" in kinds:
        return "chunks and full"
    sliding = config.get("sliding_window") and config.get("use_sliding_window", True)
    return "sliding" if kinds == {"sliding_attention"} or (sliding and not kinds) else "full"

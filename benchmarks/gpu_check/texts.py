"""Texts of an engine: with one method, with switches, and how far a text is from the likeliest."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, cycle

from benchmarks.gpu_check.prompts import Tokens, first_difference
from engine_adapter.seam.interface import Engine
from engine_adapter.seam.types import (
    GenerationRequest,
    SamplingOptions,
    SpecDecodeParams,
    SpecMethod,
    Switch,
)

SAMPLED = "temperature 0.8"

SWITCH_EVERY = 8
"""Tokens of the first text between two switches."""


@dataclass(frozen=True, slots=True)
class TextRun:
    """The texts of all prompts at once.

    Attributes:
        texts: the tokens of each.
    """

    texts: Sequence[Tokens]
    seconds: float

    @property
    def tokens_per_s(self) -> float:
        """Of all texts together."""
        return sum(map(len, self.texts)) / self.seconds


class Texts:
    """Generates the texts of the same prompts, again and again.

    Args:
        engine: started before the first call.
        prompts: their token ids.
        max_tokens: the length of every text.
    """

    def __init__(self, engine: Engine, prompts: Sequence[Tokens], max_tokens: int) -> None:
        self._engine, self._prompts, self._max_tokens = engine, prompts, max_tokens
        self._ids = count()
        self._epoch = 0

    async def generate(self, method: SpecMethod, *, sampled: bool = False) -> TextRun:
        """All texts with one method; greedy, or with a seed of each prompt's own."""
        began = time.perf_counter()
        spec = SpecDecodeParams(method, pinned=True)
        texts = await asyncio.gather(
            *(
                self._one(prompt, spec, i if sampled else None)
                for i, prompt in enumerate(self._prompts)
            )
        )
        return TextRun(texts, time.perf_counter() - began)

    async def generate_switching(self, methods: Sequence[SpecMethod]) -> TextRun:
        """All texts, greedy; the running requests are switched from one method to the next."""
        began = time.perf_counter()
        turn = cycle(methods)
        spec = SpecDecodeParams(next(turn))
        tasks = [asyncio.create_task(self._one(prompt, spec, None)) for prompt in self._prompts[1:]]
        first_text: list[int] = []
        switched = 0
        async for delta in self._engine.generate(self._request(self._prompts[0], spec, None)):
            first_text += delta.token_ids
            if len(first_text) >= (switched + 1) * SWITCH_EVERY:
                switched += 1
                self._epoch += 1
                await self._engine.switch(Switch(next(turn), self._epoch), running=True)
        texts = [tuple(first_text), *await asyncio.gather(*tasks)]
        return TextRun(texts, time.perf_counter() - began)

    async def gaps(
        self, texts: Sequence[Tokens], expected_texts: Sequence[Tokens]
    ) -> list[float | None]:
        """How far each text is from a greedy one: `None` if it is the wanted one.

        Otherwise the most by which one of its tokens is less likely than the likeliest one in its
        place, in log probability. That tells a tie from a mistake also after the texts have parted.
        """
        gaps: list[float | None] = []
        for prompt, text, other in zip(self._prompts, texts, expected_texts, strict=True):
            is_equal = len(text) == len(other) and first_difference(text, other) is None
            gaps.append(None if is_equal else await self._gap(prompt, text))
        return gaps

    async def _gap(self, prompt: Tokens, text: Tokens) -> float:
        sampling = SamplingOptions(temperature=0.0, max_tokens=1, prompt_logprobs=1)
        request = GenerationRequest(f"check-{next(self._ids)}", prompt + text, sampling)
        async for delta in self._engine.generate(request):
            if delta.prompt_logprobs is not None:
                places = [place for place in delta.prompt_logprobs[len(prompt) :] if place]
                assert len(places) == len(text)
                return max(place.top[0].logprob - place.actual.logprob for place in places)
        raise RuntimeError("the engine gave no log probabilities of a prompt")

    async def _one(self, prompt: Tokens, spec: SpecDecodeParams, seed: int | None) -> Tokens:
        tokens: list[int] = []
        async for delta in self._engine.generate(self._request(prompt, spec, seed)):
            tokens += delta.token_ids
        return tuple(tokens)

    def _request(
        self, prompt: Tokens, spec: SpecDecodeParams, seed: int | None
    ) -> GenerationRequest:
        sampling = SamplingOptions(
            temperature=0.0 if seed is None else 0.8,
            max_tokens=self._max_tokens,
            seed=seed,
            ignore_eos=True,
        )
        return GenerationRequest(f"check-{next(self._ids)}", prompt, sampling, spec)

"""Every generation of a few tokens that can follow a prompt, with its exact probability.

The logits are those that transformers computes in float32, without vLLM.
"""

from collections import Counter
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from engine_adapter.seam.types import ConstraintKind
from engine_adapter.vllm_engine.grammars import serialized
from tests.engine_adapter.vllm_engine.conftest import TARGET
from tests.engine_adapter.vllm_engine.support.exact import Sampling, distribution
from tests.engine_adapter.vllm_engine.support.live import Prompt

TEXT = "import os\nimport sys\nimport json\nimport re\nimport "
"""The prompt."""

LENGTH = 4
"""The tokens of a generation."""

PATTERN = "[a-z]{2} as [a-z]+"
"""A regular expression: a choice among many tokens, forced text, and again a choice."""


class Tree:
    """A model's probabilities of every possible generation after the prompt; the target's."""

    def __init__(self, model: str = TARGET) -> None:
        tokenizer = AutoTokenizer.from_pretrained(TARGET)
        self.prompt: Prompt = tuple(tokenizer.encode(TEXT))
        self._model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        self._logits: dict[Prompt, Any] = {}

    def joint(self, sampling: Sampling, later: Sampling | None = None) -> dict[Prompt, float]:
        """Generation -> its probability. `later` replaces the sampling from the second token on."""
        paths: dict[Prompt, float] = {(): 1.0}
        for depth in range(LENGTH):
            self._learn([path for path in paths if path not in self._logits])
            paths = {
                (*path, token): so_far * p
                for path, so_far in paths.items()
                for token, p in self.next(path, (depth and later) or sampling).items()
            }
        return paths

    def next(self, path: Prompt, sampling: Sampling) -> dict[int, float]:
        """The probability of each token that may follow `path`."""
        self._learn([path] if path not in self._logits else [])
        p = distribution(self._logits[path], sampling, self.prompt + path)
        return {int(token): float(p[token]) for token in np.flatnonzero(p)}

    def _learn(self, paths: list[Prompt]) -> None:
        if paths:
            tokens = torch.tensor([self.prompt + path for path in paths])
            with torch.inference_mode():
                every = self._model(tokens).logits[:, -1].double().numpy()
            self._logits |= dict(zip(paths, every, strict=True))


class ConstrainedTree(Tree):
    """The same of generations that match `PATTERN`, with masks of a matcher of its own."""

    def __init__(self) -> None:
        import llguidance
        import llguidance.hf

        super().__init__()
        tokenizer: Any = AutoTokenizer.from_pretrained(TARGET)
        known = llguidance.hf.from_tokenizer(tokenizer, len(tokenizer))
        grammar = serialized(ConstraintKind.REGEX, PATTERN, any_whitespace=False)
        self._matcher = llguidance.LLMatcher(known, grammar)

    def next(self, path: Prompt, sampling: Sampling) -> dict[int, float]:
        self._learn([path] if path not in self._logits else [])
        logits, matcher = self._logits[path], self._matcher.deep_copy()
        assert matcher.consume_tokens(list(path))
        bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        allowed = np.unpackbits(bits, bitorder="little", count=len(logits)).astype(bool)
        p = distribution(np.where(allowed, logits, -1e9), sampling, self.prompt + path)
        return {int(token): float(p[token]) for token in np.flatnonzero(p)}


def as_arrays(exact: dict[Prompt, float], seen: Counter[Prompt]) -> tuple[Any, Any]:
    """Counts and probabilities of all generations that are possible or were seen."""
    cells = sorted({*exact, *seen})
    return (
        np.array([seen[cell] for cell in cells]),
        np.array([exact.get(cell, 0.0) for cell in cells]),
    )


def cheated(target: Tree, draft: Tree, sampling: Sampling) -> dict[Prompt, float]:
    """Generation -> its probability if each draft is cut before its first unlikely token.

    The first token is never drafted. A step plans its drafts before it knows how many tokens it
    emits: two drafts follow the first step, one the second.
    """
    joint: dict[Prompt, float] = {}

    def walk(path: Prompt, chance: float, drafts: int, step: int) -> None:
        if not chance:
            return
        if len(path) == LENGTH:
            joint[path] = joint.get(path, 0.0) + chance
            return
        p = target.next(path, sampling)
        after = max(LENGTH - 2 - step, 0)
        plain = 1.0
        if drafts:
            q = draft.next(path, sampling)
            likeliest = max(q, key=q.__getitem__)
            verified = chance * q[likeliest]
            accepted = min(1.0, p.get(likeliest, 0.0) / q[likeliest])
            walk((*path, likeliest), verified * accepted, drafts - 1, step)
            left = {token: max(p[token] - q.get(token, 0.0), 0.0) for token in p}
            for token, weight in left.items():
                rejected = verified * (1 - accepted) * weight
                walk((*path, token), rejected and rejected / sum(left.values()), after, step + 1)
            plain -= q[likeliest]
        for token, weight in p.items():
            walk((*path, token), chance * plain * weight, after, step + 1)

    walk((), 1.0, 0, 0)
    return joint

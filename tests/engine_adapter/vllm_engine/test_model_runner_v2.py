"""Stock vLLM on its model runner V2, with the twins for CPUs, answers as on V1.

The engine is small: prompts are computed in parts, requests are preempted, and prefixes are met
again.
"""

from typing import Any

import pytest

from tests.engine_adapter.vllm_engine.support.runner_texts import (
    INTERPRETED,
    PROMPTS,
    V1,
    V2,
    answers,
)

pytestmark = [pytest.mark.engine, pytest.mark.prove]

GREEDY: dict[str, dict[str, Any]] = {
    "plain": {"max_tokens": 60, "ignore_eos": True},
    "again": {"max_tokens": 8, "logprobs": 3, "prompt_logprobs": 2},
    "penalties": {
        "max_tokens": 40,
        "repetition_penalty": 1.3,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.4,
        "ignore_eos": True,
    },
    "words": {"max_tokens": 20, "bad_words": ["return", "self", "def ", "print("]},
    "bias": {"max_tokens": 20, "logit_bias": {11: 6.0, 300: -100.0}, "min_tokens": 12},
    "allowed": {"max_tokens": 10, "allowed_token_ids": list(range(20, 90)), "logprobs": 0},
    "grammar": {"max_tokens": 24, "regex": r"[a-f]{3}(, [0-9]{2}){2,4}", "min_tokens": 3},
    "named": {"max_tokens": 4, "logprobs": 2, "logprob_token_ids": [5, 17]},
}

SAMPLED: list[dict[str, Any]] = [
    {"max_tokens": 10, "temperature": 0.9, "seed": 5, "ignore_eos": True},
    {"max_tokens": 5, "temperature": 1.2, "seed": -3, "min_p": 0.02, "presence_penalty": 0.4},
    {"max_tokens": 5, "temperature": 0.7, "seed": 9, "top_p": 0.9, "top_k": 40, "logprobs": 1},
]


def greedy(runner: str) -> tuple[dict[str, list[dict[str, Any]]], dict[str, Any]]:
    """The answers to the prompts for each entry of `GREEDY`, and the counts of vLLM's metrics."""
    *texts, counts = answers(runner, [{"temperature": 0, **each} for each in GREEDY.values()])
    size = len(PROMPTS)
    return {name: texts[i * size : (i + 1) * size] for i, name in enumerate(GREEDY)}, counts


def check(actual: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """Tokens and ranks are equal, log probabilities to the rounding of sums in another order."""
    assert [each["tokens"] for each in actual] == [each["tokens"] for each in expected]
    for one, other in zip(actual, expected, strict=True):
        for kind in ("logprobs", "prompt_logprobs"):
            assert (one[kind] is None) == (other[kind] is None)
            for at, beside in zip(one[kind] or [], other[kind] or [], strict=True):
                assert {token: rank for token, (_, rank) in at.items()} == {
                    token: rank for token, (_, rank) in beside.items()
                }
                for token, (value, _) in at.items():
                    assert value == pytest.approx(beside[token][0], abs=1e-4)


@pytest.fixture(scope="module")
def greedy_v1() -> dict[str, list[dict[str, Any]]]:
    found, counts = greedy(V1)
    assert counts["runner"] == "vllm.v1.worker.cpu_model_runner"
    assert counts["vllm:num_preemptions"] > 0
    assert counts["vllm:prefix_cache_hits"] > 0
    return found


@pytest.mark.timeout(1700)
def test_greedy_answers_are_those_of_v1(greedy_v1: dict[str, list[dict[str, Any]]]) -> None:
    v2, counts = greedy(V2)
    assert counts["runner"] == "vllm.v1.worker.cpu.model_runner"
    assert counts["vllm:prefix_cache_hits"] > 0
    assert counts["vllm:num_preemptions"] > 0
    for name, texts in v2.items():
        check(texts, greedy_v1[name])


@pytest.mark.timeout(1700)
def test_seeded_answers_are_those_of_the_interpreted_kernels() -> None:
    twins, interpreted = answers(V2, SAMPLED), answers(INTERPRETED, SAMPLED)
    check(twins[:-1], interpreted[:-1])
    texts = [tuple(each["tokens"]) for each in twins[:-1]]
    assert len(set(texts)) > len(PROMPTS), "each seed gives texts of its own"

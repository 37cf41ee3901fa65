"""Request bodies, and how prompts are divided among bursts."""

from itertools import chain

import pytest

from benchmarks.compare import mixed_prompts
from benchmarks.workload import Request, bursts, chats


def test_a_body_fixes_length_text_and_proposer() -> None:
    body = Request(chats("free")[0], 32, 0.7, "ngram").body("m")
    assert body["ignore_eos"] is True
    assert (body["max_tokens"], body["temperature"]) == (32, 0.7)
    assert body["seed"] == Request(chats("quote")[0], 8).body("m")["seed"]
    assert body["spec_decode"] == {"proposer": "ngram"}
    assert "spec_decode" not in Request(chats("free")[0], 32).body("m")


def test_no_prompt_is_used_twice_and_bursts_have_their_levels_size() -> None:
    shared = bursts(chats("quote"), (1, 2, 4, 8, 16))
    assert {level: len(of_level) for level, of_level in shared.items()} == {
        1: 4,
        2: 2,
        4: 2,
        8: 1,
        16: 1,
    }
    assert all(len(burst) == level for level, of_level in shared.items() for burst in of_level)
    used = [str(prompt) for burst in chain.from_iterable(shared.values()) for prompt in burst]
    assert len(used) == len(set(used)) == len(chats("quote"))


def test_spare_prompts_go_to_the_levels_with_the_fewest() -> None:
    shared = bursts([[]] * 20, (1, 4))
    assert {level: len(shared[level]) for level in shared} == {1: 8, 4: 3}


def test_too_few_prompts_are_refused() -> None:
    with pytest.raises(ValueError, match="needs 12 prompts; there are 11"):
        bursts([[]] * 11, (4, 8))


def test_a_comparison_mixes_both_kinds() -> None:
    prompts = mixed_prompts()
    assert prompts[:2] == [chats("quote")[0], chats("free")[0]]
    assert len(prompts) == 16

"""What requests cost, by their choices, prompts and log probabilities."""

import pytest

from engine_adapter.types import SamplingOptions
from server.errors import InvalidField
from server.openai.demand import MOST_OF_PROMPTS, check_echo, demand
from tests.server.gateway import Gateway


@pytest.mark.parametrize(
    ("logprobs", "slots"), [(None, 1), (0, 1), (1, 2), (5, 2), (6, 3), (20, 5)]
)
def test_log_probabilities_take_slots(logprobs: int | None, slots: int) -> None:
    assert demand(None, [[1]], 1, SamplingOptions(logprobs=logprobs)).slots == slots


@pytest.mark.parametrize(("prompt_logprobs", "cost"), [(None, 3), (0, 6), (1, 9), (20, 18)])
def test_prompts_with_log_probabilities_cost_more_to_read(
    prompt_logprobs: int | None, cost: int
) -> None:
    options = SamplingOptions(prompt_logprobs=prompt_logprobs)
    assert demand(None, [[1, 2, 3]], 1, options).prompt_costs == [cost]


def test_every_choice_of_every_prompt_reads_its_prompt() -> None:
    needed = demand("team", [[1], [1, 2]], 3, SamplingOptions(), priority=-2)
    assert needed.prompt_costs == [1, 1, 1, 2, 2, 2]
    assert (needed.prompt_tokens, needed.key, needed.priority) == (3, "team", -2)


@pytest.mark.parametrize(
    ("prompt_logprobs", "echoes", "most", "param"),
    [
        (None, True, MOST_OF_PROMPTS, "echo"),
        (0, False, MOST_OF_PROMPTS, "prompt_logprobs"),
        (3, True, MOST_OF_PROMPTS // 4, "echo"),
        (3, False, MOST_OF_PROMPTS // 4, "prompt_logprobs"),
    ],
)
def test_an_answer_holds_so_much_of_its_prompts(
    prompt_logprobs: int | None, echoes: bool, most: int, param: str
) -> None:
    options = SamplingOptions(prompt_logprobs=prompt_logprobs)
    check_echo([range(most // 8)] * 2, 4, options, echoes=echoes)
    with pytest.raises(InvalidField, match="Send fewer") as caught:
        check_echo([range(most // 8)] * 2 + [[1]], 4, options, echoes=echoes)
    assert caught.value.param == param
    check_echo([range(most)] * 9, 9, SamplingOptions(), echoes=False)


async def test_an_echo_that_is_too_large_for_one_piece_can_be_streamed(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.openai.demand.MOST_OF_PROMPTS", 2**12)
    fields = {"echo": True, "logprobs": 20, "max_tokens": 1}
    prompts = [[7] * 20] * 10
    response = await gateway.complete(prompts, **fields)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "echo")
    assert gateway.runtime.admission.slots.in_use == 0
    streamed = await gateway.complete(prompts, **fields, stream=True)
    assert streamed.status_code == 200
    chat = {"prompt_logprobs": 20, "n": 128, "max_tokens": 1}
    response = await gateway.chat("word", **chat)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "prompt_logprobs")

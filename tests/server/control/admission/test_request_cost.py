"""What requests cost, by their choices, prompts and log probabilities."""

import pytest

from engine_adapter.seam.types import SamplingOptions
from server.control.admission.request_cost import request_cost


@pytest.mark.parametrize(
    ("logprobs", "slots"), [(None, 1), (0, 1), (1, 2), (5, 2), (6, 3), (20, 5)]
)
def test_log_probabilities_take_slots(logprobs: int | None, slots: int) -> None:
    assert request_cost(None, [[1]], 1, SamplingOptions(logprobs=logprobs)).slots == slots


@pytest.mark.parametrize(("prompt_logprobs", "cost"), [(None, 3), (0, 6), (1, 9), (20, 18)])
def test_prompts_with_log_probabilities_cost_more_to_read(
    prompt_logprobs: int | None, cost: int
) -> None:
    options = SamplingOptions(prompt_logprobs=prompt_logprobs)
    assert request_cost(None, [[1, 2, 3]], 1, options).prompt_costs == [cost]


def test_every_choice_of_every_prompt_reads_its_prompt() -> None:
    cost = request_cost("team", [[1], [1, 2]], 3, SamplingOptions(), priority=-2)
    assert cost.prompt_costs == [1, 1, 1, 2, 2, 2]
    assert (cost.prompt_tokens, cost.key, cost.priority) == (3, "team", -2)

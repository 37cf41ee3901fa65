"""How much of its prompts an answer in one piece can hold."""

import pytest

from engine_adapter.seam.types import SamplingOptions
from server.errors import InvalidField
from server.openai.prompts import MAX_PROMPT_PARTS, check_echo
from tests.server.gateway import Gateway


@pytest.mark.parametrize(
    ("prompt_logprobs", "echoes", "most", "param"),
    [
        (None, True, MAX_PROMPT_PARTS, "echo"),
        (0, False, MAX_PROMPT_PARTS, "prompt_logprobs"),
        (3, True, MAX_PROMPT_PARTS // 4, "echo"),
        (3, False, MAX_PROMPT_PARTS // 4, "prompt_logprobs"),
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
    monkeypatch.setattr("server.openai.prompts.MAX_PROMPT_PARTS", 2**12)
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

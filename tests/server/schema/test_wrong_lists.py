"""A list of wrong entries ends at the first one: an error for each would hold up everybody."""

from typing import Any

import pytest
from pydantic import ValidationError

from server.schema.chat import ChatCompletionRequest

MESSAGES: list[dict[str, Any]] = [{"role": "user", "content": "a"}]
WRONG = [{}] * 1000

BODIES: dict[str, dict[str, Any]] = {
    "messages": {"messages": WRONG},
    "content": {"messages": [{"role": "user", "content": WRONG}]},
    "tool_calls": {"messages": [{"role": "assistant", "tool_calls": WRONG}]},
    "stop": {"stop": WRONG},
    "stop_token_ids": {"stop_token_ids": WRONG},
    "allowed_token_ids": {"allowed_token_ids": WRONG},
    "bad_words": {"bad_words": WRONG},
    "prediction": {"prediction": {"type": "content", "content": WRONG}},
    "choice": {"structured_outputs": {"choice": WRONG}},
    "guided_choice": {"guided_choice": WRONG},
}


@pytest.mark.parametrize("name", BODIES)
def test_one_wrong_entry_is_reported_and_not_a_thousand(name: str) -> None:
    with pytest.raises(ValidationError) as caught:
        ChatCompletionRequest.model_validate({"messages": MESSAGES, **BODIES[name]})
    # A field with two forms, a text and a list, reports one error for each form.
    assert caught.value.error_count() <= 4
    assert any(name in error["loc"] for error in caught.value.errors())

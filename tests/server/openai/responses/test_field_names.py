"""Errors of a chat in the terms of a response."""

import pytest

from server.errors import InvalidField, NotFound
from server.openai.responses.field_names import response_error, response_field

SOURCES = ["instructions", "previous_response_id", "input.0", "input.3"]


@pytest.mark.parametrize(
    ("chats", "ours"),
    [
        ("messages", "input"),
        ("messages.0.content", "instructions"),
        ("messages.1", "previous_response_id"),
        ("messages.3.tool_calls.0.function.arguments", "input.3"),
        ("messages.9", "input"),
        ("max_completion_tokens", "max_output_tokens"),
        ("max_tokens", "max_output_tokens"),
        ("response_format", "text.format"),
        ("response_format.json_schema.schema", "text.format.schema"),
        ("tools.2.function.parameters.x", "tools.2.parameters.x"),
        ("tools.2", "tools.2"),
        ("tool_choice.function.name", "tool_choice.name"),
        ("reasoning_effort", "reasoning.effort"),
        ("temperature", "temperature"),
        ("structured_outputs.json", "structured_outputs.json"),
        (None, None),
    ],
)
def test_a_field_has_the_responses_name(chats: str | None, ours: str | None) -> None:
    error = response_error(InvalidField(chats, f"{chats} is wrong.", "a_code"), SOURCES)
    assert (error.param, error.message, error.code) == (ours, f"{ours} is wrong.", "a_code")
    if chats is not None and not chats.startswith("messages."):
        assert response_field(chats) == ours


def test_words_of_a_message_that_are_not_fields_stay() -> None:
    error = InvalidField("messages", "The chat template rejects these messages: no messages.")
    assert "rejects these messages" in response_error(error, []).message


def test_other_errors_stay() -> None:
    error = NotFound("The model does not exist.", param="model", code="model_not_found")
    assert response_error(error, SOURCES) is error

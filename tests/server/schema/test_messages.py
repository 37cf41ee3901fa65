"""Messages as chat templates get them."""

from server.schema.messages import Message

CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def test_templates_get_reasoning_under_each_name_that_they_read() -> None:
    for name in ("reasoning", "reasoning_content"):
        message = Message.model_validate({"role": "assistant", "content": "a", name: "r"})
        fields = message.for_template()
        names = ("reasoning", "reasoning_content", "thinking")
        assert [fields[field] for field in names] == ["r"] * 3
    assert "thinking" not in Message(role="assistant", content="a").for_template()


def test_a_call_with_a_text_has_no_thinking_which_gpt_oss_rejects() -> None:
    body = {"role": "assistant", "reasoning": "r", "tool_calls": [CALL]}
    for content, has_thinking in ((None, True), ("", True), ("text", False)):
        fields = Message.model_validate({**body, "content": content}).for_template()
        assert ("thinking" in fields) == has_thinking
        assert fields["reasoning"] == "r"

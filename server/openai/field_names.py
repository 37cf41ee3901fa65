"""How an endpoint names the fields of a chat, for its errors."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FieldNames:
    """The fields whose names or forms differ between the endpoints that generate a chat.

    Attributes:
        messages: all of them.
        chosen_function: the name of the one that must be called.
        format: of the text.
        effort: of reasoning.
        thinking_budget: the most tokens of reasoning.
        logprobs: asks for log probabilities.
        other_choices: of tools, besides `auto`.
        image: of a picture, in its message; `{part}` is the number of its part.
    """

    messages: str = "messages"
    chosen_function: str = "tool_choice.function.name"
    format: str = "response_format"
    effort: str = "reasoning_effort"
    thinking_budget: str = "thinking_token_budget"
    logprobs: str = "logprobs"
    other_choices: str = "'required', a named tool and 'none'"
    image: str = "content.{part}.image_url.url"


CHAT = FieldNames()
"""Those of `/v1/chat/completions`."""

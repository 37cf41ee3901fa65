"""How an endpoint names the fields of a chat, for its errors."""

from collections.abc import Mapping
from dataclasses import dataclass, field


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
        media: of a part's URL or data, in its message, by the part's type; `{part}` is its number.
    """

    messages: str = "messages"
    chosen_function: str = "tool_choice.function.name"
    format: str = "response_format"
    effort: str = "reasoning_effort"
    thinking_budget: str = "thinking_token_budget"
    logprobs: str = "logprobs"
    other_choices: str = "'required', a named tool and 'none'"
    media: Mapping[str, str] = field(
        default_factory=lambda: {
            "image_url": "content.{part}.image_url.url",
            "input_audio": "content.{part}.input_audio.data",
            "audio_url": "content.{part}.audio_url.url",
            "video_url": "content.{part}.video_url.url",
        }
    )


CHAT = FieldNames()
"""Those of `/v1/chat/completions`."""

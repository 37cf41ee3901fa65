"""The messages of a chat, and what chat templates get of them."""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from fastapi.exceptions import RequestValidationError
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import PydanticCustomError

from engine_adapter.seam.media import Modality
from server.errors import to_api_error
from server.schema.base import Bounded
from server.schema.bounds import MAX_PARTS, too_many
from server.schema.generation_body import TextPart
from server.schema.identifiers import MAX_ID, Id
from server.schema.json_values import is_nested_deeper

MAX_MESSAGES = 2048
"""OpenAI's limit of the messages of a chat."""

LEGACY_FIELDS = {"function_call": "tool_calls"}
"""Fields of messages that OpenAI has replaced, and their replacements."""


MAX_ARGUMENT_LEVELS = 100
"""The most levels of objects and lists in a call's arguments: templates walk through them."""


def _as_object(arguments: str | dict[str, Any] | None) -> dict[str, Any]:
    """The object of a call's arguments, which chat templates expect.

    As in vLLM, arguments that are not the JSON of an object become an empty one: the model may
    have written them, and the chat must be able to continue.
    """
    too_deep = too_many("levels of objects and lists", MAX_ARGUMENT_LEVELS)
    value: Any = arguments
    if isinstance(arguments, str):
        try:
            value = json.loads(arguments)
        except json.JSONDecodeError:
            return {}
        except ValueError:  # Python reads no number of thousands of digits
            raise ValueError("has a number with too many digits") from None
        except RecursionError:
            raise ValueError(too_deep) from None
    if not isinstance(value, dict):
        return {}
    if is_nested_deeper(value, MAX_ARGUMENT_LEVELS):
        raise ValueError(too_deep)
    return value


class MediaUrl(BaseModel):
    """Where an item is. `detail` and other fields say nothing to the models served here."""

    model_config = ConfigDict(strict=True)

    url: str


class _UrlPart(BaseModel):
    """An item behind a URL, which is in the field that has the name of the type."""

    model_config = ConfigDict(strict=True)
    data: ClassVar = None

    type: str

    @property
    def url(self) -> str:
        """Where it is."""
        where: MediaUrl = getattr(self, self.type)
        return where.url


class ImagePart(_UrlPart):
    """A picture in a message."""

    modality: ClassVar = Modality.IMAGE

    type: Literal["image_url"]
    image_url: MediaUrl


class AudioUrlPart(_UrlPart):
    """A recording behind a URL, as in vLLM."""

    modality: ClassVar = Modality.AUDIO

    type: Literal["audio_url"]
    audio_url: MediaUrl


class VideoPart(_UrlPart):
    """A video behind a URL, as in vLLM."""

    modality: ClassVar = Modality.VIDEO

    type: Literal["video_url"]
    video_url: MediaUrl


class AudioData(BaseModel):
    """A recording in base64. Its bytes show their format, so `format` has no effect."""

    model_config = ConfigDict(strict=True)

    data: str
    format: str | None = None


class InputAudioPart(BaseModel):
    """A recording in a message."""

    model_config = ConfigDict(strict=True)
    modality: ClassVar = Modality.AUDIO
    url: ClassVar = ""

    type: Literal["input_audio"]
    input_audio: AudioData

    @property
    def data(self) -> str:
        """Its base64."""
        return self.input_audio.data


MediaPart = ImagePart | AudioUrlPart | InputAudioPart | VideoPart
"""A picture, a recording or a video in a message."""

MEDIA_PARTS = ("image_url", "input_audio", "audio_url", "video_url")
"""The types of such parts."""


def _text_or_media(value: Any) -> Any:
    if value != "text":
        reason = f"only parts of the types text, {', '.join(MEDIA_PARTS)} are supported"
        raise PydanticCustomError("content_part", "{reason}", {"reason": reason})
    return value


class ChatText(TextPart):
    """A text in a message, and every part without media."""

    type: Annotated[Literal["text"], BeforeValidator(_text_or_media)]


def _kind(part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else getattr(part, "type", None)
    return str(kind) if kind in MEDIA_PARTS else "other"


ContentPart = Annotated[
    Annotated[ChatText, Tag("other")]
    | Annotated[ImagePart, Tag("image_url")]
    | Annotated[InputAudioPart, Tag("input_audio")]
    | Annotated[AudioUrlPart, Tag("audio_url")]
    | Annotated[VideoPart, Tag("video_url")],
    Discriminator(_kind),
]
"""A part of a message."""


class CalledFunction(Bounded):
    """The function of an earlier call. Arguments are JSON text, or the object itself."""

    model_config = ConfigDict(extra="allow", strict=True)

    name: str
    arguments: Annotated[str | dict[str, Any] | None, AfterValidator(_as_object)] = None


class EarlierCall(Bounded):
    """A call that the assistant has made; undeclared fields are passed to the template."""

    model_config = ConfigDict(extra="allow", strict=True)

    id: Id | None = None
    type: Literal["function"] = "function"
    function: CalledFunction

    def for_template(self) -> dict[str, Any]:
        """The call as chat templates expect it: its arguments are an object."""
        function = self.function
        fields = {
            **(function.model_extra or {}),
            "name": function.name,
            "arguments": function.arguments or {},
        }
        return {**(self.model_extra or {}), "id": self.id, "type": self.type, "function": fields}


def _known_role(value: Any) -> Any:
    if value == "function":
        message = "the role 'function' is not supported; send 'tool' with `tool_call_id`"
        raise PydanticCustomError("legacy_role", "{reason}", {"reason": message})
    return value


Role = Annotated[
    Literal["system", "developer", "user", "assistant", "tool"], BeforeValidator(_known_role)
]
"""Who says a message."""


class Message(Bounded):
    """A message of a chat; undeclared fields are passed to the chat template unchanged."""

    model_config = ConfigDict(extra="allow", strict=True)

    role: Role
    content: str | Annotated[list[ContentPart], Field(fail_fast=True)] | None = None
    tool_calls: Annotated[list[EarlierCall], Field(fail_fast=True)] | None = None
    tool_call_id: Id | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None

    @property
    def text(self) -> str:
        """The content as one text, without its media."""
        if isinstance(self.content, list):
            return "\n".join(part.text for part in self.content if isinstance(part, TextPart))
        return self.content or ""

    @property
    def media(self) -> dict[int, MediaPart]:
        """The pictures, recordings and videos, by the number of their part."""
        parts = self.content if isinstance(self.content, list) else ()
        return {number: part for number, part in enumerate(parts) if not isinstance(part, TextPart)}

    def for_template(self) -> dict[str, Any]:
        """The message as chat templates expect it.

        Its content is one string; with media it is a list of parts, as templates know them.
        `developer` is OpenAI's newer name of `system`; templates know the older name. Templates
        read reasoning under three names. gpt-oss's rejects a call with both a text and `thinking`.
        """
        content: Any = None if self.content is None else self.text
        if self.media:
            assert isinstance(self.content, list)
            content = [_template_part(part) for part in self.content]
        role = "system" if self.role == "developer" else self.role
        fields = {**(self.model_extra or {}), "role": role, "content": content}
        if self.tool_calls:
            fields["tool_calls"] = [call.for_template() for call in self.tool_calls]
        if self.tool_call_id is not None:
            fields["tool_call_id"] = self.tool_call_id
        if reasoning := self.reasoning or self.reasoning_content:
            fields |= {"reasoning": reasoning, "reasoning_content": reasoning}
            if not (self.tool_calls and content):
                fields["thinking"] = reasoning
        return fields


def _template_part(part: TextPart | MediaPart) -> dict[str, str]:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    return {"type": part.modality}


def _is_complete(message: Message) -> Message:
    if message.media and message.role not in ("user", "tool"):
        raise ValueError("only messages with the role user or tool have media")
    if message.content is None and message.role != "assistant":
        raise ValueError(f"a message with the role {message.role} needs content")
    if message.tool_calls and message.role != "assistant":
        raise ValueError("only messages with the role assistant have tool_calls")
    name = (message.model_extra or {}).get("name")
    if isinstance(name, str) and len(name) > MAX_ID:
        raise ValueError(f"its name {too_many('characters', MAX_ID, len(name))}")
    for name, instead in LEGACY_FIELDS.items():
        if (message.model_extra or {}).get(name) is not None:
            raise ValueError(f"{name} is not supported; send {instead}")
    return message


def _few_parts(messages: Any) -> Any:
    if isinstance(messages, list):
        lists = (
            values
            for message in messages
            if isinstance(message, dict)
            for values in (message.get("content"), message.get("tool_calls"))
            if isinstance(values, list)
        )
        if (count := sum(map(len, lists))) > MAX_PARTS:
            reason = f"have {count} parts and tool calls together; the maximum is {MAX_PARTS}"
            raise PydanticCustomError("too_many_parts", "{reason}", {"reason": reason})
    return messages


Messages = Annotated[
    list[Annotated[Message, AfterValidator(_is_complete)]],
    Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True),
    BeforeValidator(_few_parts),
]
"""At least one message."""

_MESSAGES: TypeAdapter[list[Message]] = TypeAdapter(Messages)


def checked_messages(
    messages: Sequence[Mapping[str, Any]], names: Sequence[str], param: str
) -> list[Message]:
    """Messages that another form of a conversation was turned into.

    Args:
        names: the field of the body that each message comes from.
        param: the field that they come from together.

    Raises:
        ApiError: a message is not valid; the error names its field.
    """
    try:
        return _MESSAGES.validate_python(list(messages))
    except ValidationError as error:
        details = []
        for detail in error.errors():
            numbers = detail["loc"][:1]
            name = names[int(numbers[0])] if numbers else param
            details.append({**detail, "loc": ("body", name)})
        raise to_api_error(RequestValidationError(details, body={})) from None

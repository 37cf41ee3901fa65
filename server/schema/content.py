"""Text that may come in parts, as OpenAI's bodies have it, and what a client predicts."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict
from pydantic_core import PydanticCustomError

from server.schema.base import Strict


def _text_only(value: Any) -> Any:
    if value != "text":
        message = "only text parts are supported"
        raise PydanticCustomError("content_part", "{reason}", {"reason": message})
    return value


class TextPart(BaseModel):
    """A part of a text."""

    model_config = ConfigDict(strict=True)

    type: Annotated[Literal["text"], BeforeValidator(_text_only)]
    text: str


class Prediction(Strict):
    """The text that a client expects, or most of it."""

    type: Literal["content"]
    content: str | list[TextPart]

    @property
    def text(self) -> str:
        """The whole text; its parts follow one another without a break."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)

"""The bodies of `/tokenize` and `/detokenize`, as in vLLM."""

from typing import Annotated

from pydantic import Field

from server.schema.base import Body
from server.schema.chat import ChatPromptFields
from server.schema.messages import Messages


class TokenizeRequest(Body, ChatPromptFields):
    """A text (`prompt`) or a chat (`messages`), exactly one of the two.

    The default of `add_special_tokens` is true for a text, and false for a chat, because its
    template writes the special tokens.
    """

    prompt: str | None = None
    messages: Messages | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(Body):
    """Token ids to convert to text."""

    tokens: Annotated[list[int], Field(fail_fast=True)]

"""The bodies of `/tokenize` and `/detokenize`, as vLLM has them."""

from server.schema.base import Body
from server.schema.chat import ChatPromptFields, Messages


class TokenizeRequest(Body, ChatPromptFields):
    """A text (`prompt`) or a chat (`messages`), exactly one of the two.

    `add_special_tokens` is true for a text and false for a chat, whose template writes them.
    """

    prompt: str | None = None
    messages: Messages | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(Body):
    """Token ids to make a text of."""

    tokens: list[int]

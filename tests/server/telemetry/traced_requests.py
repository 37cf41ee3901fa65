"""Requests whose traces are looked at, and values of OpenTelemetry's protocol."""

from typing import Any

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ERROR, UNSET = 2, 0
CHATS = "/v1/chat/completions"


def chat(content: str = "hi") -> dict[str, Any]:
    """The body of a chat with an answer of one token."""
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 1}

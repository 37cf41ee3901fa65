"""Bodies below the limit of bytes that would take the gateway long, and what is to come of them."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class LargeBody:
    """A body.

    Attributes:
        make: makes its bytes.
        status: the answer that it must get.
    """

    path: str
    make: Callable[[], bytes]
    status: int


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _chat(**fields: Any) -> bytes:
    return _json({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, **fields})


def _completion(**fields: Any) -> bytes:
    return _json({"prompt": "a", "max_tokens": 1, **fields})


def _messages(count: int, content: Any = "a") -> bytes:
    return _json({"messages": [{"role": "user", "content": content}] * count, "max_tokens": 1})


def _parts(count: int) -> list[dict[str, str]]:
    return [{"type": "text", "text": "a"}] * count


def _unknown(count: int) -> dict[str, int]:
    return {f"field{i}": 1 for i in range(count)}


CHATS, COMPLETIONS = "/v1/chat/completions", "/v1/completions"

LARGE: dict[str, LargeBody] = {
    "300k messages": LargeBody(CHATS, lambda: _messages(300_000), 413),
    "10k messages": LargeBody(CHATS, lambda: _messages(10_000), 400),
    "2048 messages": LargeBody(CHATS, lambda: _messages(2048), 400),
    "120k parts": LargeBody(CHATS, lambda: _messages(1, _parts(120_000)), 400),
    "10k parts": LargeBody(CHATS, lambda: _messages(1, _parts(10_000)), 400),
    "1.5M unknown fields": LargeBody(COMPLETIONS, lambda: _completion(**_unknown(1_500_000)), 413),
    "240k unknown fields": LargeBody(COMPLETIONS, lambda: _completion(**_unknown(240_000)), 400),
    "240k nested unknown": LargeBody(
        COMPLETIONS, lambda: _completion(spec_decode=_unknown(240_000)), 400
    ),
    "1.5M stop strings": LargeBody(
        COMPLETIONS, lambda: _completion(stop=[f"s{i}" for i in range(1_500_000)]), 413
    ),
    "8M allowed ids": LargeBody(
        COMPLETIONS, lambda: _completion(allowed_token_ids=[5] * 8_000_000), 413
    ),
    "10M ids to detokenize": LargeBody(
        "/detokenize", lambda: _json({"tokens": [5] * 10_000_000}), 413
    ),
    "900k ids to detokenize": LargeBody(
        "/detokenize", lambda: _json({"tokens": [5] * 900_000}), 200
    ),
    "900k bad ids": LargeBody("/detokenize", lambda: _json({"tokens": ["a"] * 900_000}), 400),
    "8.8 MB to tokenize": LargeBody(
        "/tokenize", lambda: _json({"prompt": "word " * 1_760_000, "return_token_strs": True}), 400
    ),
    "1 MB to tokenize": LargeBody(
        "/tokenize", lambda: _json({"prompt": "word " * 200_000, "return_token_strs": True}), 200
    ),
    "31 MiB prompt": LargeBody(COMPLETIONS, lambda: _completion(prompt="word " * 6_500_000), 400),
    "31 MiB message": LargeBody(CHATS, lambda: _messages(1, "word " * 6_500_000), 400),
    "31 MiB prediction": LargeBody(
        COMPLETIONS,
        lambda: _completion(prediction={"type": "content", "content": "word " * 6_500_000}),
        400,
    ),
    "900k ids as a prompt": LargeBody(COMPLETIONS, lambda: _completion(prompt=[5] * 900_000), 400),
    "2048 prompts of 400 ids": LargeBody(
        COMPLETIONS, lambda: _completion(prompt=[[5] * 400] * 2048), 200
    ),
    "2048 prompts of 8 kB": LargeBody(
        COMPLETIONS, lambda: _completion(prompt=["word " * 1600] * 2048), 200
    ),
    "900k values in metadata": LargeBody(
        COMPLETIONS, lambda: _completion(metadata={"a": [1] * 900_000}), 200
    ),
    "240k variables": LargeBody(
        CHATS, lambda: _chat(chat_template_kwargs=_unknown(240_000)), 400
    ),
    "31 MiB text in metadata": LargeBody(
        COMPLETIONS, lambda: _completion(metadata={"a": "x" * 31 * 2**20}), 400
    ),
    "deep": LargeBody(COMPLETIONS, lambda: b'{"prompt":"a","x":' + b"[" * 5_000_000, 400),
    "300k items": LargeBody(
        "/v1/responses", lambda: _json({"input": [{"role": "user", "content": "a"}] * 300_000}), 413
    ),
    "4096 items": LargeBody(
        "/v1/responses", lambda: _json({"input": [{"role": "user", "content": "a"}] * 4096}), 400
    ),
}  # fmt: skip
"""Name -> body."""

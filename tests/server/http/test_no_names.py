"""Without DNS a server serves: no request, and no refusal of one, looks up a name."""

import asyncio
import socket
from typing import Any

import pytest

from tests.server.conftest import StartGateway

REQUESTS: list[tuple[str, str, dict[str, Any] | None, int]] = [
    ("POST", "/v1/completions", {"prompt": "a", "max_tokens": 2}, 200),
    ("POST", "/v1/completions", {"prompt": "a", "max_tokens": 2, "stream": True}, 200),
    ("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}, 200),
    ("POST", "/v1/responses", {"input": "a", "max_output_tokens": 16}, 200),
    ("POST", "/tokenize", {"prompt": "a"}, 200),
    ("GET", "/v1/models", None, 200),
    ("GET", "/health", None, 200),
    ("GET", "/ready", None, 200),
    ("GET", "/metrics", None, 200),
    ("GET", "/v1/spec_method", None, 200),
    ("POST", "/v1/switch_spec_method", {"proposer": "ngram"}, 200),
    ("POST", "/v1/completions", {"prompt": "a", "model": "names.example/m"}, 404),
    (
        "POST",
        "/v1/load_proposer",
        {"name": "x", "method": "medusa", "model": "names.example/x"},
        400,
    ),
    ("POST", "/v1/load_lora_adapter", {"lora_name": "x", "lora_path": "names.example/x"}, 400),
]


async def test_no_request_looks_up_a_name(
    start: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = await start(enable_lora=True)
    asked: list[object] = []

    def look_up(*name: object, **_: object) -> None:
        asked.append(name)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    async def look_up_soon(*name: object, **_: object) -> None:
        look_up(*name)

    for function in ("getaddrinfo", "gethostbyname", "gethostbyaddr", "getfqdn", "getnameinfo"):
        monkeypatch.setattr(socket, function, look_up)
    for function in ("getaddrinfo", "getnameinfo"):
        monkeypatch.setattr(asyncio.get_running_loop(), function, look_up_soon)
    for method, path, body, status in REQUESTS:
        answer = await gateway.client.request(method, path, json=body)
        assert answer.status_code == status, (path, answer.text)
    assert asked == []

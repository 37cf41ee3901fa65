"""The figures of speculation reach clients that drop `metrics`: in `usage`, and in headers."""

from typing import Any

import pytest

from server.http.headers import ACCEPTED_DRAFT_TOKENS, DRAFT_TOKENS
from tests.server.gateway import Gateway
from tests.server.routes.test_choosing_without_fields import BODIES


@pytest.mark.parametrize("path", BODIES)
async def test_they_are_those_of_metrics(gateway: Gateway, path: str) -> None:
    more: dict[str, Any] = {"temperature": 0, "spec_decode": {"proposer": "ngram"}}
    if path != "/v1/responses":
        more["n"] = 3
    limits = {"max_tokens": 60, "max_output_tokens": 60}
    body = BODIES[path] | more
    body |= {name: value for name, value in limits.items() if name in body}
    response = await gateway.client.post(path, json=body)
    metrics = response.json()["metrics"]["speculative_decoding"]
    usage = response.json()["usage"]
    details = usage.get("completion_tokens_details") or usage["output_tokens_details"]
    for name, header in (
        ("num_draft_tokens", DRAFT_TOKENS),
        ("num_accepted_draft_tokens", ACCEPTED_DRAFT_TOKENS),
    ):
        assert details[name] == metrics[name] == int(response.headers[header])
    assert 0 < metrics["num_accepted_draft_tokens"] < metrics["num_draft_tokens"]


async def test_a_stream_has_them_in_its_usage_but_not_in_headers(gateway: Gateway) -> None:
    options = {"include_usage": True}
    response = await gateway.chat("word", stream=True, stream_options=options, max_tokens=40)
    assert "num_draft_tokens" in response.text
    assert DRAFT_TOKENS not in response.headers


async def test_plain_decoding_drafts_nothing(gateway: Gateway) -> None:
    response = await gateway.chat("word", max_tokens=5, spec_decode={"proposer": None})
    details = response.json()["usage"]["completion_tokens_details"]
    assert details == {"num_draft_tokens": 0, "num_accepted_draft_tokens": 0}
    assert response.headers[DRAFT_TOKENS] == "0"

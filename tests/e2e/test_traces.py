"""The traces of a server on a real engine, as its user starts it."""

import asyncio
from pathlib import Path

import pytest

from tests.e2e.served import Served
from tests.server.telemetry.otlp_receiver import receiving

pytestmark = [pytest.mark.engine, pytest.mark.prove, pytest.mark.timeout(600)]

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
CHAT = {
    "messages": [{"role": "user", "content": "Write a function that adds two numbers."}],
    "max_tokens": 48,
    "temperature": 0,
}


async def test_the_drafts_of_a_real_engine_are_in_its_spans(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    async with receiving() as receiver:
        flags = ("--otlp-traces-endpoint", receiver.url, "--slow-request-s", "0.001")
        served = await asyncio.to_thread(Served.start_beside, log, *flags)
        try:
            headers = {"traceparent": PARENT}
            figures = []
            for method in ("draft", "ngram"):
                await asyncio.to_thread(served.switch, method)
                answer = await asyncio.to_thread(
                    served.post, "/v1/chat/completions", CHAT, headers=headers
                )
                figures.append(answer.json()["metrics"]["speculative_decoding"])
            stream = {**CHAT, "stream": True}
            await asyncio.to_thread(served.post, "/v1/chat/completions", stream, headers=headers)
        finally:
            status = await asyncio.to_thread(served.stop)
        assert status == 0, served.tail()
        # The stop has sent what was left.
        spans = receiver.spans
    switches = [span for span in spans if span.name == "POST /v1/switch_spec_method"]
    assert [span.attributes["specgate.spec_method"] for span in switches] == ["draft", "ngram"]
    chats = [span for span in spans if span.name == "chat specgate-demo"]
    assert [span.attributes["gen_ai.request.stream"] for span in chats] == [False, False, True]
    assert {span.parent_id for span in chats} == {PARENT[36:52]}
    for span, method, own in zip(chats, ("draft", "ngram"), figures, strict=False):
        found = span.attributes
        assert found["specgate.spec_method"] == method
        assert found["specgate.draft_tokens"] == own["num_draft_tokens"]
        assert found["specgate.accepted_tokens"] == own["num_accepted_draft_tokens"]
        assert found["specgate.time_to_first_token_s"] > 0
        assert found["gen_ai.usage.output_tokens"] == 48
    assert chats[0].attributes["specgate.proposers"] == ["draft"]
    assert chats[0].attributes["specgate.accepted_tokens"] > 0
    lines = log.read_text(errors="replace").splitlines()
    assert sum("slow_request" in line and PARENT[3:35] in line for line in lines) == 3

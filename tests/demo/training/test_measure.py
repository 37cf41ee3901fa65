"""The measurement sends pinned requests and aggregates the replies."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from demo.prompts import load_prompts
from demo.training.measure import Reply, aggregate, loaded_proposers, measure, table


def server(seen: list[dict[str, Any]]) -> httpx.Client:
    """A client whose server answers every chat with one token, then ten in four steps."""

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "demo"}]})
        if request.url.path == "/v1/proposers":
            return httpx.Response(200, json={"data": [{"name": "ngram"}, {"name": "draft"}]})
        seen.append(json.loads(request.content))
        figures = {
            "mean_tokens_per_step": 2.5,
            "num_draft_tokens": 20,
            "num_accepted_draft_tokens": 6,
        }
        return httpx.Response(
            200,
            json={
                "choices": [{"finish_reason": "stop"}],
                "usage": {"completion_tokens": 11},
                "metrics": {"speculative_decoding": figures},
            },
        )

    return httpx.Client(base_url="http://test", transport=httpx.MockTransport(answer))


def test_each_prompt_is_sent_with_a_pinned_proposer_and_a_seed() -> None:
    seen: list[dict[str, Any]] = []
    prompts = load_prompts()[:2]
    replies = measure(server(seen), prompts, "ngram:5", 0.7)
    assert [body["messages"] for body in seen] == [prompt.messages for prompt in prompts]
    assert seen[0]["spec_decode"] == {"proposer": "ngram", "num_speculative_tokens": 5}
    assert (seen[0]["model"], seen[0]["temperature"], seen[0]["max_tokens"]) == ("demo", 0.7, 128)
    assert seen[0]["seed"] == seen[1]["seed"]
    assert replies == [Reply(10, 2.5, 20, 6, True)] * 2


def test_proposers_are_read_from_the_server() -> None:
    assert loaded_proposers(server([])) == ["ngram", "draft"]


def test_aggregation_divides_all_tokens_by_all_steps() -> None:
    row = aggregate(
        "free", 0.0, "draft", [Reply(30, 3.0, 40, 20, True), Reply(10, 1.0, 10, 0, False)]
    )
    assert row.tokens_per_step == pytest.approx(40 / 20)
    assert row.acceptance_rate == pytest.approx(0.4)
    assert row.ended == 0.5


def test_table_has_a_line_for_each_row() -> None:
    row = aggregate("quote", 0.7, "none", [Reply(8, 1.0, 0, 0, True)])
    assert list(table([row]))[-1] == "| quote | 0.7 | `none` | 1.00 |  | 100% |"

"""The proposer that a request selects, and the statistics in its response."""

import asyncio
from collections.abc import MutableMapping
from typing import Any

import pytest

from engine_adapter.policies.names import POLICY_NAMES
from server.http.event_stream import DONE
from tests.server.conftest import StartGateway
from tests.server.gateway import Gateway, events

CHOICES: list[tuple[dict[str, Any], str, int]] = [
    ({}, "draft", 4),
    ({"spec_decode": None}, "draft", 4),
    ({"spec_decode": {}}, "draft", 4),
    ({"spec_decode": {"proposer": "ngram"}}, "ngram", 5),
    ({"spec_decode": {"proposer": "[ngram]", "num_speculative_tokens": 2}}, "ngram", 2),
    ({"spec_decode": {"proposer": "auto"}}, "auto", 8),
    ({"spec_decode": {"proposer": "load", "num_speculative_tokens": 3}}, "load", 3),
    ({"speculative_model": "auto"}, "auto", 8),
    ({"speculative_model": "auto", "spec_decode": {"proposer": "auto"}}, "auto", 8),
    ({"spec_decode": {"proposer": "auto", "num_speculative_tokens": 0}}, "none", 0),
    ({"spec_decode": {"proposer": "none"}}, "none", 0),
    ({"spec_decode": {"proposer": None}}, "none", 0),
    ({"spec_decode": {"num_speculative_tokens": 0}}, "none", 0),
    ({"spec_decode": {"num_speculative_tokens": 1}}, "draft", 1),
    ({"speculative_model": "ngram"}, "ngram", 5),
    ({"speculative_model": "None"}, "none", 0),
    ({"speculative_model": None}, "draft", 4),
    ({"speculative_model": None, "num_speculative_tokens": None}, "draft", 4),
    ({"speculative_model": "ngram", "num_speculative_tokens": 3}, "ngram", 3),
    ({"speculative_model": "ngram", "spec_decode": {"proposer": "ngram"}}, "ngram", 5),
    ({"speculative_model": "disable", "spec_decode": {"proposer": None}}, "none", 0),
    ({"num_speculative_tokens": 2, "spec_decode": {"proposer": "ngram"}}, "ngram", 2),
]
"""Fields, and the proposer and k that they mean on the demo's settings."""

NESTED_K = "spec_decode.num_speculative_tokens"

REFUSED: list[tuple[dict[str, Any], str, str | None]] = [
    ({"spec_decode": {"proposer": "nope"}}, "spec_decode.proposer", "proposer_not_found"),
    ({"speculative_model": "nope"}, "speculative_model", "proposer_not_found"),
    ({"speculative_model": "Auto"}, "speculative_model", "proposer_not_found"),
    (
        {"spec_decode": {"proposer": "auto", "num_speculative_tokens": 9}},
        NESTED_K,
        "num_speculative_tokens_too_large",
    ),
    ({"speculative_model": "auto", "spec_decode": {"proposer": "load"}}, "speculative_model", None),
    ({"spec_decode": {"proposer": 5}}, "spec_decode.proposer", None),
    ({"spec_decode": {"proposer": ["ngram"]}}, "spec_decode.proposer", None),
    ({"spec_decode": {"k": 5}}, "spec_decode.k", "unknown_parameter"),
    ({"spec_decode": "ngram"}, "spec_decode", None),
    ({"spec_decode": {"num_speculative_tokens": -1}}, NESTED_K, None),
    ({"spec_decode": {"num_speculative_tokens": "4"}}, NESTED_K, None),
    ({"spec_decode": {"num_speculative_tokens": True}}, NESTED_K, None),
    ({"spec_decode": {"num_speculative_tokens": 1.5}}, NESTED_K, None),
    (
        {"spec_decode": {"proposer": "ngram", "num_speculative_tokens": 6}},
        NESTED_K,
        "num_speculative_tokens_too_large",
    ),
    (
        {"num_speculative_tokens": 1000},
        "num_speculative_tokens",
        "num_speculative_tokens_too_large",
    ),
    ({"num_speculative_tokens": -1}, "num_speculative_tokens", None),
    ({"num_speculative_tokens": "2"}, "num_speculative_tokens", None),
    ({"speculative_model": 5}, "speculative_model", None),
    (
        {"speculative_model": "ngram", "spec_decode": {"proposer": "draft"}},
        "speculative_model",
        None,
    ),
    ({"speculative_model": "ngram", "spec_decode": {"proposer": None}}, "speculative_model", None),
    (
        {"num_speculative_tokens": 1, "spec_decode": {"num_speculative_tokens": 2}},
        "num_speculative_tokens",
        None,
    ),
]
"""Fields, and the error's `param` and `code`."""


async def test_the_selection_is_in_header_and_body(gateway: Gateway) -> None:
    for fields, name, k in CHOICES:
        for ask in (gateway.complete, gateway.chat):
            response = await ask(max_tokens=12, **fields)
            assert response.status_code == 200, (fields, response.text)
            assert response.headers["x-specgate-spec-method"] == name, fields
            figures = response.json()["metrics"]["speculative_decoding"]
            assert (figures["proposer"], figures["num_spec_tokens"]) == (name, k), fields
            if name not in POLICY_NAMES:
                assert set(figures["by_proposer"]) <= {name}, fields


async def test_an_invalid_selection_is_a_400_that_names_the_field(gateway: Gateway) -> None:
    for fields, param, code in REFUSED:
        for ask in (gateway.complete, gateway.chat):
            response = await ask(**fields)
            error = response.json()["error"]
            assert response.status_code == 400, (fields, error)
            assert (error["param"], error["code"]) == (param, code), fields


async def test_an_unknown_proposer_is_a_400_that_lists_the_names(gateway: Gateway) -> None:
    message = (await gateway.chat(speculative_model="nope")).json()["error"]["message"]
    for name in ("ngram", "suffix", "draft", "draft-small", "none"):
        assert name in message


@pytest.mark.parametrize("stream", [False, True])
async def test_statistics_of_choices_sum_to_the_responses(gateway: Gateway, stream: bool) -> None:
    response = await gateway.complete(["a = 1", "b = 2"], n=2, max_tokens=30, stream=stream)
    chunks = events(response) if stream else [response.json()]
    parts = [
        choice["speculative_decoding"]
        for chunk in chunks
        for choice in chunk["choices"]
        if "speculative_decoding" in choice
    ]
    (whole,) = [c["metrics"]["speculative_decoding"] for c in chunks if "metrics" in c]
    assert len(parts) == 4
    assert whole["num_draft_tokens"] > 0
    for key in ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens"):
        assert whole[key] == sum(part[key] for part in parts)
    for j, count in enumerate(whole["acceptance_histogram"]):
        assert count == sum(part["acceptance_histogram"][j] for part in parts)
    assert set(whole) == {
        "mean_acceptance_length",
        "mean_tokens_per_step",
        "draft_acceptance_rate",
        "acceptance_histogram",
        "num_spec_steps",
        "num_draft_tokens",
        "num_accepted_draft_tokens",
        "num_spec_tokens",
        "proposer",
        "by_proposer",
    }


async def test_perfect_drafts_show_in_the_figures(start: StartGateway) -> None:
    gateway = await start(engine_args={"fake_acceptance": 1})
    body = (await gateway.complete(max_tokens=41, ignore_eos=True)).json()
    figures = body["metrics"]["speculative_decoding"]
    assert figures["draft_acceptance_rate"] == 1.0
    assert figures["mean_acceptance_length"] == figures["mean_tokens_per_step"] == 5.0
    assert figures["acceptance_histogram"] == [0, 0, 0, 0, 8]


async def test_admissions_are_counted_by_the_origin_of_the_selection(gateway: Gateway) -> None:
    await gateway.complete(max_tokens=1)
    await gateway.complete(["a", "b"], n=2, max_tokens=1, speculative_model="ngram")
    name = "specgate_requests_total"
    assert gateway.sample(name, proposer="draft", selected_by="active") == 1
    assert gateway.sample(name, proposer="ngram", selected_by="request") == 1


async def test_a_switch_changes_the_next_requests_method(gateway: Gateway) -> None:
    response = await gateway.post("/v1/switch_spec_method", {"speculative_model": "suffix"})
    assert response.status_code == 200, response.text
    assert (await gateway.chat(max_tokens=1)).headers["x-specgate-spec-method"] == "suffix"


async def test_request_is_in_flight_until_it_ends(start: StartGateway) -> None:
    gateway = await start(engine_args={"fake_hang_after_steps": 3})
    exchange = gateway.exchange("/v1/completions", {"prompt": "a", "speculative_model": "ngram"})
    task = exchange.begin()
    async with asyncio.timeout(30):
        while not gateway.engine.num_running:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert dict(gateway.runtime.switcher.in_flight.by_proposer) == {"ngram": 1}
    exchange.leave()
    await task
    assert dict(gateway.runtime.switcher.in_flight.by_proposer) == {}


@pytest.mark.parametrize("with_usage", [False, True])
async def test_a_client_that_has_seen_the_end_is_not_in_flight(
    gateway: Gateway, with_usage: bool
) -> None:
    body = {"prompt": "a", "max_tokens": 4, "stream": True}
    options = {"stream_options": {"include_usage": with_usage}}
    counts: list[tuple[bytes, int]] = []

    def count(message: MutableMapping[str, Any]) -> None:
        in_flight = len(gateway.runtime.switcher.in_flight)
        counts.append((message.get("body", b"start"), in_flight))

    await gateway.exchange("/v1/completions", body | options, on_send=count).begin()
    ends = 3 if with_usage else 2
    assert [sent for sent, _ in counts[-2:]] == [DONE, b""]
    assert [in_flight for _, in_flight in counts[-ends:]] == [0] * ends
    assert {in_flight for _, in_flight in counts[:-ends]} == {1}


@pytest.mark.parametrize("mode", ["immediate", "new_requests", "drain"])
async def test_a_policy_is_switched_to_in_every_mode(gateway: Gateway, mode: str) -> None:
    body = {"speculative_model": "auto", "num_speculative_tokens": 3, "mode": mode}
    response = await gateway.post("/v1/switch_spec_method", body)
    assert response.status_code == 200, response.text
    active = {"spec_method": "auto", "num_speculative_tokens": 3}
    assert response.json()["active"] == active
    assert gateway.sample("specgate_spec_method_info", spec_method="auto") == 1
    answer = await gateway.complete(max_tokens=60, ignore_eos=True)
    figures = answer.json()["metrics"]["speculative_decoding"]
    assert (figures["proposer"], figures["num_spec_tokens"]) == ("auto", 3)
    assert figures["num_draft_tokens"] > 0
    assert len(figures["acceptance_histogram"]) == 4, "no draft is longer than the cap"


async def test_running_requests_change_to_a_policy(start: StartGateway) -> None:
    gateway = await start(spec_method="none", engine_args={"fake_step_ms": 1})
    running = asyncio.create_task(gateway.complete(max_tokens=200, ignore_eos=True))
    while not gateway.engine.num_running:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    await gateway.post("/v1/switch_spec_method", {"speculative_model": "auto"})
    figures = (await running).json()["metrics"]["speculative_decoding"]
    assert figures["proposer"] == "none", "as chosen at admission"
    assert figures["num_draft_tokens"] > 0

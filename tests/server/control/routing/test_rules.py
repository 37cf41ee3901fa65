"""Which requests a rule matches, and which rules never decide."""

import time
from dataclasses import replace
from typing import Any

import pytest

from server.control.method_names import MethodRequest
from server.control.routing.rules import MAX_VALUE_CHARS, Match, Range, Rule, Traits, unreachable

REQUEST = Traits(
    model="demo",
    headers={"x-app": "chat-web"},
    api_key="team-a",
    prompt_tokens=100,
    temperature=0.7,
    structured=True,
)


def rule(name: str, **conditions: Any) -> Rule:
    return Rule(name, Match(**conditions), MethodRequest("none", is_named=True), {})


@pytest.mark.parametrize(
    ("match", "why"),
    [
        (Match(), None),
        (Match(model="demo"), None),
        (Match(model="sql"), "model is 'demo', not 'sql'"),
        (Match(headers=(("x-app", "chat-web"),)), None),
        (Match(headers=(("x-app", "chat-*"),)), None),
        (Match(headers=(("x-app", "CHAT-*"),)), "header x-app is 'chat-web', which"),
        (Match(headers=(("x-app", "*"), ("x-other", "*"))), "there is no header x-other"),
        (Match(api_key="team-a"), None),
        (Match(api_key="team-b"), "api_key is 'team-a', not 'team-b'"),
        (Match(prompt_tokens=Range(100, 100)), None),
        (Match(prompt_tokens=Range(101, None)), "prompt_tokens is 100, below 101"),
        (Match(temperature=Range(None, 0.5)), "temperature is 0.7, above 0.5"),
        (Match(structured=True), None),
        (Match(structured=False), "structured is True, not False"),
        (Match(model="demo", structured=False), "structured is True, not False"),
    ],
)
def test_all_conditions_must_hold(match: Match, why: str | None) -> None:
    found = match.mismatch(REQUEST)
    assert found is None if why is None else (found or "").startswith(why)


def test_a_long_header_matches_nothing() -> None:
    match = Match(headers=(("x-app", "*"),))
    for length, matches in ((MAX_VALUE_CHARS, True), (MAX_VALUE_CHARS + 1, False)):
        request = replace(REQUEST, headers={"x-app": "a" * length})
        assert (match.mismatch(request) is None) is matches


def test_a_pattern_with_many_stars_is_matched_in_bounded_time() -> None:
    match = Match(headers=(("x-app", "*a" * 127 + "b"),))
    request = replace(REQUEST, headers={"x-app": "a" * MAX_VALUE_CHARS})
    began = time.process_time()
    assert match.mismatch(request) is not None
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {"model": "a"}),
        ({"model": "a"}, {"model": "a", "structured": True}),
        ({"prompt_tokens": Range(1, None)}, {}),
        ({"prompt_tokens": Range(10, 100)}, {"prompt_tokens": Range(20, 90)}),
        ({"temperature": Range(0, 2)}, {"model": "a"}),
        ({"headers": (("x", "y"),)}, {"headers": (("x", "y"), ("z", "*"))}),
        ({"overlap": Range(0.2)}, {"overlap": Range(0.5)}),
    ],
)
def test_a_rule_behind_one_that_matches_all_its_requests_is_reported(
    first: dict[str, Any], second: dict[str, Any]
) -> None:
    (warning,) = unreachable([rule("wide", **first), rule("narrow", **second)])
    assert warning.startswith("rules.1 (narrow) never decides: wide, which comes before it")
    if not first:
        assert warning.endswith("matches every request")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"model": "a"}, {}),
        ({"model": "a"}, {"model": "b"}),
        ({"prompt_tokens": Range(10, 100)}, {"prompt_tokens": Range(20, 110)}),
        ({"prompt_tokens": Range(2, None)}, {}),
        ({"temperature": Range(None, 1)}, {}),
        ({"headers": (("x", "*"),)}, {}),
        ({"overlap": Range(0, 1)}, {}),
    ],
)
def test_a_rule_that_some_request_reaches_is_not_reported(
    first: dict[str, Any], second: dict[str, Any]
) -> None:
    assert unreachable([rule("one", **first), rule("other", **second)]) == ()

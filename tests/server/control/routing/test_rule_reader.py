"""Routing rules as users write them: what is accepted, and which field each error names."""

import time
from typing import Any

import pytest

from engine_adapter.seam.types import ProposerInfo
from server.control.method_names import LoadedProposers
from server.control.routing.rule_reader import MAX_HEADERS, RuleError, read_rules
from server.control.routing.rules import MAX_RULES, Match, Range

LOADED = LoadedProposers(
    (ProposerInfo("ngram", "ngram", None, 5), ProposerInfo("draft", "draft_model", "m", 4)),
    primary="draft",
    max_speculative_tokens=8,
)
KEYS = ("team-a", "team-b")
USE = {"proposer": "ngram"}


def one(**fields: Any) -> dict[str, Any]:
    return {"name": "r", "use": USE, **fields}


def test_a_rule_with_every_condition_is_read() -> None:
    match = {
        "model": "specgate-demo",
        "header": {"X-App": "chat-*"},
        "api_key": "team-a",
        "prompt_tokens": {"min": 10, "max": 100},
        "temperature": {"max": 0.5},
        "structured": False,
        "overlap": {"min": 0.6},
    }
    (rule,) = read_rules([one(match=match)], LOADED, KEYS)
    assert rule.match == Match(
        model="specgate-demo",
        headers=(("x-app", "chat-*"),),
        api_key="team-a",
        prompt_tokens=Range(10, 100),
        temperature=Range(None, 0.5),
        structured=False,
        overlap=Range(0.6, None),
    )
    assert (rule.name, rule.use.proposer) == ("r", "ngram")
    assert rule.source == one(match=match)


@pytest.mark.parametrize("name", ["auto", "load", "none", "primary", "[ngram]", None])
def test_a_rule_may_use_every_name_of_a_method(name: str | None) -> None:
    (rule,) = read_rules([one(use={"proposer": name})], LOADED, KEYS)
    assert rule.match == Match()


def test_no_rules_are_rules() -> None:
    assert read_rules([], LOADED, KEYS) == ()


INVALID: list[tuple[Any, str, str | None]] = [
    ({}, "rules", None),
    ("rule", "rules", None),
    ([5], "rules.0", None),
    ([one(), one()], "rules.1.name", None),
    ([one()] * (MAX_RULES + 1), "rules", None),
    ([{"use": USE}], "rules.0.name", "missing_required_parameter"),
    ([{"name": "r"}], "rules.0.use", "missing_required_parameter"),
    ([one(name="a b")], "rules.0.name", None),
    ([one(name="")], "rules.0.name", None),
    ([one(name=7)], "rules.0.name", None),
    ([one(matches={})], "rules.0.matches", "unknown_parameter"),
    ([one(use="ngram")], "rules.0.use", None),
    ([one(use={})], "rules.0.use.proposer", "missing_required_parameter"),
    ([one(use={"proposer": "nobody"})], "rules.0.use.proposer", "proposer_not_found"),
    ([one(use={"proposer": 5})], "rules.0.use.proposer", None),
    ([one(use={**USE, "k": 1})], "rules.0.use.k", "unknown_parameter"),
    (
        [one(use={**USE, "num_speculative_tokens": 6})],
        "rules.0.use.num_speculative_tokens",
        "num_speculative_tokens_too_large",
    ),
    (
        [one(use={"proposer": "auto", "num_speculative_tokens": 6})],
        "rules.0.use.num_speculative_tokens",
        "num_speculative_tokens_too_large",
    ),
    (
        [one(use={**USE, "num_speculative_tokens": True})],
        "rules.0.use.num_speculative_tokens",
        None,
    ),
    ([one(match=None)], "rules.0.match", None),
    ([one(match={"modell": "x"})], "rules.0.match.modell", "unknown_parameter"),
    ([one(match={"model": 5})], "rules.0.match.model", None),
    ([one(match={"model": ""})], "rules.0.match.model", None),
    ([one(match={"structured": 1})], "rules.0.match.structured", None),
    ([one(match={"structured": None})], "rules.0.match.structured", None),
    ([one(match={"api_key": "team-c"})], "rules.0.match.api_key", None),
    ([one(match={"header": {}})], "rules.0.match.header", None),
    ([one(match={"header": ["x-app"]})], "rules.0.match.header", None),
    ([one(match={"header": {"a b": "c"}})], "rules.0.match.header", None),
    ([one(match={"header": {"x-app": ""}})], "rules.0.match.header.x-app", None),
    ([one(match={"header": {"x-app": "*" * 257}})], "rules.0.match.header.x-app", None),
    ([one(match={"header": {"x-app": 5}})], "rules.0.match.header.x-app", None),
    ([one(match={"header": {"x-a": "b", "X-A": "c"}})], "rules.0.match.header.x-a", None),
    (
        [one(match={"header": {"Authorization": "Bearer x"}})],
        "rules.0.match.header.authorization",
        None,
    ),
    (
        [one(match={"header": {f"x-{i}": "y" for i in range(MAX_HEADERS + 1)}})],
        "rules.0.match.header",
        None,
    ),
    ([one(match={"overlap": {}})], "rules.0.match.overlap", None),
    ([one(match={"overlap": {"min": None}})], "rules.0.match.overlap", None),
    ([one(match={"overlap": 0.5})], "rules.0.match.overlap", None),
    ([one(match={"overlap": {"min": 1.5}})], "rules.0.match.overlap.min", None),
    ([one(match={"overlap": {"min": float("nan")}})], "rules.0.match.overlap.min", None),
    ([one(match={"temperature": {"max": "1"}})], "rules.0.match.temperature.max", None),
    ([one(match={"temperature": {"min": 1, "max": 0}})], "rules.0.match.temperature.min", None),
    ([one(match={"prompt_tokens": {"min": 1.5}})], "rules.0.match.prompt_tokens.min", None),
    ([one(match={"prompt_tokens": {"min": -1}})], "rules.0.match.prompt_tokens.min", None),
    ([one(match={"prompt_tokens": {"max": True}})], "rules.0.match.prompt_tokens.max", None),
    ([one(match={"prompt_tokens": {"above": 1}})], "rules.0.match.prompt_tokens.above", "unknown"),
]


@pytest.mark.parametrize(("given", "field", "code"), INVALID, ids=range(len(INVALID)))
def test_an_invalid_rule_names_its_field(given: Any, field: str, code: str | None) -> None:
    with pytest.raises(RuleError) as caught:
        read_rules(given, LOADED, KEYS)
    assert caught.value.field == field
    assert str(caught.value) == f"{field}: {caught.value.message}"
    assert len(caught.value.message) < 600
    if code is not None:
        assert (caught.value.code or "").startswith(code)


def test_an_error_does_not_repeat_a_key_written_in_the_place_of_its_name() -> None:
    with pytest.raises(RuleError) as caught:
        read_rules([one(match={"api_key": "sk-secret"})], LOADED, KEYS)
    assert "sk-secret" not in str(caught.value)
    assert "team-a, team-b" in str(caught.value)


def test_the_most_rules_are_read_in_bounded_time() -> None:
    match = {"header": {f"x-{i}": "*" * 256 for i in range(MAX_HEADERS)}}
    rules = [{"name": f"r{i}", "match": match, "use": USE} for i in range(MAX_RULES)]
    began = time.process_time()
    assert len(read_rules(rules, LOADED, KEYS)) == MAX_RULES
    assert time.process_time() - began < 1

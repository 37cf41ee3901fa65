"""The rules in force: the first match, rules that cannot be used, and measured overlap."""

from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from engine_adapter.seam.types import ProposerInfo, ProposerState, SpecMethod
from server.control.method_names import LoadedProposers
from server.control.routing.router import NO_ROUTING, Router
from server.control.routing.rule_reader import read_rules
from server.control.routing.rules import Traits
from server.telemetry.metrics import Metrics

NGRAM = ProposerInfo("ngram", "ngram", None, 5)
DRAFT = ProposerInfo("draft", "draft_model", "m", 4)
REQUEST = Traits(model="demo", prompt_tokens=50)


class World:
    """A router whose proposers can change."""

    def __init__(self, *rules: dict[str, Any]) -> None:
        self.proposers = [NGRAM, DRAFT]
        self.registry = CollectorRegistry()
        self.router = Router(self.read(*rules), self.loaded, Metrics(self.registry))

    def loaded(self) -> LoadedProposers:
        return LoadedProposers(tuple(self.proposers), max_speculative_tokens=8)

    def read(self, *rules: dict[str, Any]) -> Any:
        return read_rules(rules, self.loaded(), ())

    def route(self, request: Traits = REQUEST) -> SpecMethod | None:
        """Routes a request and counts it."""
        routing = self.router.route(request)
        method = routing.method
        self.router.record(routing, None if method is None else method.rule)
        return None if method is None else method.spec_method

    def count(self, what: str, rule: str) -> float:
        value = self.registry.get_sample_value(
            f"specgate_routing_rule_{what}_total", {"rule": rule}
        )
        assert value is not None
        return value


def rule(name: str, proposer: str, k: int | None = None, **match: Any) -> dict[str, Any]:
    use: dict[str, Any] = {"proposer": proposer}
    if k is not None:
        use["num_speculative_tokens"] = k
    return {"name": name, "match": match, "use": use}


def test_the_first_rule_that_matches_decides() -> None:
    world = World(
        rule("long", "ngram", prompt_tokens={"min": 100}),
        rule("demo", "draft", 2, model="demo"),
        rule("rest", "auto"),
    )
    assert world.route() == SpecMethod("draft", 2)
    assert world.route(Traits("demo", prompt_tokens=200)) == SpecMethod("ngram", 5)
    assert world.route(Traits("sql")) == SpecMethod("auto", 5)
    assert [world.count("matches", name) for name in ("long", "demo", "rest")] == [1, 1, 1]


def test_no_rule_matches_without_rules_or_conditions_that_hold() -> None:
    assert World().router.route(REQUEST) == NO_ROUTING
    assert World(rule("a", "ngram", model="sql")).route() is None


def test_a_rule_whose_proposer_is_unloaded_is_skipped_until_it_is_loaded_again() -> None:
    world = World(rule("one", "ngram"), rule("two", "draft", structured=False))
    world.proposers = [DRAFT]
    with capture_logs() as logs:
        assert world.route() == SpecMethod("draft", 4)
        assert world.route() == SpecMethod("draft", 4)
    assert [line["rule"] for line in logs if line["event"] == "routing_rule_skipped"] == ["one"]
    assert world.count("skips", "one") == world.count("matches", "two") == 2
    world.proposers = [NGRAM, DRAFT]
    assert world.route() == SpecMethod("ngram", 5)
    world.proposers = []
    with capture_logs() as logs:
        assert world.route() is None, "the active method decides"
    assert [line["rule"] for line in logs] == ["one", "two"], "each is logged again"


def test_a_rule_whose_proposer_is_quarantined_is_skipped() -> None:
    world = World(rule("one", "ngram"))
    world.proposers = [
        ProposerInfo("ngram", "ngram", None, 5, state=ProposerState.QUARANTINED),
        DRAFT,
    ]
    assert world.route() is None
    (verdict,) = world.router.verdicts(REQUEST)
    assert verdict.matches
    assert "quarantined" in verdict.why


def test_the_overlap_of_the_chat_comes_before_that_of_other_requests() -> None:
    world = World(rule("quotes", "ngram", overlap={"min": 0.5}))
    assert world.route() is None, "not known yet"
    (measure,) = world.router.route(REQUEST).measured
    measure.add(0.9)
    assert world.route() == SpecMethod("ngram", 5)
    assert world.route(Traits("demo", overlap=0.1)) is None
    assert world.router.measured_overlap("quotes") == (0.9, 1)


def test_only_requests_that_match_the_rest_are_measured() -> None:
    world = World(rule("quotes", "ngram", model="demo", overlap={"min": 0.5}))
    assert len(world.router.route(REQUEST).measured) == 1
    assert world.router.route(Traits("sql")).measured == ()
    assert world.router.uses_overlap
    assert not World(rule("a", "ngram")).router.uses_overlap


def test_a_rule_that_stays_keeps_its_measured_overlap() -> None:
    first = rule("quotes", "ngram", overlap={"min": 0.5})
    world = World(first)
    world.router.route(REQUEST).measured[0].add(0.9)
    world.router.replace(world.read(rule("new", "draft", model="sql"), first))
    assert world.router.measured_overlap("quotes") == (0.9, 1)
    world.router.replace(world.read(rule("quotes", "ngram", overlap={"min": 0.6})))
    assert world.router.measured_overlap("quotes") == (None, 0)
    with pytest.raises(KeyError):
        world.router.measured_overlap("new")


def test_a_rule_at_start_that_never_decides_is_logged() -> None:
    with capture_logs() as logs:
        World(rule("all", "ngram"), rule("rest", "draft"))
    assert [line["event"] for line in logs] == ["routing_rules"]
    assert "rest" in logs[0]["warning"]

"""The gateway's copy of the policies: parameters and evidence, across engine processes."""

import logging
from typing import Any

import pytest

from engine_adapter.policies.names import POLICY_NAMES
from engine_adapter.policies.parameters import PolicyError
from engine_adapter.policies.planner import Planner
from engine_adapter.proposers.methods import parse_specs
from engine_adapter.registries.policy_settings import PolicySettings
from engine_adapter.seam.counts import StepKind, StepReport
from engine_adapter.vllm_engine.wire import SpecgateConfig

NGRAM, SUFFIX = parse_specs([{"name": "ngram", "num_speculative_tokens": 3}, {"name": "suffix"}])
LIGHT_SUFFIX = {"light": {"proposer": "suffix", "max_running": 4}}


def report(evidence: dict[str, Any] | None) -> StepReport:
    return StepReport(StepKind.DECODE, 0.1, {}, {}, {}, {}, evidence=evidence)


def started(settings: PolicySettings, *specs: Any, primary: str | None) -> Planner:
    """The planner of a new engine process with these proposers."""
    config = SpecgateConfig(specs, None, settings.usable(specs), primary)
    return Planner(config.traits, 8, config.policies, config.primary)


def test_every_policy_is_shown_with_its_defaults_and_without_a_state() -> None:
    infos = PolicySettings({}, "ngram").infos((NGRAM, SUFFIX))
    assert tuple(info.name for info in infos) == POLICY_NAMES
    by_name = {info.name: info for info in infos}
    assert by_name["load"].parameters["light"]["proposer"] == "ngram"
    assert by_name["auto"].parameters["guard_limit"] == 0.02
    assert {len(info.state) for info in infos} == {0}


def test_the_state_is_what_the_engine_last_reported() -> None:
    settings = PolicySettings({}, None)
    settings.record_step(report({"policies": {"load": {"level": "heavy"}}}))
    settings.record_step(report(None))
    states = {info.name: info.state for info in settings.infos((NGRAM,))}
    assert states["load"] == {"level": "heavy"}
    assert states["auto"] == {}


def test_parameters_that_cannot_work_are_refused_and_the_old_ones_stay() -> None:
    settings = PolicySettings({"auto": {"min_gain": 0.2}}, None)
    for name, given in (
        ("auto", {"min_gain": float("nan")}),
        ("auto", {"min_gain": True}),
        ("load", {"light": {"proposer": "gone", "max_running": 4}}),
        ("best", {}),
    ):
        with pytest.raises(PolicyError):
            settings.check(name, given, (NGRAM,))
    assert settings.raw_parameters == {"auto": {"min_gain": 0.2}}


def test_a_new_process_starts_with_the_parameters_that_were_set() -> None:
    settings = PolicySettings({"auto": {"min_gain": 0.2}}, None)
    info = settings.set("load", LIGHT_SUFFIX, (NGRAM, SUFFIX))
    assert info.parameters["light"] == {
        "proposer": "suffix",
        "num_speculative_tokens": SUFFIX.num_speculative_tokens,
        "max_running": 4,
    }
    settings.set("auto", {"min_gain": 0.3}, (NGRAM, SUFFIX))
    assert settings.usable((NGRAM, SUFFIX)) == {
        "auto": {"min_gain": 0.3},
        "load": LIGHT_SUFFIX,
    }


def test_a_policy_whose_proposer_was_unloaded_starts_with_its_defaults(
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = PolicySettings({"load": LIGHT_SUFFIX, "auto": {"min_gain": 0.2}}, None)
    with caplog.at_level(logging.WARNING):
        assert settings.usable((NGRAM,)) == {"auto": {"min_gain": 0.2}}
    assert "load starts with its defaults: light.proposer" in caplog.text
    assert started(settings, NGRAM, primary=None).states()["load"]["proposer"] == "none"
    shown = {info.name: info.parameters for info in settings.infos((NGRAM,))}
    assert shown["load"] == LIGHT_SUFFIX, "it is what an operator set"


def test_an_engine_starts_again_without_its_primary_proposer() -> None:
    """An operator may unload it; the policies whose defaults name it then have none."""
    settings = PolicySettings({}, "ngram")
    assert started(settings, NGRAM, SUFFIX, primary="ngram").states()["load"]["proposer"] == "ngram"
    again = started(settings, SUFFIX, primary="ngram")
    assert again.states()["load"]["proposer"] == "none"
    again.set_policy("load", {})
    shown = {info.name: info.parameters for info in settings.infos((SUFFIX,))}
    assert shown["load"]["extreme"] == {"proposer": "none"}
    with pytest.raises(PolicyError, match="no primary"):
        settings.check("load", {"light": {"max_running": 4}}, (SUFFIX,))

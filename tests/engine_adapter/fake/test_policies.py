"""The fake engine plans with the planner of all engines."""

import asyncio

import pytest

from engine_adapter.policies.names import POLICY_NAMES
from engine_adapter.policies.parameters import PolicyError
from engine_adapter.seam.counts import PolicyStep
from engine_adapter.seam.errors import EngineDead, InvalidRequest
from engine_adapter.seam.types import Delta, SpecMethod, Switch
from tests.engine_adapter.fake.conftest import StartEngine
from tests.engine_adapter.fake.harness import FakeHarness, make_request, run, text

LONG = 400


def used(deltas: list[Delta]) -> dict[str, int]:
    """Proposer -> drafts."""
    spec = deltas[-1].spec
    assert spec is not None
    return {name: counts.drafts for name, counts in spec.by_proposer.items()}


def policy_steps(harness: FakeHarness) -> list[PolicyStep]:
    return [step.policy for step in harness.reports.steps if step.policy is not None]


@pytest.mark.parametrize("name", POLICY_NAMES)
async def test_a_policys_text_is_that_of_plain_decoding(start: StartEngine, name: str) -> None:
    harness = await start()
    plain = await run(harness, make_request("a", max_tokens=LONG, ignore_eos=True))
    planned = await run(
        harness, make_request("b", SpecMethod(name, 4), max_tokens=LONG, ignore_eos=True)
    )
    assert text(planned) == text(plain)


async def test_auto_comes_to_the_proposer_that_pays(start: StartEngine) -> None:
    harness = await start(
        fake_step_ms=2, fake_draft_token_ms=0.05, fake_acceptance={"ngram": 0.05, "draft": 0.95}
    )
    request = make_request("a", SpecMethod("auto", 4), max_tokens=2 * LONG, ignore_eos=True)
    drafts = used(await run(harness, request))
    assert drafts["draft"] > 3 * drafts.get("ngram", 0)
    decided = [step.decisions["auto"] for step in policy_steps(harness)]
    assert sum(rows.get("draft", 0) for rows in decided) == drafts["draft"]
    assert all(sum(rows.values()) == 1 for rows in decided), "one row in each step"
    compared = [step for step in policy_steps(harness) if step.predicted_s is not None]
    assert len(compared) > 0.9 * len(decided)
    assert all(step.measured_s is not None for step in compared)


async def test_a_policy_drafts_at_most_the_requests_k(start: StartEngine) -> None:
    harness = await start(fake_acceptance=1.0)
    request = make_request("a", SpecMethod("auto", 2), max_tokens=100, ignore_eos=True)
    spec = (await run(harness, request))[-1].spec
    assert spec is not None
    assert spec.by_proposer
    for counts in spec.by_proposer.values():
        assert counts.drafted <= 2 * counts.drafts


async def test_rows_under_a_proposer_and_under_a_policy_share_a_step(start: StartEngine) -> None:
    harness = await start(fake_step_ms=1)
    load = {"disable_by_batch_size": 8, "proposer": "draft"}
    await harness.engine.set_policy("load", load)
    requests = [
        make_request("a", SpecMethod("ngram", 3), max_tokens=80, ignore_eos=True),
        make_request("b", SpecMethod("load", 4), max_tokens=80, ignore_eos=True),
        make_request("c", max_tokens=80, ignore_eos=True),
    ]
    one, two, three = await asyncio.gather(*(run(harness, request) for request in requests))
    assert [set(used(deltas)) for deltas in (one, two, three)] == [{"ngram"}, {"draft"}, set()]


async def test_parameters_take_effect_and_are_shown(start: StartEngine) -> None:
    harness = await start()
    info = await harness.engine.set_policy(
        "load", {"disable_by_batch_size": 2, "proposer": "ngram"}
    )
    assert info.parameters["light"] == {
        "proposer": "ngram",
        "num_speculative_tokens": 3,
        "max_running": 1,
    }
    assert [policy.name for policy in harness.engine.policies] == list(POLICY_NAMES)
    shown = {policy.name: policy.parameters for policy in harness.engine.policies}
    assert shown["load"] == info.parameters
    request = make_request("a", SpecMethod("load", 4), max_tokens=40, ignore_eos=True)
    assert set(used(await run(harness, request))) == {"ngram"}


async def test_an_invalid_parameter_changes_nothing(start: StartEngine) -> None:
    harness = await start()
    before = harness.engine.policies
    with pytest.raises(PolicyError) as caught:
        await harness.engine.set_policy("load", {"light": {"proposer": "x", "max_running": 1}})
    assert caught.value.field == "light.proposer"
    assert harness.engine.policies == before


async def test_a_dead_engine_takes_no_parameters_and_keeps_its_evidence(
    start: StartEngine,
) -> None:
    harness = await start()
    await run(harness, make_request("a", SpecMethod("auto", 4), max_tokens=60, ignore_eos=True))
    steps = harness.engine.evidence["steps"]
    harness.engine.die()
    with pytest.raises(EngineDead):
        await harness.engine.set_policy("load", {})
    harness.engine.revive()
    assert harness.engine.evidence["steps"] == steps > 0
    await run(harness, make_request("b", SpecMethod("auto", 4), max_tokens=20, ignore_eos=True))
    assert harness.engine.evidence["steps"] > steps


async def test_a_proposer_may_come_and_go_while_a_policy_uses_it(start: StartEngine) -> None:
    harness = await start(fake_step_ms=1, fake_acceptance={"ngram": 0.95, "draft": 0.05})
    request = make_request("a", SpecMethod("auto", 4), max_tokens=LONG, ignore_eos=True)
    running = asyncio.create_task(run(harness, request))
    while len(harness.reports.steps) < 20:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    await harness.engine.unload_proposer("ngram")
    at = len(harness.reports.steps)
    while len(harness.reports.steps) < at + 20 and not running.done():  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    without = harness.reports.steps[at + 1 :]
    assert without
    assert all("ngram" not in step.verified for step in without)
    await harness.engine.load_proposer({"name": "ngram", "num_speculative_tokens": 3})
    assert len(await running) > 20
    again = make_request("b", SpecMethod("auto", 4), max_tokens=LONG, ignore_eos=True)
    assert used(await run(harness, again))["ngram"] > 5


async def test_a_k_above_the_capacity_is_refused(start: StartEngine) -> None:
    harness = await start()
    with pytest.raises(InvalidRequest, match=r"must be in \[0, 5\] for auto"):
        await run(harness, make_request("a", SpecMethod("auto", 6)))
    with pytest.raises(InvalidRequest):
        await harness.engine.switch(Switch(SpecMethod("load", 6), 1), running=True)


async def test_ended_requests_are_forgotten(start: StartEngine) -> None:
    harness = await start()
    for i in range(3):
        await run(harness, make_request(f"r{i}", SpecMethod("auto", 4), max_tokens=5))
    stream = harness.engine.generate(make_request("left", SpecMethod("auto", 4)))
    await anext(stream)
    await stream.aclose()
    # A forgotten id can be used again.
    await run(harness, make_request("left", SpecMethod("auto", 4), max_tokens=5))
    assert harness.engine._planning._planner.measurements.requests._slots == {}

"""The utility methods that EngineCore gets."""

import json
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest

from engine_adapter.policies import planner
from engine_adapter.policies.contract import DraftOutcome, ProposerTraits
from engine_adapter.policies.measurements import PROVEN_DRAFTS
from engine_adapter.seam.types import SpecMethod
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.core.quarantine import MAX_FAULTS
from engine_adapter.vllm_engine.patches.engine_core import patch_engine_core
from tests.engine_adapter.vllm_engine.support.row_steps import DRAFT, NGRAM, RowSteps

pytestmark = pytest.mark.needs_vllm


@pytest.fixture(autouse=True)
def patched() -> None:
    """Each test finds EngineCore patched, in any process and any order."""
    patch_engine_core()


def test_the_utility_call_switches_rows_and_requests_that_arrive_later() -> None:
    patch_engine_core()
    rows = RowSteps()
    rows.admit("r")
    core = SimpleNamespace(scheduler=SimpleNamespace(row_table=rows.table))
    compat.EngineCore.specgate_switch(core, "small", 4, 3)
    rows.admit("overtaken", epoch=2)
    rows.admit("newer", epoch=3)
    plan = rows.plan("r", "overtaken", "newer").drafts
    assert (plan["r"], plan["overtaken"]) == (DRAFT, DRAFT)
    assert plan["newer"] != DRAFT


def core_of(rows: RowSteps) -> Any:
    """EngineCore, as far as a utility method reads it."""
    return SimpleNamespace(scheduler=SimpleNamespace(row_table=rows.table))


def test_a_removed_proposers_faults_and_evidence_are_forgotten() -> None:
    rows = RowSteps()
    rows.admit("r")
    measurements = rows.table.planner.measurements
    measurements.observe_drafts([DraftOutcome("r", "ngram", 5, 5, 5, 5)] * PROVEN_DRAFTS)
    for _ in range(MAX_FAULTS):
        rows.plan()
        rows.count({}, faults=("ngram",))
    assert not rows.plan("r")
    core = core_of(rows)
    compat.EngineCore.specgate_remove_proposer(core, "ngram")
    assert set(measurements.loaded) == {"small"}
    fields = asdict(ProposerTraits("ngram", 4, lookup=True))
    compat.EngineCore.specgate_add_proposer(core, json.loads(json.dumps(fields)))
    assert set(rows.plan("r").drafts) == {"r"}
    assert measurements.traits(measurements.loaded["ngram"]).num_speculative_tokens == 4
    assert not measurements.is_proven(measurements.loaded["ngram"])


def test_the_utility_call_gives_a_policy_its_parameters() -> None:
    rows = RowSteps()
    rows.admit("r", SpecMethod("load", 5))
    assert rows.plan("r").drafts == {"r": NGRAM}
    parameters = {"light": {"proposer": "small", "max_running": 4}}
    compat.EngineCore.specgate_set_policy(core_of(rows), "load", parameters)
    assert rows.plan("r").drafts == {"r": DRAFT}


def test_a_new_process_knows_what_the_old_one_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "UNPLANNED_EVERY", 1)
    old, new = RowSteps(), RowSteps()
    old.admit("r")
    old.step(r=(0, 0))
    for _ in range(4):
        old.step(r=(5, 5))
    sent = json.loads(json.dumps(old.table.planner.snapshot()))
    compat.EngineCore.specgate_restore_evidence(core_of(new), sent)
    known = new.table.planner.snapshot()
    assert known["proposers"] == sent["proposers"]
    assert known["proposers"]["ngram"]["acceptance"]["greedy"]["drafts"] == 4
    assert known["step_time"]["state"] == sent["step_time"]["state"]

"""The utility methods that EngineCore gets."""

from types import SimpleNamespace

import pytest

from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.core.quarantine import MAX_FAULTS
from engine_adapter.vllm_engine.patches.engine_core import patch_engine_core
from tests.engine_adapter.vllm_engine.support.row_steps import DRAFT, RowSteps

pytestmark = pytest.mark.needs_vllm


def test_the_utility_call_switches_rows_and_requests_that_arrive_later() -> None:
    patch_engine_core()
    patch_engine_core()
    rows = RowSteps()
    rows.admit("r")
    core = SimpleNamespace(scheduler=SimpleNamespace(row_table=rows.table))
    compat.EngineCore.specgate_switch(core, "small", 4, 3)
    rows.admit("overtaken", epoch=2)
    rows.admit("newer", epoch=3)
    plan = rows.plan("r", "overtaken", "newer")
    assert (plan["r"], plan["overtaken"]) == (DRAFT, DRAFT)
    assert plan["newer"] != DRAFT


def test_the_utility_call_clears_a_proposers_faults() -> None:
    patch_engine_core()
    rows = RowSteps()
    rows.admit("r")
    for _ in range(MAX_FAULTS):
        rows.count({}, faults=("ngram",))
    assert rows.plan("r") == {}
    core = SimpleNamespace(scheduler=SimpleNamespace(row_table=rows.table))
    compat.EngineCore.specgate_clear_faults(core, "ngram")
    assert set(rows.plan("r")) == {"r"}

"""The order of V2's batch: prompts stand behind the rows that read one token."""

from importlib import import_module
from typing import Any

import pytest

from engine_adapter.vllm_engine.patches.batch_order import rows_in_order

FULL = 6
"""Tokens of a row with all drafts."""
TOKENS = {"long": 40, "short": FULL, "one": 1, "some": 3, "another": 1, "all": FULL}
DRAFTS = {"some": [7, 8], "all": [1, 2, 3, 4, 5], "one": []}


def test_prompts_stand_behind_rows_that_read_one_token() -> None:
    rows = rows_in_order(TOKENS, DRAFTS, FULL)
    assert rows == ["all", "some", "one", "another", "short", "long"]


@pytest.mark.needs_vllm
def test_vllms_own_order_has_the_defect() -> None:
    vllm: Any = import_module("vllm.v1.worker.gpu.model_runner")
    rows = vllm.sort_batch_req_ids(TOKENS, DRAFTS, FULL)
    assert rows == ["all", "some", "short", "one", "another", "long"]

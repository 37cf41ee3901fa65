"""Which rows sit out a step because the masks of their format are slow."""

from types import SimpleNamespace
from typing import Any

import pytest

from engine_adapter.vllm_engine.mask_allowance import SLOW_CALL_S
from tests.engine_adapter.vllm_engine.support.compiled import CHOICE, compiled
from tests.engine_adapter.vllm_engine.support.demo_backend import demo_backend

pytestmark = pytest.mark.needs_vllm

MASK_S = 5 * SLOW_CALL_S


@pytest.fixture(scope="module")
def backend() -> Any:
    return demo_backend()


def plain() -> Any:
    return SimpleNamespace(
        structured_output_request=None, next_decode_eligible_step=0, spec_token_ids=[1]
    )


def constrained(backend: Any) -> Any:
    """A row with a format of its own grammar."""
    row = plain()
    row.structured_output_request = SimpleNamespace(grammar=compiled(backend, "CHOICE", CHOICE))
    return row


def slow(backend: Any) -> Any:
    """A row whose last mask was slow."""
    row = constrained(backend)
    compute_mask(row)
    return row


def compute_mask(row: Any, seconds: float = MASK_S) -> None:
    row.structured_output_request.grammar._allowance.spend_on_mask(seconds)


class Steps:
    """Steps at given times; `run` returns which rows a step has."""

    def __init__(self) -> None:
        from engine_adapter.vllm_engine.core.slow_rows import SlowRows

        self.now = 0.0
        self._slow_rows = SlowRows(lambda: self.now)

    def run(
        self, rows: list[Any], *, others_wait: bool = False, drops_drafts: bool = True
    ) -> list[Any]:
        self._slow_rows.set_aside(rows, others_wait=others_wait, drops_drafts=drops_drafts)
        return [row for row in rows if row.next_decode_eligible_step == 0]


def test_a_slow_row_rests_in_proportion_to_its_mask(backend: Any) -> None:
    from engine_adapter.vllm_engine.core.slow_rows import REST_PER_SLOW_S

    steps, row, plain_row = Steps(), slow(backend), plain()
    rows = [row, plain_row]
    assert steps.run(rows) == [plain_row]
    steps.now = REST_PER_SLOW_S * MASK_S * 0.99
    assert steps.run(rows) == [plain_row]
    steps.now = REST_PER_SLOW_S * MASK_S
    assert steps.run(rows) == rows
    compute_mask(row)
    assert steps.run(rows) == [plain_row]


def test_a_row_whose_mask_is_quick_runs_in_each_step(backend: Any) -> None:
    steps, row, plain_row = Steps(), constrained(backend), plain()
    compute_mask(row, SLOW_CALL_S / 2)
    assert steps.run([row, plain_row]) == [row, plain_row]
    assert row.spec_token_ids == [1]


def test_a_row_that_has_become_quick_does_not_rest(backend: Any) -> None:
    steps, row, plain_row = Steps(), slow(backend), plain()
    assert steps.run([row, plain_row]) == [plain_row]
    compute_mask(row, SLOW_CALL_S / 2)
    assert steps.run([row, plain_row]) == [row, plain_row]


def test_slow_rows_take_turns(backend: Any) -> None:
    steps, plain_row = Steps(), plain()
    slow_rows = [slow(backend) for _ in range(3)]
    rows, turns = [*slow_rows, plain_row], []
    for _ in range(6):
        steps.now += 1000
        steps.run(rows)  # hears of the masks, and begins the rest
        steps.now += 1000
        (turn,) = [row for row in steps.run(rows) if row is not plain_row]
        turns.append(slow_rows.index(turn))
        compute_mask(turn)
    assert turns == [0, 1, 2, 0, 1, 2]


def test_a_slow_row_runs_when_nobody_waits_for_it(backend: Any) -> None:
    steps, rows = Steps(), [slow(backend), slow(backend)]
    assert steps.run(rows) == rows
    assert steps.run(rows, others_wait=True) == []


def test_the_drafts_of_slow_rows_are_dropped_where_vllm_has_them(backend: Any) -> None:
    row, plain_row = slow(backend), plain()
    Steps().run([row, plain_row], drops_drafts=False)
    assert row.spec_token_ids == [1]
    Steps().run([row, plain_row])
    assert row.spec_token_ids == []
    assert plain_row.spec_token_ids == [1]

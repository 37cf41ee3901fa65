"""The limits of admission, by default and as set."""

from dataclasses import replace

import pytest

from engine_adapter.seam.types import EngineInfo
from server.control.admission.admission import slot_limits
from server.control.admission.slots import SlotLimits
from server.settings import Settings

INFO = EngineInfo("fake", "1", "m", "m", 2048, 128, 99, 20, 5, ())


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        (128, (160, 128, 8, 32, 512, 96)),
        (256, (320, 256, 16, 64, 512, 192)),
        (8, (10, 8, 1, 2, 512, 6)),
        (4, (5, 4, 1, 1, 512, 3)),
        (1, (1, 1, 0, 1, 512, 1)),
    ],
)
def test_slots_follow_from_what_the_engine_runs(runs: int, expected: tuple[int, ...]) -> None:
    limits = slot_limits(Settings(model="org/m"), replace(INFO, max_num_seqs=runs))
    assert limits == SlotLimits(*expected)


def test_a_request_of_the_demo_has_few_slots() -> None:
    assert slot_limits(Settings(), INFO) == SlotLimits(160, 128, 8, 8, 512, 96)


def test_slots_can_be_set_and_one_request_has_at_most_all() -> None:
    settings = Settings(
        engine="fake",
        max_engine_sequences=3,
        max_request_sequences=9,
        max_request_prefill_tokens=7,
    )
    assert slot_limits(settings, INFO) == SlotLimits(3, 3, 2, 3, 7, 1)


@pytest.mark.parametrize(("reserved", "expected"), [(0, 0), (5, 5), (1000, 127)])
def test_a_reserve_can_be_set_and_leaves_a_row(reserved: int, expected: int) -> None:
    settings = Settings(engine="fake", reserved_sequences=reserved)
    assert slot_limits(settings, INFO).reserved == expected


@pytest.mark.parametrize(("reserved", "expected"), [(0, 128), (5, 123), (1000, 1)])
def test_what_batches_leave_free_can_be_set(reserved: int, expected: int) -> None:
    settings = Settings(engine="fake", batch_reserved_sequences=reserved)
    assert slot_limits(settings, INFO).background == expected


def test_the_queue_is_bounded_by_default() -> None:
    settings = Settings(engine="fake")
    assert (settings.max_queued_requests, settings.max_queued_prompt_tokens) == (1024, 2**20)

"""The time of a proposer's call, on the CPU and on a device."""

import pickle
import time
from typing import Any

import pytest
import torch

from engine_adapter.vllm_engine.wire import DraftReport
from engine_adapter.vllm_engine.worker.draft_clock import DraftClock


class Event:
    """On a device that takes 40 ms from one event to the next."""

    made = 0
    waits = 0

    def __init__(self, device: Any, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        Event.made += 1
        self._number = Event.made

    def synchronize(self) -> None:
        Event.waits += 1

    def elapsed_time(self, end: "Event") -> float:
        return 40.0 * (end._number - self._number)


def test_on_the_cpu_the_call_is_all() -> None:
    clock = DraftClock(torch.device("cpu"))
    time.sleep(0.02)
    clock.stop()
    time.sleep(0.02)
    assert 0.02 <= clock.read_s() == clock.host_s < 0.04


def test_on_a_device_the_time_ends_with_the_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "Event", Event)
    clock = DraftClock(torch.device("meta"))
    clock.stop()
    assert Event.waits == 0
    assert clock.read_s() >= 0.04
    assert Event.waits == 1


def test_a_report_reads_its_times_once_before_it_leaves_the_process() -> None:
    report = DraftReport()
    report.unread.append(lambda: report.add_seconds("medusa", 0.5))
    sent = pickle.loads(pickle.dumps(report))
    report.complete()
    assert report.seconds == sent.seconds == {"medusa": 0.5}
    assert not sent.unread

"""From arrivals to lateness, and from CPU time to the cost of a request and of an event."""

import pytest

from benchmarks.gateway.client import Stream
from benchmarks.gateway.figures import lags_s, split_cost
from benchmarks.gateway.recording import RecordedStream, read, write
from benchmarks.gateway.sides import Answer

EVENTS = tuple(f"data: {i}\n\n".encode() for i in range(6))


def test_the_role_and_the_end_belong_to_their_neighbours() -> None:
    steps = RecordedStream(b"{}", EVENTS).steps()
    assert [len(events) for events in steps] == [2, 1, 1, 2]
    assert sum(steps, ()) == EVENTS
    assert RecordedStream(b"{}", EVENTS[:3]).steps() == (EVENTS[:3],)


def test_recordings_are_read_back(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("recordings") / "recordings.json"
    recordings = [RecordedStream('{"é": 1}'.encode(), EVENTS), RecordedStream(b"{}", EVENTS[:3])]
    write(path, recordings)
    assert read(path) == recordings


def test_lateness_is_counted_from_the_step_of_each_event() -> None:
    recording = RecordedStream(b"{}", EVENTS)
    stream = Stream(arrivals_s=[100.001, 100.001, 100.012, 100.020, 100.047, 100.047])
    assert lags_s(stream, recording, 0.01) == pytest.approx(
        [0.001, 0.001, 0.002, 0.0, 0.017, 0.017], abs=1e-9
    )


def test_a_late_first_event_does_not_hide_its_lateness() -> None:
    stream = Stream(arrivals_s=[100.014, 100.014, 100.015, 100.021, 100.031, 100.031])
    assert lags_s(stream, RecordedStream(b"{}", EVENTS), 0.01) == pytest.approx(
        [0.014, 0.014, 0.005, 0.001, 0.001, 0.001], abs=1e-9
    )


def test_the_cost_of_an_event_is_without_the_cost_of_the_request() -> None:
    cost = split_cost("bare", Answer(512, 1), (3, 514), [(1000.0, 6110.0), (2000.0, 12220.0)])
    assert cost.event_us == [10.0, 20.0]
    assert cost.request_us == [1000.0, 2000.0]
    assert cost.stream_us == [6110.0, 12220.0]

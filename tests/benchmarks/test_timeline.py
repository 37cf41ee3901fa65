"""Decoding speed computed from stream events."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from benchmarks.system import TRIES, measure
from benchmarks.timeline import Timeline, decoding, parse_stream, read_events
from benchmarks.workload import Request
from tests.benchmarks.fake_systems import SteadySystem, timeline


def chunk(tokens: int, **more: Any) -> bytes:
    return json.dumps({"usage": {"completion_tokens": tokens}, **more}).encode()


def test_an_event_without_new_tokens_is_not_a_step() -> None:
    figures = {"speculative_decoding": {"mean_tokens_per_step": 1.5}}
    read = read_events(
        [
            (1.0, chunk(0)),
            (2.0, chunk(1)),
            (3.0, chunk(3)),
            (3.5, chunk(4)),
            (3.6, chunk(4, choices=[], metrics=figures)),
            (3.7, b"[DONE]"),
        ]
    )
    assert read.times_s.tolist() == [2.0, 3.0, 3.5]
    assert read.tokens.tolist() == [1, 3, 4]
    assert read.tokens_per_step == 1.5


def test_a_failed_stream_is_refused() -> None:
    with pytest.raises(RuntimeError, match="the engine died"):
        read_events([(1.0, chunk(1)), (2.0, b'{"error": {"message": "the engine died"}}')])
    with pytest.raises(RuntimeError, match="no tokens"):
        read_events([(1.0, b"[DONE]")])


def test_one_stream_is_measured_from_its_first_token_to_its_last() -> None:
    speed = decoding([timeline(5.0, 0.25, 1, 2, 2, 4)])
    assert speed.seconds == pytest.approx(0.75)
    assert speed.tokens_per_s == pytest.approx(8 / 0.75)
    assert speed.step_ms == pytest.approx(250)
    assert speed.tokens_per_step == pytest.approx(8 / 3)


def test_only_the_time_when_all_streams_decode_is_measured() -> None:
    early = timeline(0.0, 1.0, 1, *[1] * 9)  # has ended at 9 s
    late = timeline(4.0, 1.0, 1, *[3] * 9)  # begins at 4 s
    speed = decoding([early, late])
    assert speed.seconds == pytest.approx(5.0)
    assert speed.tokens_per_s == pytest.approx(1 + 3)
    assert speed.tokens_per_step == pytest.approx((5 + 15) / 10)


def test_reported_tokens_per_step_override_the_events() -> None:
    merged = timeline(0.0, 2.0, 1, 2, 2, 2)  # each event holds two steps
    known = type(merged)(merged.times_s, merged.tokens, tokens_per_step=1.0)
    assert decoding([merged]).step_ms == pytest.approx(2000)
    assert decoding([known]).step_ms == pytest.approx(1000)
    assert decoding([known]).tokens_per_step == 1.0


def test_a_stream_with_one_common_step_is_measured_by_that_step() -> None:
    quick = timeline(0.0, 1.0, 1, 8, 8)
    slow = timeline(1.2, 1.0, 1, 1, 1, 1)
    assert decoding([quick, timeline(0.5, 1.0, 1, 1)]).tokens_per_s == pytest.approx(8 + 1)
    with pytest.raises(ValueError, match="use more tokens"):
        decoding([quick, slow])


def test_events_that_are_read_together_are_one_moment() -> None:
    together = Timeline(np.array([1.0, 1.0, 2.0, 2.0]), np.array([1, 4, 6, 8]))
    assert decoding([together]).tokens_per_s == pytest.approx(4 / 1.0)
    ended = Timeline(np.array([0.0, 1.5, 1.5]), np.array([1, 2, 6]))
    with pytest.raises(ValueError, match="use more tokens"):
        decoding([ended, timeline(1.2, 1.0, 1, 1)])


class LateSystem(SteadySystem):
    """In its first bursts the streams do not decode at the same time."""

    late = 0

    async def send_burst(self, requests: Sequence[Request]) -> list[Timeline]:
        answers = await super().send_burst(requests)
        if self.late:
            self.late -= 1
            answers[-1] = timeline(1e6, 1.0, 1, 1)
        return answers


async def test_a_burst_whose_streams_do_not_overlap_is_sent_again() -> None:
    system = LateSystem("one", 0.01)
    requests = [Request([], 9, proposer="none")] * 2
    system.late = TRIES - 1
    assert (await measure(system, requests)).step_ms == pytest.approx(10)
    system.late = TRIES
    with pytest.raises(ValueError, match="use more tokens"):
        await measure(system, requests)


def text_chunk(text: str = "x", **more: Any) -> bytes:
    return json.dumps({"choices": [{"delta": {"content": text}}], **more}).encode()


def test_without_counts_in_every_chunk_the_final_usage_is_shared_out() -> None:
    final = chunk(6, choices=[])
    events = [(1.0, text_chunk("")), (2.0, text_chunk()), (3.0, text_chunk()), (4.0, text_chunk())]
    answer = parse_stream([*events, (4.1, final), (4.2, b"[DONE]")])
    assert answer.times_s.tolist() == [2.0, 3.0, 4.0]
    assert answer.tokens.tolist() == [2, 4, 6]
    assert parse_stream(events).tokens.tolist() == [1, 2, 3], "without usage a chunk is a token"


@pytest.mark.parametrize(
    "choice",
    [
        {"text": "x"},
        {"delta": {"reasoning_content": "x"}},
        {"delta": {"tool_calls": [{"function": {"arguments": "{"}}]}},
    ],
)
def test_completions_reasoning_and_tool_calls_are_tokens_too(choice: dict[str, Any]) -> None:
    line = json.dumps({"choices": [choice]}).encode()
    assert parse_stream([(1.0, line)]).tokens.tolist() == [1]


def test_an_answer_knows_whether_it_has_ended() -> None:
    assert not parse_stream([(1.0, text_chunk())]).is_finished
    assert parse_stream([(1.0, text_chunk()), (2.0, b"[DONE]")]).is_finished
    ending = json.dumps({"choices": [{"delta": {}, "finish_reason": "stop"}]}).encode()
    assert parse_stream([(1.0, ending)]).is_finished


@pytest.mark.parametrize("line", [b"{", b"3", b"[]"])
def test_a_chunk_that_is_not_an_object_is_an_error_of_the_stream(line: bytes) -> None:
    answer = parse_stream([(1.0, text_chunk()), (2.0, line)])
    assert answer.error is not None
    assert answer.tokens.tolist() == [1], "what came before is kept"

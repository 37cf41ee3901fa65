"""From events to decoding speed."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from benchmarks.side import TRIES, measure
from benchmarks.timeline import Timeline, decoding, read_events
from benchmarks.workload import Request
from tests.benchmarks.sides import SteadySide, timeline


def chunk(tokens: int, **more: Any) -> bytes:
    return b"data: " + json.dumps({"usage": {"completion_tokens": tokens}, **more}).encode()


def test_an_event_without_new_tokens_is_no_step() -> None:
    figures = {"speculative_decoding": {"mean_tokens_per_step": 1.5}}
    read = read_events(
        [
            (1.0, chunk(0)),
            (2.0, chunk(1)),
            (3.0, chunk(3)),
            (3.5, chunk(4)),
            (3.6, chunk(4, choices=[], metrics=figures)),
            (3.7, b"data: [DONE]"),
        ]
    )
    assert read.times_s.tolist() == [2.0, 3.0, 3.5]
    assert read.tokens.tolist() == [1, 3, 4]
    assert read.tokens_per_step == 1.5


def test_a_stream_that_broke_off_is_no_measurement() -> None:
    with pytest.raises(RuntimeError, match="the engine died"):
        read_events([(1.0, chunk(1)), (2.0, b'data: {"error": {"message": "the engine died"}}')])
    with pytest.raises(RuntimeError, match="no tokens"):
        read_events([(1.0, b"data: [DONE]")])


def test_one_stream_is_measured_from_its_first_token_to_its_last() -> None:
    speed = decoding([timeline(5.0, 0.25, 1, 2, 2, 4)])
    assert speed.seconds == pytest.approx(0.75)
    assert speed.tokens_per_s == pytest.approx(8 / 0.75)
    assert speed.step_ms == pytest.approx(250)
    assert speed.tokens_per_step == pytest.approx(8 / 3)


def test_prefill_of_others_is_left_out_and_so_is_the_time_alone() -> None:
    early = timeline(0.0, 1.0, 1, *[1] * 9)  # has ended at 9 s
    late = timeline(4.0, 1.0, 1, *[3] * 9)  # begins at 4 s
    speed = decoding([early, late])
    assert speed.seconds == pytest.approx(5.0)
    assert speed.tokens_per_s == pytest.approx(1 + 3)
    assert speed.tokens_per_step == pytest.approx((5 + 15) / 10)


def test_a_known_number_of_tokens_per_step_overrules_the_events() -> None:
    merged = timeline(0.0, 2.0, 1, 2, 2, 2)  # each event holds two steps
    known = type(merged)(merged.times_s, merged.tokens, tokens_per_step=1.0)
    assert decoding([merged]).step_ms == pytest.approx(2000)
    assert decoding([known]).step_ms == pytest.approx(1000)
    assert decoding([known]).tokens_per_step == 1.0


def test_a_stream_of_few_steps_is_measured_by_the_one_that_it_made_beside_the_others() -> None:
    quick = timeline(0.0, 1.0, 1, 8, 8)
    slow = timeline(1.2, 1.0, 1, 1, 1, 1)
    assert decoding([quick, timeline(0.5, 1.0, 1, 1)]).tokens_per_s == pytest.approx(8 + 1)
    with pytest.raises(ValueError, match="ask for more tokens"):
        decoding([quick, slow])


class Stumbling(SteadySide):
    """Its first waves do not run together."""

    stumbles = 0

    async def wave(self, requests: Sequence[Request]) -> list[Timeline]:
        answers = await super().wave(requests)
        if self.stumbles:
            self.stumbles -= 1
            answers[-1] = timeline(1e6, 1.0, 1, 1)
        return answers


async def test_a_wave_that_did_not_run_together_is_sent_again_a_few_times() -> None:
    side = Stumbling("one", 0.01)
    requests = [Request([], 9, proposer="none")] * 2
    side.stumbles = TRIES - 1
    assert (await measure(side, requests)).step_ms == pytest.approx(10)
    side.stumbles = TRIES
    with pytest.raises(ValueError, match="ask for more tokens"):
        await measure(side, requests)

"""Drafts take part in profiling, warm-up and capture, so no graph is captured while it serves.

vLLM's own code for a GPU runs here on the CPU; the graphs are pretended (`support.pretend_graphs`).
"""

from functools import cache
from itertools import pairwise

import pytest

from tests.engine_adapter.vllm_engine.conftest import PROPOSERS, TARGET
from tests.engine_adapter.vllm_engine.support.pretend_graphs import Start, start_and_serve

pytestmark = [pytest.mark.engine, pytest.mark.prove]

DRAFTS = ("draft", "eagle")
"""A draft model and a head; each drafts 4 tokens."""

LOADED = [fields for fields in PROPOSERS if fields["name"] in (*DRAFTS, "ngram")]


@cache
def started(*, warms_up_drafts: bool = True) -> Start:
    return start_and_serve(TARGET, LOADED, warms_up_drafts=warms_up_drafts)


def test_the_profile_run_has_the_target_and_then_every_pass_of_every_draft() -> None:
    profile = started().profile
    assert [call.model for call in profile] == ["target", *["draft"] * 4, *["eagle"] * 4]
    assert {(call.mode, call.tokens) for call in profile} == {("NONE", 256)}


def test_every_graph_is_captured_after_a_warm_up() -> None:
    capture = started().capture
    sizes = range(24, 0, -1)
    for model in DRAFTS:
        own = [call for call in capture if call.model == model]
        captured = [(call.mode, call.tokens) for call in own if call.captured]
        assert captured == [("PIECEWISE", size) for size in sizes]
    target = [
        (call.mode, call.tokens) for call in capture if call.captured and call.model == "target"
    ]
    # Whole steps only where a row has one token: there are as many tokens as rows.
    assert target == [
        *(("PIECEWISE", size) for size in sizes),
        *(("FULL", size) for size in (4, 3, 2, 1)),
    ]
    for before, call in pairwise(capture):
        if call.captured and call.model == "target":
            assert before.mode in ("NONE", "PIECEWISE"), (
                "vLLM runs each size once before it captures"
            )


def test_serving_replays_graphs_and_captures_none() -> None:
    serve = started().serve
    assert started().faults == {}
    assert not [call for calls in serve.values() for call in calls if call.captured]
    # The first pass reads the prompt, which is longer than any graph.
    assert [(call.mode, call.tokens) for call in serve["none"][1:]] == [("FULL", 1)] * 23
    for model in DRAFTS:
        modes = {call.mode for call in serve[model] if call.model == model and call.tokens < 24}
        assert modes == {"PIECEWISE"}
        verified = {(c.mode, c.tokens) for c in serve[model][1:] if c.model == "target"}
        assert ("PIECEWISE", 5) in verified, "a row with 4 drafts"


def test_the_text_is_the_same_with_every_proposer() -> None:
    assert len(set(started().texts.values())) == 1


def test_control_without_the_dummy_runs_no_draft_model_drafts() -> None:
    unprepared = started(warms_up_drafts=False)
    assert set(unprepared.faults) == set(DRAFTS)
    assert all("CUDA graph capturing" in fault for fault in unprepared.faults.values())

"""The report of the GPU check."""

import json
from dataclasses import asdict

import pytest

from benchmarks.gpu_check.report import page, passed, table_row
from benchmarks.gpu_check.running import Outcome, StageResult


def result(outcome: Outcome, **fields: object) -> StageResult:
    return StageResult("graphs", "exactness", outcome, 12.4, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("outcomes", "verdict"),
    [
        ([Outcome.PASSED, Outcome.PASSED], True),
        ([Outcome.PASSED, Outcome.SKIPPED], True),
        ([Outcome.SKIPPED], False),
        ([], False),
        ([Outcome.PASSED, Outcome.FAILED], False),
        ([Outcome.PASSED, Outcome.CRASHED], False),
        ([Outcome.PASSED, Outcome.TIMED_OUT], False),
    ],
)
def test_the_check_has_passed_if_all_that_ran_passed(
    outcomes: list[Outcome], verdict: bool
) -> None:
    assert passed([result(one) for one in outcomes]) is verdict


def test_a_row_has_the_reason() -> None:
    row = table_row(result(Outcome.FAILED, reason="a | b\nc"))
    assert row == "| graphs | exactness | failed: a \\| b c | 12 |"


def test_the_page_has_the_environment_the_rows_and_the_end_of_a_failed_log() -> None:
    failed = result(
        Outcome.FAILED,
        problems=["draft: it never drafted"],
        rows=[{"method": "none", "tokens/s": 31.25}, {"method": "draft", "drafted": 0}],
        log="graphs.log",
        log_end=["Traceback", "RuntimeError: no"],
    )
    info = {"devices": ["A card, 80 GiB, 9.0"], "versions": {"vllm": "0.32.0"}}
    lines = page(info, [failed, result(Outcome.PASSED)])
    text = "\n".join(lines)
    assert "2 stages ran; not every one passed. 0 minutes on A card, 80 GiB, 9.0." in lines
    assert "Begin with `graphs`: a stage is of little use before those above it pass." in lines
    assert "- draft: it never drafted" in lines
    assert "| method | tokens/s | drafted |" in lines
    assert "| none | 31.2 |  |" in lines
    assert "The end of `graphs.log`:\n```\nTraceback\nRuntimeError: no\n```" in text
    assert "- devices: A card, 80 GiB, 9.0" in lines
    assert "- versions: vllm 0.32.0" in lines
    assert text.count("## graphs") == 1, "nothing to tell of the one that passed"


def test_a_section_says_how_to_read_it_and_what_vllm_said() -> None:
    made = result(
        Outcome.PASSED,
        reading="Less is better.",
        rows=[{"method": "eagle3", "where": {"a.py:3": 1.0, "b.py:4": 0.25}}],
        notes=["Graph capturing finished in 9 secs, took 0.50 GiB"],
    )
    text = "\n".join(page({"devices": ["A card"]}, [made]))
    assert "## graphs\n\nLess is better.\n\n| method | where |" in text
    assert "| eagle3 | a.py:3 1, b.py:4 0.25 |" in text
    assert "vLLM said:\n- Graph capturing finished in 9 secs, took 0.50 GiB\n" in text


def test_a_stage_that_is_left_out_did_not_run() -> None:
    lines = page({"devices": ["A card"]}, [result(Outcome.PASSED), result(Outcome.SKIPPED)])
    assert "1 stages ran; every one passed. 0 minutes on A card." in lines
    assert "Left out: graphs." in lines


def test_a_result_is_json() -> None:
    told = json.loads(json.dumps(asdict(result(Outcome.TIMED_OUT))))
    assert told["outcome"] == "timed out"

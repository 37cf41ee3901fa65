"""Where a step waits, from what vLLM's check prints."""

import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.gpu_check.waits import RUN, STEPS, name_callers, waits_in

WAITED = "UserWarning: called a synchronizing CUDA operation (Triggered internally at Copy.cu:1)"
RUNNER = "/src/engine_adapter/vllm_engine/worker/runner.py"


def test_each_run_has_its_waits_by_step_and_the_most_frequent_place_is_first() -> None:
    lines = [
        f"{RUNNER}:9: {WAITED}",
        f"{RUN}eagle3, temperature 0.8",
        f"/opt/lib/site-packages/vllm/v1/sample/sampler.py:12: {WAITED}",
        "  tokens = logits.argmax().item()",
        f"(EngineCore pid=7) {RUNNER}:40: {WAITED}",
        f"{RUNNER}:40: {WAITED}",
        "/a/b.py:3: UserWarning: Tensor.to: a non_blocking H2D copy that may be silently "
        "synchronous (the CPU tensor is not pinned). Copy from pinned memory.",
        "/a/b.py:4: UserWarning: something else",
        "INFO 10:00 [x.py:1] ready",
        f"{STEPS}4",
        f"{RUNNER}:9: {WAITED}",
        f"{RUN}ngram",
        f"{STEPS}5",
    ]
    assert waits_in(lines) == [
        {
            "method": "eagle3, temperature 0.8",
            "steps": 4,
            "Specgate's waits a step": 0.5,
            "vLLM's waits a step": 0.5,
            "where": {
                "engine_adapter/vllm_engine/worker/runner.py:40": 0.5,
                "vllm/v1/sample/sampler.py:12": 0.25,
                "/a/b.py:3 (a copy that may wait)": 0.25,
            },
        },
        {
            "method": "ngram",
            "steps": 5,
            "Specgate's waits a step": 0,
            "vLLM's waits a step": 0,
            "where": {},
        },
    ]


def test_a_run_without_steps_is_a_row_and_a_log_without_runs_has_none() -> None:
    assert waits_in([f"{RUN}ngram", f"{STEPS}0"])[0]["steps"] == 0
    assert waits_in([f"{RUN}ngram", "INFO ready", ""]) == []


def test_another_process_may_write_into_the_line_with_the_steps() -> None:
    assert waits_in([f"{RUN}ngram", f"{STEPS}40(EngineCore pid=7) INFO ready"])[0]["steps"] == 40


@pytest.fixture
def shown() -> Iterator[list[warnings.WarningMessage]]:
    """The warnings that are shown."""
    with warnings.catch_warnings(record=True) as log:
        warnings.simplefilter("default")
        yield log


@pytest.mark.parametrize(
    ("text", "times", "place"),
    [
        ("called a synchronizing CUDA operation", 1, __file__),  # vLLM shows each
        ("a copy that may be silently synchronous", 2, "/vllm/utils/gpu_sync_debug.py"),
        ("another warning", 1, "/vllm/utils/gpu_sync_debug.py"),
    ],
)
def test_a_wait_is_that_of_the_line_that_called_vllms_check(
    shown: list[warnings.WarningMessage], text: str, times: int, place: str
) -> None:
    checked: dict[str, Any] = {}
    code = "import warnings\ndef to(text):\n    warnings.warn(text)\n"
    exec(compile(code, "/vllm/utils/gpu_sync_debug.py", "exec"), checked)
    name_callers()
    for _ in range(2):
        checked["to"](text)
    assert [(str(one.message), one.filename) for one in shown] == [(text, place)] * times

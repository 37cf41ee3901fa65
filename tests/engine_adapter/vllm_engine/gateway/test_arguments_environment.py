"""Settings become environment variables; a variable that the user has set is kept."""

import os

import pytest

from engine_adapter.seam.config import EngineConfig
from engine_adapter.vllm_engine.gateway.arguments import WAITING, prepare_environment
from tests.engine_adapter.vllm_engine.gateway.model_folders import config

DEFAULTS = {
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "OMP_WAIT_POLICY": "PASSIVE",
}


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Unsets the variables during the test."""
    fixed = ("VLLM_USE_V2_MODEL_RUNNER", "VLLM_ENABLE_STARTUP_PLAN")
    for name in (*DEFAULTS, *WAITING, *fixed):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return monkeypatch


def test_an_unset_variable_gets_a_default(environment: pytest.MonkeyPatch) -> None:
    prepare_environment(config())
    assert {name: os.environ[name] for name in DEFAULTS} == DEFAULTS


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("VLLM_LOGGING_LEVEL", "DEBUG"),
        ("VLLM_NO_USAGE_STATS", "0"),
        ("VLLM_ENABLE_V1_MULTIPROCESSING", "1"),
        ("VLLM_USE_V2_MODEL_RUNNER", "1"),
    ],
)
def test_a_variable_that_the_user_has_set_is_kept(
    environment: pytest.MonkeyPatch, name: str, value: str
) -> None:
    environment.setenv(name, value)
    prepare_environment(config())
    assert os.environ[name] == value


@pytest.mark.parametrize("name", WAITING)
def test_how_threads_wait_is_left_to_a_user_who_says_it(
    environment: pytest.MonkeyPatch, name: str
) -> None:
    environment.setenv(name, "7")
    prepare_environment(config())
    assert {n: os.environ[n] for n in WAITING if n in os.environ} == {name: "7"}


def test_the_model_runner_is_v2(environment: pytest.MonkeyPatch) -> None:
    prepare_environment(config())
    assert os.environ["VLLM_USE_V2_MODEL_RUNNER"] == "1"


def test_no_start_takes_the_memory_plan_of_another(environment: pytest.MonkeyPatch) -> None:
    # vLLM's plan has no part of the proposers: they may be others, or draft more.
    environment.setenv("VLLM_ENABLE_STARTUP_PLAN", "1")
    prepare_environment(config())
    assert os.environ["VLLM_ENABLE_STARTUP_PLAN"] == "0"


def test_the_log_level_comes_from_the_settings(environment: pytest.MonkeyPatch) -> None:
    prepare_environment(EngineConfig("m", "m", log_level="INFO"))
    assert os.environ["VLLM_LOGGING_LEVEL"] == "INFO"


@pytest.mark.parametrize(("size", "value"), [(None, "0"), (1, "0"), (2, None)])
def test_only_a_single_worker_shares_the_engine_process(
    environment: pytest.MonkeyPatch, size: int | None, value: str | None
) -> None:
    prepare_environment(config(tensor_parallel_size=size))
    assert os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING") == value

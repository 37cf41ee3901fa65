"""Model runner V2: the variable that names it, and how its steps are scheduled."""

from types import SimpleNamespace

import pytest

from demo import model_path
from engine_adapter.seam.errors import EngineConfigError
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.gateway import model_runner
from engine_adapter.vllm_engine.gateway.arguments import engine_args
from tests.engine_adapter.vllm_engine.gateway.model_folders import config

pytestmark = pytest.mark.needs_vllm


@pytest.mark.parametrize("environment", [{}, {"VLLM_USE_V2_MODEL_RUNNER": "1"}])
def test_v2_need_not_be_asked_for(environment: dict[str, str]) -> None:
    model_runner.check_variable(environment)


@pytest.mark.parametrize("value", ["0", "false", ""])
def test_v1_is_refused(value: str) -> None:
    with pytest.raises(EngineConfigError, match="no hooks in vLLM's model runner V1") as refused:
        model_runner.check_variable({"VLLM_USE_V2_MODEL_RUNNER": value})
    assert refused.value.setting == "VLLM_USE_V2_MODEL_RUNNER"


@pytest.mark.parametrize("on_cpu", [True, False])
def test_without_a_setting_steps_are_asynchronous_on_a_gpu(
    monkeypatch: pytest.MonkeyPatch, on_cpu: bool
) -> None:
    monkeypatch.setitem(vars(compat), "current_platform", SimpleNamespace(is_cpu=lambda: on_cpu))
    assert model_runner.is_async({}) is not on_cpu
    assert not model_runner.is_async({"async_scheduling": False})
    assert model_runner.scheduling({"async_scheduling": True}) == "async scheduling on"


@pytest.mark.parametrize("value", [None, False, True])
def test_the_scheduler_and_the_method_are_those_of_the_setting(value: bool | None) -> None:
    fields = {} if value is None else {"async_scheduling": value}
    args = engine_args(config(str(model_path("target")), [{"name": "ngram"}], **fields), 4, None)
    assert args.async_scheduling is bool(value)
    scheduler = args.scheduler_cls.rpartition(".")[2]
    assert scheduler == ("SpecgateAsyncScheduler" if value else "SpecgateScheduler")
    method = args.speculative_config["method"]
    assert (method, args.speculative_config["num_speculative_tokens"]) == (
        "ngram_gpu" if value else "ngram",
        4,
    )

"""Which model runner an engine has, and what is refused on V2."""

from types import SimpleNamespace
from typing import Any

import pytest

from demo import model_path
from engine_adapter.errors import EngineConfigError
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.gateway import model_runner
from engine_adapter.vllm_engine.gateway.arguments import engine_args
from tests.engine_adapter.vllm_engine.gateway.model_folders import config, draft

pytestmark = pytest.mark.needs_vllm

REFUSED: dict[str, tuple[list[dict[str, Any]], dict[str, Any], str]] = {
    "compiled models": ([], {"enforce_eager": False}, "enforce_eager"),
}


@pytest.fixture
def v2(monkeypatch: pytest.MonkeyPatch) -> None:
    """V2 is asked for."""
    monkeypatch.setenv(model_runner.VARIABLE, "1")


@pytest.fixture
def v1(monkeypatch: pytest.MonkeyPatch) -> None:
    """V2 is not asked for."""
    monkeypatch.setenv(model_runner.VARIABLE, "0")


@pytest.mark.parametrize(("proposers", "given", "setting"), REFUSED.values(), ids=REFUSED)
@pytest.mark.usefixtures("v2")
def test_what_is_not_ported_is_refused_on_v2(
    proposers: list[dict[str, Any]], given: dict[str, Any], setting: str
) -> None:
    with pytest.raises(EngineConfigError, match="not yet on vLLM's model runner V2") as refused:
        model_runner.check_settings(config("m", proposers, **given))
    assert refused.value.setting == setting


@pytest.mark.parametrize(("proposers", "given", "_"), REFUSED.values(), ids=REFUSED)
@pytest.mark.usefixtures("v1")
def test_nothing_of_it_is_refused_on_v1(
    proposers: list[dict[str, Any]], given: dict[str, Any], _: str
) -> None:
    model_runner.check_settings(config("m", proposers, **given))


@pytest.mark.usefixtures("v2")
def test_models_lookups_and_adapters_are_not_refused() -> None:
    proposers = [draft("m", draft_sampling="probabilistic"), {"name": "ngram"}, {"name": "grammar"}]
    given = {"tensor_parallel_size": 2, "data_parallel_size": 2, "enable_lora": True}
    model_runner.check_settings(config("m", proposers, **given))


@pytest.mark.usefixtures("v2")
def test_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vars(compat), "current_platform", SimpleNamespace(is_cpu=lambda: False))
    with pytest.raises(EngineConfigError, match=f"^{model_runner.VARIABLE}: .*a GPU"):
        model_runner.check_settings(config())


@pytest.mark.parametrize(("value", "method"), [("0", "custom_class"), ("1", "ngram")])
def test_the_method_is_one_that_the_runner_takes(
    monkeypatch: pytest.MonkeyPatch, value: str, method: str
) -> None:
    monkeypatch.setenv(model_runner.VARIABLE, value)
    made = model_runner.speculative_config(7)
    assert (made["method"], made["num_speculative_tokens"]) == (method, 7)
    runner = f"V{int(value) + 1} model runner, async scheduling"
    assert model_runner.name({}) == f"{runner} off"
    if value == "1":
        assert model_runner.name({"async_scheduling": True}) == f"{runner} on"


@pytest.mark.usefixtures("v1")
def test_v1_cannot_schedule_asynchronously() -> None:
    assert not model_runner.is_async({"async_scheduling": False})
    with pytest.raises(EngineConfigError, match="must be off on vLLM's model runner V1") as refused:
        model_runner.is_async({"async_scheduling": True})
    assert refused.value.setting == "async_scheduling"


@pytest.mark.usefixtures("v2")
@pytest.mark.parametrize("name", ["tensor_parallel_size", "data_parallel_size"])
def test_several_ranks_or_engines_cannot_schedule_asynchronously_yet(name: str) -> None:
    with pytest.raises(EngineConfigError, match=r"not yet .* with several") as refused:
        model_runner.is_async({"async_scheduling": True, name: 2})
    assert refused.value.setting == "async_scheduling"


@pytest.mark.usefixtures("v2")
@pytest.mark.parametrize("asked", [None, False, True])
def test_v2_schedules_asynchronously_if_it_is_asked_for(asked: bool | None) -> None:
    given = {} if asked is None else {"async_scheduling": asked}
    args = engine_args(config(str(model_path("target")), [{"name": "ngram"}], **given), 4, None)
    assert args.async_scheduling is bool(asked)
    scheduler = args.scheduler_cls.rpartition(".")[2]
    assert scheduler == ("SpecgateAsyncScheduler" if asked else "SpecgateScheduler")
    assert args.speculative_config["method"] == ("ngram_gpu" if asked else "ngram")

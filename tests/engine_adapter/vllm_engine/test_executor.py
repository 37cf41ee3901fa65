"""The executor of several ranks reports why EngineCore does not start."""

import pickle
from types import SimpleNamespace
from typing import Any

import pytest

from engine_adapter.vllm_engine import compat

pytestmark = pytest.mark.needs_vllm


def test_only_several_processes_get_another_executor_than_vllms() -> None:
    from engine_adapter.vllm_engine.executor import ReportingExecutor, executor_class

    def config(backend: str) -> Any:
        return SimpleNamespace(
            parallel_config=SimpleNamespace(distributed_executor_backend=backend)
        )

    assert executor_class(config("mp")) is ReportingExecutor
    assert executor_class(config("uni")) is compat.Executor.get_class(config("uni"))
    assert pickle.loads(pickle.dumps(ReportingExecutor)) is ReportingExecutor

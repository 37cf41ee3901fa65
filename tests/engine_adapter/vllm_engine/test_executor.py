"""The executor of several ranks reports why EngineCore does not start."""

import pickle
from types import SimpleNamespace
from typing import Any

import pytest

from engine_adapter.vllm_engine import compat

pytestmark = pytest.mark.needs_vllm


def test_only_several_processes_get_another_executor_than_vllms() -> None:
    from engine_adapter.vllm_engine.executor import ReportingExecutor, executor_class

    def chosen(backend: str) -> type:
        config: Any = SimpleNamespace(distributed_executor_backend=backend)
        return executor_class(SimpleNamespace(parallel_config=config))

    assert chosen("mp") is ReportingExecutor
    assert chosen("uni") is compat.Executor.get_class(
        SimpleNamespace(parallel_config=SimpleNamespace(distributed_executor_backend="uni"))
    )
    assert pickle.loads(pickle.dumps(ReportingExecutor)) is ReportingExecutor

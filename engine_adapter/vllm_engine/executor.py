"""vLLM's executor of several ranks, which tells the gateway why EngineCore fails to start.

With one rank the worker tells it: it is in EngineCore's process.
"""

from typing import Any

from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.load_progress import report_failures
from engine_adapter.vllm_engine.wire import SpecgateConfig


class ReportingExecutor(compat.MultiprocExecutor):
    """vLLM's executor. From its start on the gateway hears the exceptions of EngineCore."""

    def _init_executor(self) -> None:
        """Starts the workers, as vLLM does."""
        report_failures(SpecgateConfig.from_vllm_config(self.vllm_config).progress_pipe)
        super()._init_executor()


def executor_class(vllm_config: Any) -> type:
    """The executor of a configuration: vLLM's choice, except for `ReportingExecutor`."""
    vllms_class: type = compat.Executor.get_class(vllm_config)
    return ReportingExecutor if vllms_class is compat.MultiprocExecutor else vllms_class

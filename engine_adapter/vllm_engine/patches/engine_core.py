"""Methods for vLLM's EngineCore, which answers utility calls by method name.

They are the one way to reach the scheduler from the gateway's process; they run between two steps.
"""

from typing import Any

from engine_adapter.types import SpecMethod, Switch
from engine_adapter.vllm_engine import compat


def patch_engine_core() -> None:
    """Adds Specgate's utility methods to EngineCore."""
    compat.EngineCore.specgate_switch = specgate_switch
    compat.EngineCore.specgate_clear_faults = specgate_clear_faults


def specgate_switch(core: Any, proposer: str, k: int, epoch: int) -> None:
    """Gives running requests the method of a switch; called by `VllmEngine.switch`."""
    core.scheduler.row_table.switch(Switch(SpecMethod(proposer, k), epoch))


def specgate_clear_faults(core: Any, proposer: str) -> None:
    """Clears the faults of a proposer that is unloaded, so that a reload starts without them."""
    core.scheduler.row_table.quarantine.clear_faults(proposer)

"""Methods for vLLM's EngineCore, which answers utility calls by method name.

They are the one way to reach the scheduler from the gateway's process; they run between two steps.
"""

from typing import Any

from engine_adapter.policies.contract import ProposerTraits
from engine_adapter.seam.types import SpecMethod, Switch
from engine_adapter.vllm_engine import compat


def patch_engine_core() -> None:
    """Adds Specgate's utility methods to EngineCore."""
    compat.EngineCore.specgate_answer = specgate_answer
    compat.EngineCore.specgate_switch = specgate_switch
    compat.EngineCore.specgate_add_proposer = specgate_add_proposer
    compat.EngineCore.specgate_remove_proposer = specgate_remove_proposer
    compat.EngineCore.specgate_set_policy = specgate_set_policy
    compat.EngineCore.specgate_restore_evidence = specgate_restore_evidence


def specgate_answer(core: Any) -> None:
    """Shows that EngineCore gets from one step to the next; called by `EngineProcess`."""


def specgate_switch(core: Any, proposer: str, k: int, epoch: int) -> None:
    """Gives running requests the method of a switch; called by `VllmEngine.switch`."""
    core.scheduler.row_table.switch(Switch(SpecMethod(proposer, k), epoch))


def specgate_add_proposer(core: Any, fields: dict[str, Any]) -> None:
    """Lets policies choose a proposer that was loaded; `fields` are of its `ProposerTraits`."""
    core.scheduler.row_table.planner.measurements.add_proposer(ProposerTraits(**fields))


def specgate_remove_proposer(core: Any, name: str) -> None:
    """Forgets a proposer that is unloaded, and its faults, so that a reload starts without them."""
    core.scheduler.row_table.planner.measurements.remove_proposer(name)
    core.scheduler.row_table.quarantine.clear_faults(name)


def specgate_set_policy(core: Any, name: str, parameters: dict[str, Any]) -> None:
    """Gives a policy these parameters from the next step on."""
    core.scheduler.row_table.planner.set_policy(name, parameters)


def specgate_restore_evidence(core: Any, snapshot: dict[str, Any]) -> None:
    """Gives a new engine process what the one before had measured."""
    core.scheduler.row_table.planner.restore(snapshot)

"""Changes that all engines take, or none.

An engine that is dead when a change is made gets it when it is back, before it serves.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, TypeVar

import structlog

from engine_adapter.data_parallel.member import Change, Member, failure_of
from engine_adapter.errors import EngineDead

log = structlog.get_logger(__name__)

T = TypeVar("T")


async def make(change: Change[T], members: Sequence[Member]) -> list[T]:
    """Makes a change at every engine that serves; the others get it when they are back.

    Returns:
        The answers of the engines that took it, at least one.

    Raises:
        EngineDead: none serves, or one has died in a change that needs all; no engine has it.
        Exception: what the first engine that refused has raised; no engine has it.
    """
    takers = [member for member in members if member.failure is None]
    if not takers:
        failure = failure_of(members)
        assert failure is not None
        raise failure
    outcomes = await asyncio.gather(
        *(change.apply(member.engine) for member in takers), return_exceptions=True
    )
    took: dict[Member, T] = {}
    refusals: list[BaseException] = []
    deaths: list[BaseException] = []
    for member, outcome in zip(takers, outcomes, strict=True):
        if isinstance(outcome, EngineDead):
            deaths.append(outcome)
        elif isinstance(outcome, BaseException):
            refusals.append(outcome)
        else:
            took[member] = outcome
    if change.needs_all or not took:
        refusals += deaths
    if refusals:
        await _take_back(change, list(took))
        raise refusals[0]
    for member in members:
        if member not in took and member.comes_back:
            member.miss(change)
    return list(took.values())


async def _take_back(change: Change[Any], members: Sequence[Member]) -> None:
    """Undoes a change. An engine that fails in it serves only after it has succeeded."""
    outcomes = await asyncio.gather(
        *(change.undo(member.engine) for member in members), return_exceptions=True
    )
    undo = Change(f"the undoing of {change.what}", change.undo, change.apply, change.topic)
    for member, error in zip(members, outcomes, strict=True):
        if isinstance(error, BaseException) and member.comes_back:
            log.error(
                "engine_change_not_undone",
                engine=member.index,
                change=change.what,
                cause=str(error),
            )
            member.miss(undo)

"""Changes that all engines take, or none.

An engine that is dead when a change is made gets it when it is back, before it serves.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, TypeVar

import structlog

from engine_adapter.data_parallel.rank import Change, DataParallelRank, failure_of
from engine_adapter.seam.errors import EngineDead

log = structlog.get_logger(__name__)

T = TypeVar("T")


async def make(change: Change[T], ranks: Sequence[DataParallelRank]) -> list[T]:
    """Makes a change at every engine that serves; the others get it when they are back.

    Returns:
        The answers of the engines that took it, at least one.

    Raises:
        EngineDead: none serves, or one has died in a change that needs all; no engine has it.
        Exception: what the first engine that refused has raised; no engine has it.
    """
    takers = [rank for rank in ranks if rank.failure is None]
    if not takers:
        failure = failure_of(ranks)
        assert failure is not None
        raise failure
    outcomes = await asyncio.gather(
        *(change.apply(rank.engine) for rank in takers), return_exceptions=True
    )
    took: dict[DataParallelRank, T] = {}
    refusals: list[BaseException] = []
    deaths: list[BaseException] = []
    for rank, outcome in zip(takers, outcomes, strict=True):
        if isinstance(outcome, EngineDead):
            deaths.append(outcome)
        elif isinstance(outcome, BaseException):
            refusals.append(outcome)
        else:
            took[rank] = outcome
    if change.needs_all or not took:
        refusals += deaths
    if refusals:
        await _take_back(change, list(took))
        raise refusals[0]
    for rank in ranks:
        if rank not in took and rank.comes_back:
            rank.miss(change)
    return list(took.values())


async def _take_back(change: Change[Any], ranks: Sequence[DataParallelRank]) -> None:
    """Undoes a change. An engine that fails in it serves only after it has succeeded."""
    outcomes = await asyncio.gather(
        *(change.undo(rank.engine) for rank in ranks), return_exceptions=True
    )
    undo = Change(f"the undoing of {change.what}", change.undo, change.apply, change.topic)
    for rank, error in zip(ranks, outcomes, strict=True):
        if isinstance(error, BaseException) and rank.comes_back:
            log.error(
                "engine_change_not_undone",
                engine=rank.index,
                change=change.what,
                cause=str(error),
            )
            rank.miss(undo)

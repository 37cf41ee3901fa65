"""Switches of several engines, and the method to which a failed one returns."""

from collections.abc import Sequence
from functools import partial

from engine_adapter.data_parallel.changes import make
from engine_adapter.data_parallel.rank import Change, DataParallelRank
from engine_adapter.seam.interface import Engine
from engine_adapter.seam.types import NO_SWITCH, SpecDecodeParams, Switch


class Switching:
    """Switches all engines or none.

    An engine does not tell which method its requests had. They carry it themselves when they
    begin, so the method before a switch is that of the last one that is not pinned.
    """

    def __init__(self) -> None:
        self._last_switch = NO_SWITCH

    def note_request(self, params: SpecDecodeParams) -> None:
        """A request begins."""
        if not params.pinned and params.switch_epoch >= self._last_switch.epoch:
            self._last_switch = Switch(params.spec_method, params.switch_epoch)

    async def switch(
        self, switch: Switch, running: bool, ranks: Sequence[DataParallelRank]
    ) -> None:
        """See `Engine.switch`. If one refuses, running requests of all have the method before."""
        old = Switch(self._last_switch.spec_method, switch.epoch)
        change = Change(
            f"the switch to {switch.spec_method.proposer}",
            partial(_switch, switch=switch, running=running),
            partial(_switch, switch=old, running=running),
            # New requests carry their method: only switches of running ones are kept by an engine.
            topic="switch" if running else None,
        )
        await make(change, ranks)
        self._last_switch = switch


async def _switch(engine: Engine, *, switch: Switch, running: bool) -> None:
    await engine.switch(switch, running=running)

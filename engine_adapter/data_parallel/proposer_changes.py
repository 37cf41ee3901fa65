"""Loads and unloads of proposers at several engines, one change at a time."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from engine_adapter.data_parallel.changes import make
from engine_adapter.data_parallel.merging import merged
from engine_adapter.data_parallel.rank import Change, DataParallelRank
from engine_adapter.proposers.contract import ProposerSpec
from engine_adapter.proposers.methods import read_name
from engine_adapter.seam.errors import ProposerRefused
from engine_adapter.seam.types import ProposerInfo


class ProposerChanges:
    """Knows the fields of every proposer, so that a failed unload can be undone.

    Args:
        specs: the proposers at start.
    """

    def __init__(self, specs: Sequence[ProposerSpec]) -> None:
        self._fields: dict[str, Mapping[str, Any]] = {spec.name: fields_of(spec) for spec in specs}
        self._changing = ""

    async def load(
        self, fields: Mapping[str, Any], ranks: Sequence[DataParallelRank]
    ) -> ProposerInfo:
        """See `Engine.load_proposer`."""
        name = read_name(fields)
        with self._exclusive(name):
            change = Change(
                f"the load of {name}",
                lambda engine: engine.load_proposer(fields),
                lambda engine: engine.unload_proposer(name),
                needs_all=True,
            )
            answers = await make(change, ranks)
            self._fields[name] = fields
            return merged(answers)

    async def unload(self, name: str, ranks: Sequence[DataParallelRank]) -> None:
        """See `Engine.unload_proposer`."""
        with self._exclusive(name):
            fields = self._fields.get(name, {})
            change = Change(
                f"the unload of {name}",
                lambda engine: engine.unload_proposer(name),
                lambda engine: engine.load_proposer(fields),
            )
            await make(change, ranks)
            self._fields.pop(name, None)

    @contextmanager
    def _exclusive(self, name: str) -> Iterator[None]:
        if self._changing:
            raise ProposerRefused(
                "load_in_progress",
                f"{self._changing!r} is being loaded or unloaded; try again later.",
            )
        self._changing = name
        try:
            yield
        finally:
            self._changing = ""


def fields_of(spec: ProposerSpec) -> dict[str, Any]:
    """The JSON object of a proposer, as `parse_spec` reads it."""
    fields = {
        "name": spec.name,
        "method": spec.method,
        "model": spec.model,
        "num_speculative_tokens": spec.num_speculative_tokens,
        **spec.options,
    }
    return {name: value for name, value in fields.items() if value is not None}

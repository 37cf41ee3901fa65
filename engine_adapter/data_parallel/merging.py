"""What several engines show, as one."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from engine_adapter.seam.types import ProposerInfo, ProposerState

ProposerInfos = tuple[ProposerInfo, ...]

_WORST = (ProposerState.QUARANTINED, ProposerState.LOADING, ProposerState.LOADED)


def merged(infos: Sequence[ProposerInfo]) -> ProposerInfo:
    """One proposer of several engines: memory is summed, and the worst state is that of all."""
    worst = min(infos, key=lambda info: _WORST.index(info.state))
    latencies = [info.draft_latency_ms for info in infos if info.draft_latency_ms is not None]
    return replace(
        infos[0],
        state=worst.state,
        last_error=worst.last_error,
        weights_bytes=sum(info.weights_bytes for info in infos),
        kv_bytes=sum(info.kv_bytes for info in infos),
        draft_latency_ms=sum(latencies) / len(latencies) if latencies else None,
    )


class MergedProposers:
    """The proposers of several engines. The last answer is kept, because every request asks."""

    def __init__(self) -> None:
        self._by_engine: tuple[ProposerInfos, ...] = ()
        self._merged: ProposerInfos = ()

    def merge(self, by_engine: tuple[ProposerInfos, ...]) -> ProposerInfos:
        """Those that all engines have, or that are being loaded, in the order of the first.

        Args:
            by_engine: of each engine, in any order.
        """
        if len(by_engine) != len(self._by_engine) or any(
            a is not b for a, b in zip(by_engine, self._by_engine, strict=True)
        ):
            self._by_engine, self._merged = by_engine, _merge(by_engine)
        return self._merged


def _merge(by_engine: Sequence[ProposerInfos]) -> ProposerInfos:
    by_name: dict[str, list[ProposerInfo]] = {}
    for infos in by_engine:
        for info in infos:
            by_name.setdefault(info.name, []).append(info)
    return tuple(
        merged(infos)
        for infos in by_name.values()
        if len(infos) == len(by_engine) or any(i.state == ProposerState.LOADING for i in infos)
    )


def of_every_engine(values: Mapping[int, Any]) -> dict[str, Any]:
    """A value of each engine, by its index, as JSON."""
    return {"engines": {str(index): value for index, value in values.items()}}

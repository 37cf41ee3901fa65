"""The sides of a comparison, and the proposers that each of them loads."""

from collections.abc import Sequence
from enum import StrEnum

from engine_adapter.proposers.contract import ProposerSpec
from engine_adapter.seam.types import NONE
from engine_adapter.vllm_engine import compat

STOCK_METHODS = frozenset({"ngram", "suffix", "draft_model", "eagle", "eagle3", "mtp", "dflash"})
"""Methods that stock vLLM has too."""

STOCK_BEFORE = {"medusa": "0.33"}
"""Methods that stock vLLM had, each with the release (major.minor) that removed it."""


class Side(StrEnum):
    """One way to run the measured proposer."""

    STOCK = "stock"
    """Stock vLLM with the proposer, on the model runner that it chooses: on a CPU V1."""
    STOCK_V2 = "stock-v2"
    """Stock vLLM on its model runner V2, without a proposer."""
    ONE = "one"
    """Specgate with only this proposer loaded."""
    ALL = "all"
    """Specgate with all proposers loaded."""


DEFAULT_SIDES = (Side.STOCK, Side.ONE, Side.ALL)
"""The sides of a comparison that names none."""


def specs_by_name(
    names: Sequence[str], specs: Sequence[ProposerSpec]
) -> dict[str, ProposerSpec | None]:
    """The spec of each named proposer, in the order of the names; `None` for `none`.

    Raises `ValueError` for a name that no spec has.
    """
    by_name: dict[str, ProposerSpec | None] = {spec.name: spec for spec in specs}
    for name in names:
        if name != NONE and name not in by_name:
            raise ValueError(f"no proposer {name!r}; the proposers are {', '.join(by_name)}")
    return {name: by_name.get(name) for name in names}


def supported_sides(sides: Sequence[Side], spec: ProposerSpec | None) -> list[Side]:
    """The sides that can run the proposer: stock vLLM does not have every method."""
    without = set()
    if spec is not None:
        without.add(Side.STOCK_V2)
        if spec.method not in STOCK_METHODS and not _was_in_stock(spec.method):
            without.add(Side.STOCK)
    return [side for side in sides if side not in without]


def _was_in_stock(method: str) -> bool:
    return method in STOCK_BEFORE and compat.is_before(STOCK_BEFORE[method])


def loaded_specs(
    side: Side, spec: ProposerSpec | None, specs: Sequence[ProposerSpec]
) -> Sequence[ProposerSpec]:
    """The proposers that Specgate loads to measure one of them.

    Args:
        side: `one` (the proposer, after the members that it refers to), or `all`.
        spec: the measured proposer; `None` is decoding without a proposer.
        specs: all proposers.
    """
    if side == Side.ALL:
        return specs
    if spec is None:
        return []
    by_name = {candidate.name: candidate for candidate in specs}
    # A chain may have a lookup twice.
    return [*(by_name[name] for name in dict.fromkeys(spec.options.get("members", ()))), spec]

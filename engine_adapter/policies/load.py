"""`load`: light, heavy and extreme load each have their proposer, or none.

Source: vLLM pull request 7947 (a fast proposer while the load is light, an accurate one while it
is heavy, none when it is extreme) and vLLM's `disable_by_batch_size`.

The load is light while at most `max_running` rows run and at most `max_waiting` requests wait,
both of the level `light`; else heavy by the same rule; else extreme. It rises at once. It falls
only when both numbers are at most (1 - hysteresis) times the lower level's limits for
`dwell_steps` steps in a row, so that it does not swing at a threshold.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from engine_adapter.policies.contract import StepPlan, StepResult, StepView
from engine_adapter.policies.parameters import PolicyError, check_number
from engine_adapter.seam.types import NONE, PLAIN, SpecMethod

LEVELS = ("light", "heavy", "extreme")
"""The levels of load, in rising order."""

DEFAULT_MAX_RUNNING = 8
"""Without parameters the primary proposer drafts up to this many running rows."""

MAX_COUNT = 1 << 20
_LEVEL_FIELDS = ("proposer", "num_speculative_tokens", "max_running", "max_waiting")


@dataclass(frozen=True, slots=True)
class Level:
    """One level of load.

    Attributes:
        name: `light`, `heavy` or `extreme`.
        spec_method: the method of its rows.
        max_running, max_waiting: the load is above this level with more; `None` sets none.
    """

    name: str
    spec_method: SpecMethod
    max_running: int | None = None
    max_waiting: int | None = None

    def holds(self, running: int, waiting: int, share: float = 1.0) -> bool:
        """Whether both numbers are at most `share` times the limits."""
        return (self.max_running is None or running <= share * self.max_running) and (
            self.max_waiting is None or waiting <= share * self.max_waiting
        )


@dataclass(frozen=True, slots=True)
class LoadParameters:
    """The levels in rising order, the last one without limits, and the damping."""

    levels: tuple[Level, ...]
    hysteresis: float = 0.25
    dwell_steps: int = 16


class LoadPolicy:
    """Gives every row the method of the current level of load."""

    def __init__(self, parameters: LoadParameters) -> None:
        self.parameters = parameters
        self.level = 0
        self._calm_steps = 0

    def plan(self, view: StepView) -> StepPlan:
        """The current level's method for each row, within the row's limits."""
        method = self._method(view.num_running, view.num_waiting)
        if not method.num_speculative_tokens:
            return StepPlan()
        drafts = {}
        for row in view.rows:
            k = min(method.num_speculative_tokens, row.limit)
            drafts[row.request_id] = replace(method, num_speculative_tokens=k)
        return StepPlan(drafts)

    @property
    def suspended(self) -> bool:
        """Never: it has no guard."""
        return False

    def observe(self, step: StepResult) -> None:
        """Nothing: the load alone decides."""

    def state(self) -> dict[str, Any]:
        """The current level and its method."""
        level = self.parameters.levels[self.level]
        method = level.spec_method
        return {
            "level": level.name,
            "proposer": method.proposer,
            "num_speculative_tokens": method.num_speculative_tokens,
        }

    def _method(self, running: int, waiting: int) -> SpecMethod:
        levels = self.parameters.levels
        level_index = next(i for i, level in enumerate(levels) if level.holds(running, waiting))
        below = levels[max(self.level - 1, 0)]
        if level_index > self.level:
            self.level, self._calm_steps = level_index, 0
        elif level_index < self.level and below.holds(
            running, waiting, 1 - self.parameters.hysteresis
        ):
            self._calm_steps += 1
            if self._calm_steps >= self.parameters.dwell_steps:
                self.level, self._calm_steps = self.level - 1, 0
        else:
            self._calm_steps = 0
        return levels[self.level].spec_method


def read_load(
    raw: Mapping[str, Any], known_ks: Mapping[str, int], primary: str | None
) -> LoadParameters:
    """The parameters of a JSON object.

    Args:
        raw: either `disable_by_batch_size` (plain decoding from that many running rows on) and
            optionally `proposer`, or the levels by name; with both forms `hysteresis` and
            `dwell_steps`. A level without `proposer` has the primary one; `extreme` has none.
        known_ks: proposer -> its k.
        primary: the primary proposer, if there is one.

    Raises:
        PolicyError: a field is unknown or cannot work.
    """
    damping = {"hysteresis": 0.25, "dwell_steps": 16}
    parameter_names = (*LEVELS, *damping, "disable_by_batch_size", "proposer")
    for name in raw:
        if name not in parameter_names:
            raise PolicyError(name, f"unknown; the parameters are {', '.join(parameter_names)}")
    check_number("hysteresis", raw.get("hysteresis", 0.25), 0, 0.9, like=0.5)
    check_number("dwell_steps", raw.get("dwell_steps", 16), 0, 10_000)
    if "disable_by_batch_size" in raw:
        raw_levels = _shortest_form(raw)
    elif "proposer" in raw:
        raise PolicyError("proposer", "needs disable_by_batch_size; a level has its own proposer")
    else:
        raw_levels = {name: raw[name] for name in LEVELS if name in raw}
        if not raw_levels and primary is not None:
            raw_levels = {"light": {"max_running": DEFAULT_MAX_RUNNING}}
    levels = [
        _read_level(name, raw_levels.get(name, {}), known_ks, primary)
        for name in _present(raw_levels)
    ]
    _check_order(levels)
    return LoadParameters(
        tuple(levels),
        raw.get("hysteresis", 0.25),
        raw.get("dwell_steps", 16),
    )


def load_json(parameters: LoadParameters) -> dict[str, Any]:
    """The parameters as a JSON object that `read_load` takes."""
    levels: dict[str, Any] = {}
    for level in parameters.levels:
        method = level.spec_method
        levels[level.name] = {"proposer": method.proposer}
        if method.num_speculative_tokens:
            levels[level.name]["num_speculative_tokens"] = method.num_speculative_tokens
        for key in ("max_running", "max_waiting"):
            if getattr(level, key) is not None:
                levels[level.name][key] = getattr(level, key)
    damping = {"hysteresis": parameters.hysteresis, "dwell_steps": parameters.dwell_steps}
    return {**levels, **damping}


def _shortest_form(raw: Mapping[str, Any]) -> dict[str, Any]:
    for name in LEVELS:
        if name in raw:
            raise PolicyError(name, "cannot be given together with disable_by_batch_size")
    size = raw["disable_by_batch_size"]
    check_number("disable_by_batch_size", size, 2, MAX_COUNT)
    light = {"max_running": size - 1}
    if "proposer" in raw:
        light["proposer"] = raw["proposer"]
    return {"light": light, "extreme": {}}


def _present(raw: Mapping[str, Any]) -> Sequence[str]:
    """The levels that exist: `extreme` always does, so that no load is without a level."""
    return [name for name in LEVELS if name in raw or name == "extreme"]


def _read_level(name: str, raw: Any, known_ks: Mapping[str, int], primary: str | None) -> Level:
    if not isinstance(raw, Mapping):
        raise PolicyError(name, f"must be an object with {', '.join(_LEVEL_FIELDS)}")
    for key in raw:
        if key not in _LEVEL_FIELDS:
            raise PolicyError(f"{name}.{key}", f"unknown; there are {', '.join(_LEVEL_FIELDS)}")
    is_extreme = name == "extreme"
    for key in ("max_running", "max_waiting"):
        if raw.get(key) is not None:
            if is_extreme:
                raise PolicyError(f"{name}.{key}", "extreme is every load above the other levels")
            check_number(f"{name}.{key}", raw[key], 0, MAX_COUNT)
    if not is_extreme and raw.get("max_running") is None and raw.get("max_waiting") is None:
        raise PolicyError(f"{name}.max_running", f"{name} needs max_running or max_waiting")
    method = _read_method(name, raw, known_ks, NONE if is_extreme else primary)
    return Level(name, method, raw.get("max_running"), raw.get("max_waiting"))


def _read_method(
    name: str, raw: Mapping[str, Any], known_ks: Mapping[str, int], default: str | None
) -> SpecMethod:
    proposer = raw.get("proposer", default)
    if proposer is None:
        raise PolicyError(f"{name}.proposer", "is required, because no primary is configured")
    if proposer == NONE:
        return PLAIN
    if type(proposer) is not str or proposer not in known_ks:
        there_are = ", ".join((NONE, *known_ks))
        raise PolicyError(
            f"{name}.proposer", f"{str(proposer)[:80]!r} is not loaded; there are {there_are}"
        )
    k = raw.get("num_speculative_tokens", known_ks[proposer])
    check_number(f"{name}.num_speculative_tokens", k, 1, known_ks[proposer])
    return SpecMethod(proposer, k)


def _check_order(levels: Sequence[Level]) -> None:
    """Raises `PolicyError` where a higher level has a lower limit: it would never be reached."""
    for lower, higher in pairwise(levels[:-1]):
        for key in ("max_running", "max_waiting"):
            low, high = getattr(lower, key), getattr(higher, key)
            if high is not None and (low is None or high <= low):
                below = "no limit" if low is None else low
                raise PolicyError(
                    f"{higher.name}.{key}", f"must be above the level before ({below}), got {high}"
                )

"""Routing rules: which requests a rule matches, and how rules are read. Pure: no engine, no HTTP.

A rule is `{"name": ..., "match": {...}, "use": {"proposer": ..., "num_speculative_tokens": ...}}`.
All conditions of `match` must hold; of several rules the first that matches decides.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from engine_adapter.seam.text import truncate
from server.control.method_names import MethodRequest

MAX_RULES = 100
MAX_PATTERN_CHARS = 256
MAX_VALUE_CHARS = 4096
"""A header with a longer value matches no pattern, so that matching is bounded in time."""


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers from `low` to `high`, both included; `None` sets no limit."""

    low: float | None = None
    high: float | None = None

    def holds(self, value: float) -> bool:
        """Whether `value` is in the range."""
        above = self.low is None or value >= self.low
        return above and (self.high is None or value <= self.high)

    def covers(self, other: "Range | None", domain: tuple[float, float | None]) -> bool:
        """Whether it has every number of `other`; without `other`, of `domain`."""
        low, high = domain if other is None else (other.low, other.high)
        low_holds = self.low is None or (low is not None and low >= self.low)
        return low_holds and (self.high is None or (high is not None and high <= self.high))


@dataclass(frozen=True, slots=True)
class Traits:
    """What rules match of a request.

    Attributes:
        model: the served name or LoRA adapter that it names.
        headers: name in lower case -> value.
        api_key: the name of its API key, if that key has one.
        prompt_tokens: of the longest of its prompts.
        temperature: as it is sampled.
        structured: its text has a constraint.
        overlap: the retrieval-likeness of the chat's earlier answers, if it has any.
    """

    model: str
    headers: Mapping[str, str] = field(default_factory=dict)
    api_key: str | None = None
    prompt_tokens: int = 0
    temperature: float = 1.0
    structured: bool = False
    overlap: float | None = None


@dataclass(frozen=True, slots=True)
class Match:
    """The conditions of a rule; `None`, or no header, means that there is none.

    Attributes:
        headers: pairs of a name in lower case and a pattern of `fnmatch`.
    """

    model: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    api_key: str | None = None
    prompt_tokens: Range | None = None
    temperature: Range | None = None
    structured: bool | None = None
    overlap: Range | None = None

    def mismatch(self, traits: Traits) -> str | None:
        """Why the request does not match, `overlap` aside; `None` if it does."""
        for name, expected, trait in (
            ("model", self.model, traits.model),
            ("api_key", self.api_key, traits.api_key),
            ("structured", self.structured, traits.structured),
        ):
            if expected is not None and expected != trait:
                return f"{name} is {trait!r}, not {expected!r}"
        for name, pattern in self.headers:
            value = traits.headers.get(name)
            if value is None:
                return f"there is no header {name}"
            if len(value) > MAX_VALUE_CHARS or not fnmatchcase(value, pattern):
                return f"header {name} is {truncate(value, 80)!r}, which {pattern!r} does not match"
        for name, allowed_range, number in (
            ("prompt_tokens", self.prompt_tokens, traits.prompt_tokens),
            ("temperature", self.temperature, traits.temperature),
        ):
            if allowed_range is not None and not allowed_range.holds(number):
                return outside(name, number, allowed_range)
        return None

    def covers(self, other: "Match") -> bool:
        """Whether it matches every request that `other` matches."""
        return (
            self.model in (None, other.model)
            and self.api_key in (None, other.api_key)
            and self.structured in (None, other.structured)
            and set(self.headers) <= set(other.headers)
            and _covers(self.prompt_tokens, other.prompt_tokens, (1, None))
            and _covers(self.temperature, other.temperature, (0, 2))
            # A request whose overlap is not known matches only a rule without this condition.
            and (
                self.overlap is None
                or (other.overlap is not None and self.overlap.covers(other.overlap, (0, 1)))
            )
        )


@dataclass(frozen=True, slots=True)
class Rule:
    """A routing rule.

    Attributes:
        use: the method that its requests get, looked up for each of them.
        source: the rule as it was written.
    """

    name: str
    match: Match
    use: MethodRequest
    source: Mapping[str, Any] = field(compare=False)


def outside(name: str, value: float, allowed_range: Range) -> str:
    """Says that a number is outside a range."""
    if allowed_range.low is not None and value < allowed_range.low:
        return f"{name} is {value:g}, below {allowed_range.low:g}"
    return f"{name} is {value:g}, above {allowed_range.high:g}"


def unreachable(rules: Sequence[Rule]) -> tuple[str, ...]:
    """A warning for each rule that an earlier one leaves no request to."""
    warnings = []
    for i, rule in enumerate(rules):
        for earlier in rules[:i]:
            if earlier.match.covers(rule.match):
                is_catch_all = earlier.match.covers(Match())
                warnings.append(
                    f"rules.{i} ({rule.name}) never decides: {earlier.name}, which comes before "
                    f"it, matches {'every request' if is_catch_all else 'all its requests'}"
                )
                break
    return tuple(warnings)


def _covers(
    condition: Range | None, other: Range | None, domain: tuple[float, float | None]
) -> bool:
    return condition is None or condition.covers(other, domain)

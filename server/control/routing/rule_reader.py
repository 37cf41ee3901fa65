"""JSON or YAML -> routing rules; an error names the field's path. Pure: no engine, no HTTP."""

import re
from collections.abc import Collection, Mapping
from typing import Any

from engine_adapter.seam.text import NAME, short_repr, truncate
from engine_adapter.seam.types import NONE
from server.control.method_names import LoadedProposers, MethodRequest, SelectionError
from server.control.routing.rules import MAX_PATTERN_CHARS, MAX_RULES, Match, Range, Rule
from server.control.switching.selection import resolve

MAX_HEADERS = 16

_HEADER = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]{1,128}")
_SECRET_HEADERS = frozenset({"authorization", "cookie", "proxy-authorization", "x-api-key"})
_RANGES: Mapping[str, tuple[float, float]] = {
    "prompt_tokens": (0, 2**31 - 1),
    "temperature": (0, 2),
    "overlap": (0, 1),
}
_CONDITIONS = ("model", "header", "api_key", "structured", *_RANGES)


class RuleError(ValueError):
    """A routing rule that cannot work.

    Attributes:
        field: the field's path, such as `rules.0.use.proposer`.
        message: the fault and the remedy.
        code: a short constant for programs, or `None`.
    """

    def __init__(self, field: str, message: str, code: str | None = None) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message
        self.code = code


def read_rules(
    raw_rules: Any, loaded: LoadedProposers, api_key_names: Collection[str], path: str = "rules"
) -> tuple[Rule, ...]:
    """The rules of a list of objects.

    Args:
        loaded: the proposers that `use` may name, with policies and `none`.
        api_key_names: the names that API keys have.
        path: how errors name the list.

    Raises:
        RuleError: a field is unknown, missing or cannot work.
    """
    if not isinstance(raw_rules, list | tuple):
        raise RuleError(path, f"must be a list of rules, got {short_repr(raw_rules)}")
    if len(raw_rules) > MAX_RULES:
        raise RuleError(path, f"there can be at most {MAX_RULES} rules, got {len(raw_rules)}")
    rules: list[Rule] = []
    for i, raw in enumerate(raw_rules):
        rule = _read_rule(raw, loaded, api_key_names, f"{path}.{i}")
        for j, earlier in enumerate(rules):
            if earlier.name == rule.name:
                message = f"{rule.name!r} is the name of {path}.{j} too; names must differ"
                raise RuleError(f"{path}.{i}.name", message)
        rules.append(rule)
    return tuple(rules)


def _read_rule(
    raw: Any, loaded: LoadedProposers, api_key_names: Collection[str], path: str
) -> Rule:
    fields = _object(raw, path, ("name", "match", "use"))
    for name in ("name", "use"):
        if name not in fields:
            raise RuleError(f"{path}.{name}", "is required", "missing_required_parameter")
    name = fields["name"]
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise RuleError(
            f"{path}.name",
            "must be 1 to 64 of A-Za-z0-9._- and begin with a letter or digit, "
            f"got {short_repr(name)}",
        )
    match = _read_match(fields.get("match", {}), api_key_names, f"{path}.match")
    return Rule(name, match, _read_use(fields["use"], loaded, f"{path}.use"), dict(fields))


def _read_use(raw: Any, loaded: LoadedProposers, path: str) -> MethodRequest:
    fields = _object(raw, path, ("proposer", "num_speculative_tokens"))
    if "proposer" not in fields:
        message = f"is required; {NONE} is plain decoding"
        raise RuleError(f"{path}.proposer", message, "missing_required_parameter")
    proposer, k = fields["proposer"], fields.get("num_speculative_tokens")
    if not (proposer is None or isinstance(proposer, str)):
        raise RuleError(f"{path}.proposer", f"must be a string, got {short_repr(proposer)}")
    if not (k is None or type(k) is int):
        raise RuleError(
            f"{path}.num_speculative_tokens", f"must be an integer, got {short_repr(k)}"
        )
    use = MethodRequest(
        proposer,
        k,
        is_named=True,
        proposer_param=f"{path}.proposer",
        k_param=f"{path}.num_speculative_tokens",
    )
    try:
        resolve(use, loaded)
    except SelectionError as error:
        message = error.message.removeprefix(error.param).removeprefix(":").lstrip()
        raise RuleError(error.param, message, error.code) from None
    return use


def _read_match(raw: Any, api_key_names: Collection[str], path: str) -> Match:
    fields = _object(raw, path, _CONDITIONS)
    model, api_key, structured = (fields.get(n) for n in ("model", "api_key", "structured"))
    if "model" in fields and (not isinstance(model, str) or not model):
        raise RuleError(f"{path}.model", f"must be a model's name, got {short_repr(model)}")
    if "structured" in fields and not isinstance(structured, bool):
        raise RuleError(
            f"{path}.structured", f"must be true or false, got {short_repr(structured)}"
        )
    if "api_key" in fields and (not isinstance(api_key, str) or api_key not in api_key_names):
        names = ", ".join(sorted(api_key_names)) or "none; --named-api-key gives one"
        # The value may be a key that was written in the place of its name: it is not repeated.
        raise RuleError(f"{path}.api_key", f"must be the name of an API key; the names are {names}")
    ranges = {
        name: _read_range(fields[name], name, f"{path}.{name}")
        for name in _RANGES
        if name in fields
    }
    headers = _read_headers(fields["header"], f"{path}.header") if "header" in fields else ()
    return Match(model=model, headers=headers, api_key=api_key, structured=structured, **ranges)


def _read_headers(raw: Any, path: str) -> tuple[tuple[str, str], ...]:
    if not isinstance(raw, Mapping) or not 0 < len(raw) <= MAX_HEADERS:
        message = f"must be an object of 1 to {MAX_HEADERS} headers and their patterns"
        raise RuleError(path, message)
    headers = {}
    for name, pattern in raw.items():
        header = str(name).lower()
        if not _HEADER.fullmatch(header):
            raise RuleError(path, f"{short_repr(name)} is not the name of a header")
        if header in _SECRET_HEADERS:
            raise RuleError(f"{path}.{header}", "holds secrets; match the key's name with api_key")
        if header in headers:
            raise RuleError(f"{path}.{header}", "is given twice")
        if not isinstance(pattern, str) or not 0 < len(pattern) <= MAX_PATTERN_CHARS:
            message = f"must be a value or a pattern of 1 to {MAX_PATTERN_CHARS} characters"
            raise RuleError(f"{path}.{header}", message)
        headers[header] = pattern
    return tuple(sorted(headers.items()))


def _read_range(raw: Any, name: str, path: str) -> Range:
    fields = _object(raw, path, ("min", "max"))
    limits = {key: value for key, value in fields.items() if value is not None}
    if not limits:
        raise RuleError(path, "needs min, max or both")
    minimum, maximum = _RANGES[name]
    for key, value in limits.items():
        kinds = (int,) if name == "prompt_tokens" else (int, float)
        if type(value) not in kinds or not minimum <= value <= maximum:
            what = "an integer" if len(kinds) == 1 else "a number"
            message = f"must be {what} from {minimum} to {maximum}, got {short_repr(value)}"
            raise RuleError(f"{path}.{key}", message)
    low, high = limits.get("min"), limits.get("max")
    if low is not None and high is not None and low > high:
        raise RuleError(f"{path}.min", f"is {low}, above max, {high}")
    return Range(low, high)


def _object(raw: Any, path: str, field_names: tuple[str, ...]) -> Mapping[str, Any]:
    if not isinstance(raw, Mapping):
        raise RuleError(
            path, f"must be an object with {', '.join(field_names)}, got {short_repr(raw)}"
        )
    for name in raw:
        if name not in field_names:
            message = f"is unknown; the fields are {', '.join(field_names)}"
            raise RuleError(f"{path}.{truncate(str(name), 64)}", message, "unknown_parameter")
    return raw

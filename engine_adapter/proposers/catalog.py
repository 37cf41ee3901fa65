"""The explicit tuple of methods, and the one place where a proposer's JSON becomes a spec."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from engine_adapter.errors import EngineConfigError
from engine_adapter.proposers import draft_model, ngram, suffix
from engine_adapter.proposers.contract import RESERVED_NAMES, Method, ProposerSpec

METHODS: tuple[Method, ...] = (ngram.METHOD, suffix.METHOD, draft_model.METHOD)
"""Every drafting method that can be configured."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_COMMON = frozenset({"name", "method", "model", "num_speculative_tokens"})


_BY_NAME = {method.name: method for method in METHODS}


def method(name: str) -> Method:
    """The method called `name`. Raises `KeyError`."""
    return _BY_NAME[name]


def parse_spec(fields: Mapping[str, Any]) -> ProposerSpec:
    """Builds a proposer's spec from its JSON object.

    `method` may be left out where `name` is a method's name. Raises `EngineConfigError`, with
    the setting `proposer` and the field, for anything that cannot work.
    """
    name = fields.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise _error("name", f"must match {_NAME.pattern}, got {name!r}")
    if name.lower() in RESERVED_NAMES:
        raise _error("name", f"{name!r} is reserved ({', '.join(sorted(RESERVED_NAMES))})")
    method_name = fields.get("method", name)
    if not isinstance(method_name, str) or method_name not in _BY_NAME:
        raise _error("method", f"{method_name!r} is unknown; there are {', '.join(_BY_NAME)}")
    chosen = method(method_name)
    k = fields.get("num_speculative_tokens", chosen.default_k)
    if type(k) is not int or k < 1:
        raise _error("num_speculative_tokens", f"must be an integer of at least 1, got {k!r}")
    spec = ProposerSpec(name, method_name, k, _model(chosen, fields), _options(chosen, fields))
    try:
        chosen.validate(spec)
    except ValueError as error:
        raise EngineConfigError("proposer", f"{name}: {error}") from None
    return spec


def parse_specs(objects: Sequence[Mapping[str, Any]]) -> tuple[ProposerSpec, ...]:
    """`parse_spec` for each object; two proposers of one name are refused too."""
    specs = tuple(parse_spec(fields) for fields in objects)
    seen: set[str] = set()
    for spec in specs:
        if spec.name in seen:
            raise _error("name", f"{spec.name!r} is given twice")
        seen.add(spec.name)
    return specs


def _model(chosen: Method, fields: Mapping[str, Any]) -> str | None:
    model = fields.get("model")
    if chosen.capabilities.model and not (isinstance(model, str) and model):
        raise _error("model", f"{chosen.name} needs the path or id of its weights, got {model!r}")
    if not chosen.capabilities.model and model is not None:
        raise _error("model", f"{chosen.name} has no weights; leave it out")
    return model


def _options(chosen: Method, fields: Mapping[str, Any]) -> dict[str, Any]:
    given = {key: value for key, value in fields.items() if key not in _COMMON}
    for key in given:
        if key not in chosen.options:
            known = ", ".join([*sorted(_COMMON), *chosen.options])
            raise _error(key, f"{chosen.name} has no such field; it has {known}")
    return {**chosen.options, **given}


def _error(field: str, message: str) -> EngineConfigError:
    return EngineConfigError("proposer", f"{field}: {message}")

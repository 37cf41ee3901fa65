"""All drafting methods, and the parser from a proposer's JSON object to its `ProposerSpec`."""

from collections.abc import Mapping, Sequence
from typing import Any

from engine_adapter.policies.contract import ProposerTraits
from engine_adapter.proposers import (
    cascade,
    dflash,
    draft_model,
    dspark,
    eagle,
    grammar,
    medusa,
    mlp_speculator,
    mtp,
    ngram,
    prediction,
    suffix,
)
from engine_adapter.proposers.contract import (
    RESERVED_NAMES,
    Capabilities,
    OptionError,
    ProposerMethod,
    ProposerSpec,
)
from engine_adapter.proposers.draft_options import min_confidence
from engine_adapter.seam.errors import EngineConfigError
from engine_adapter.seam.text import NAME, short_repr, truncate

METHODS: tuple[ProposerMethod, ...] = (
    ngram.METHOD,
    suffix.METHOD,
    draft_model.METHOD,
    medusa.METHOD,
    mlp_speculator.METHOD,
    eagle.EAGLE,
    eagle.EAGLE3,
    mtp.METHOD,
    dflash.METHOD,
    dspark.METHOD,
    cascade.CASCADE,
    cascade.CHAIN,
    prediction.METHOD,
    grammar.METHOD,
)
"""Every drafting method that can be configured."""

_COMMON = frozenset({"name", "method", "model", "num_speculative_tokens"})
_MISSING, _UNKNOWN = "missing_required_parameter", "unknown_parameter"

_BY_NAME = {method.name: method for method in METHODS}


def is_method(name: object) -> bool:
    """Whether a drafting method has this name."""
    return isinstance(name, str) and name in _BY_NAME


def get_method(name: str) -> ProposerMethod:
    """The method of this name. Raises `KeyError` for an unknown one."""
    return _BY_NAME[name]


def needs(spec: ProposerSpec, candidates: Sequence[ProposerSpec]) -> Capabilities:
    """The capabilities of a proposer and of its members, which are among `candidates`."""
    capabilities = get_method(spec.method).capabilities
    if capabilities.members:
        for member in candidates:
            if member.name in spec.options["members"]:
                capabilities |= get_method(member.method).capabilities
    return capabilities


def proposer_traits(spec: ProposerSpec, candidates: Sequence[ProposerSpec]) -> ProposerTraits:
    """A proposer as policies see it; its members are among `candidates`."""
    method, capabilities = get_method(spec.method), needs(spec, candidates)
    is_lookup = not (
        capabilities.runs_model
        or capabilities.hidden_states
        or capabilities.members
        or capabilities.prediction
    )
    return ProposerTraits(
        spec.name,
        spec.num_speculative_tokens,
        lookup=is_lookup,
        keeps_kv=capabilities.draft_kv,
        ends_early=min_confidence(spec) > 0 or method is cascade.CHAIN,
        selectable=not capabilities.prediction
        and (not capabilities.members or _continues_a_model(spec, candidates)),
    )


def _continues_a_model(spec: ProposerSpec, candidates: Sequence[ProposerSpec]) -> bool:
    """Whether this is a chain that begins with a model."""
    if get_method(spec.method) is not cascade.CHAIN:
        return False
    first_name = spec.options["members"][0]
    methods = {member.name: get_method(member.method) for member in candidates}
    return methods[first_name].capabilities.runs_model


def read_name(fields: Mapping[str, Any]) -> str:
    """The name in a proposer's JSON object.

    Raises `EngineConfigError` if it is missing, or no proposer can have it.
    """
    name = fields.get("name")
    if name is None:
        raise _error("name", "is required", _MISSING)
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise _error("name", f"must match {NAME.pattern}, got {short_repr(name)}")
    return name


def parse_spec(fields: Mapping[str, Any], candidates: Sequence[ProposerSpec] = ()) -> ProposerSpec:
    """Builds a proposer's spec from its JSON object.

    Args:
        fields: the object. `method` is optional if `name` is the name of a method.
        candidates: the proposers that it may list as members.

    Raises:
        EngineConfigError: a field is missing, unknown or invalid. Its `setting` is `proposer`,
            its `field` the one at fault.
    """
    name = read_name(fields)
    if name.lower() in RESERVED_NAMES:
        raise _error("name", f"{name!r} is reserved ({', '.join(sorted(RESERVED_NAMES))})")
    method_name = fields.get("method", name)
    if not isinstance(method_name, str) or method_name not in _BY_NAME:
        raise _error(
            "method", f"{short_repr(method_name)} is unknown; there are {', '.join(_BY_NAME)}"
        )
    method = get_method(method_name)
    if name == prediction.METHOD.name and method is not prediction.METHOD:
        raise _error("name", f"{name!r} may only be a proposer of the method {name}")
    options = _options(method, fields)
    default = method.default_k
    if callable(default):
        default = default(_members_k(options["members"], candidates))
    k = fields.get("num_speculative_tokens", default)
    if type(k) is not int or k < 1:
        raise _error(
            "num_speculative_tokens", f"must be an integer of at least 1, got {short_repr(k)}"
        )
    spec = ProposerSpec(name, method_name, k, _model(method, fields), options)
    try:
        method.validate(spec)
        if method.capabilities.members:
            _check_members(spec, candidates)
    except OptionError as error:
        raise EngineConfigError("proposer", f"{name}: {error}", error.option) from None
    return spec


def to_fields(spec: ProposerSpec) -> dict[str, Any]:
    """The JSON object that `parse_spec` reads as this spec, without options at their default."""
    defaults = get_method(spec.method).options
    options = {key: value for key, value in spec.options.items() if value != defaults[key]}
    model = {} if spec.model is None else {"model": spec.model}
    return {
        "name": spec.name,
        "method": spec.method,
        **model,
        "num_speculative_tokens": spec.num_speculative_tokens,
        **options,
    }


def parse_specs(objects: Sequence[Mapping[str, Any]]) -> tuple[ProposerSpec, ...]:
    """`parse_spec` for each object. Raises `EngineConfigError` for a repeated name too."""
    simple = tuple(parse_spec(fields) for fields in objects if not _has_members(fields))
    specs = tuple(parse_spec(fields, simple) for fields in objects)
    seen: set[str] = set()
    for spec in specs:
        if spec.name in seen:
            raise _error("name", f"{spec.name!r} is given twice")
        seen.add(spec.name)
    return specs


def with_prediction(specs: Sequence[ProposerSpec], k: int) -> tuple[ProposerSpec, ...]:
    """The proposers, plus one named `prediction` with this k if none of this method is there."""
    if any(get_method(spec.method).capabilities.prediction for spec in specs):
        return tuple(specs)
    name = prediction.METHOD.name
    return (*specs, parse_spec({"name": name, "num_speculative_tokens": k}))


def _has_members(fields: Mapping[str, Any]) -> bool:
    method_name = fields.get("method", fields.get("name"))
    return (
        isinstance(method_name, str)
        and method_name in _BY_NAME
        and get_method(method_name).capabilities.members
    )


def _members_k(members: Any, candidates: Sequence[ProposerSpec]) -> list[int]:
    """The k of each member; 1 without valid members, which `validate` refuses later."""
    by_name = {spec.name: spec.num_speculative_tokens for spec in candidates}
    names = members if isinstance(members, list) else []
    return [by_name[name] for name in names if isinstance(name, str) and name in by_name] or [1]


def _check_members(spec: ProposerSpec, candidates: Sequence[ProposerSpec]) -> None:
    methods = {member.name: get_method(member.method) for member in candidates}
    capabilities = {
        name: method.capabilities
        for name, method in methods.items()
        if not method.capabilities.members
    }
    names = spec.options["members"]
    for name in names:
        if name not in capabilities:
            there_are = ", ".join(capabilities) or "none"
            message = (
                f"{short_repr(name)} is not a proposer that can be a member; there are {there_are}"
            )
            raise OptionError("members", message)
    get_method(spec.method).check_members(names, capabilities)


def _model(method: ProposerMethod, fields: Mapping[str, Any]) -> str | None:
    model = fields.get("model")
    needed, optional = method.capabilities.model, method.capabilities.optional_model
    if (needed or (optional and model is not None)) and not (isinstance(model, str) and model):
        message = f"{method.name} needs the path or id of its weights, got {short_repr(model)}"
        raise _error("model", message, _MISSING if model is None else None)
    if not needed and not optional and model is not None:
        raise _error("model", f"{method.name} has no weights of its own; leave it out")
    return model


def _options(method: ProposerMethod, fields: Mapping[str, Any]) -> dict[str, Any]:
    options = {key: value for key, value in fields.items() if key not in _COMMON}
    for key in options:
        if key not in method.options:
            field_names = ", ".join([*sorted(_COMMON), *method.options])
            raise _error(key, f"{method.name} has no such field; it has {field_names}", _UNKNOWN)
    return {**method.options, **options}


def _error(field: str, message: str, code: str | None = None) -> EngineConfigError:
    return EngineConfigError("proposer", f"{truncate(field)}: {message}", field, code)

"""Parameters of policies as settings and `PUT /v1/spec_policy` have them. Pure."""

from collections.abc import Mapping
from typing import Any

from engine_adapter.policies.catalog import read_policy, to_json
from engine_adapter.policies.names import POLICY_NAMES, policy_name
from engine_adapter.policies.parameters import PolicyError
from engine_adapter.seam.text import short_repr, truncate
from server.control.method_names import LoadedProposers


def read_policies(
    policies: Mapping[str, Any], loaded: LoadedProposers
) -> dict[str, Mapping[str, Any]]:
    """Policy -> its checked parameters, as they were given.

    Args:
        policies: policy, or `auto` -> an object of parameters.
        loaded: the proposers that parameters may name.

    Raises:
        PolicyError: a policy or a parameter is unknown, or a value cannot work; the field
            begins with the policy's name as it was given.
    """
    checked_policies: dict[str, Mapping[str, Any]] = {}
    for written_name, parameters in policies.items():
        name = policy_name(written_name)
        if name is None:
            names = ", ".join(POLICY_NAMES)
            raise PolicyError(
                truncate(written_name, 64), f"is not a policy; the policies are {names}"
            )
        if name in checked_policies:
            raise PolicyError(written_name, f"is {name}, which is given too")
        if not isinstance(parameters, Mapping):
            raise PolicyError(
                written_name, f"must be an object of parameters, got {short_repr(parameters)}"
            )
        try:
            with_defaults(name, parameters, loaded)
        except PolicyError as error:
            raise PolicyError(f"{written_name}.{truncate(error.field)}", error.message) from None
        checked_policies[name] = parameters
    return checked_policies


def with_defaults(
    name: str, parameters: Mapping[str, Any], loaded: LoadedProposers
) -> dict[str, Any]:
    """All parameters of a policy. Raises `PolicyError`."""
    ks = {p.name: p.num_speculative_tokens for p in loaded.proposers}
    return to_json(name, read_policy(name, parameters, ks, loaded.primary))

"""The proposer and k that a request's body asks for."""

from engine_adapter.policies.names import policy_name
from server.control.method_names import PLAIN_SPELLINGS, MethodRequest
from server.errors import InvalidField
from server.schema.generation_body import GenerationBody, SpecDecode


def method_request(body: GenerationBody) -> MethodRequest:
    """The proposer and k that a body requests, from `spec_decode` or from the flat fields.

    A flat null means "not set", because clients send their unset fields as null. Raises
    `InvalidField` if both forms are used with different values.
    """
    nested = body.spec_decode or SpecDecode()
    in_nested = "proposer" in nested.model_fields_set
    flat = body.speculative_model
    if in_nested and flat is not None and _canonical(nested.proposer) != _canonical(flat):
        raise _conflict("speculative_model", "spec_decode.proposer")
    k, flat_k = nested.num_speculative_tokens, body.num_speculative_tokens
    if k is not None and flat_k is not None and k != flat_k:
        raise _conflict("num_speculative_tokens", "spec_decode.num_speculative_tokens")
    proposer_is_flat = flat is not None and not in_nested
    k_is_flat = flat_k is not None and k is None
    return MethodRequest(
        proposer=nested.proposer if in_nested else flat,
        num_speculative_tokens=flat_k if k_is_flat else k,
        is_named=in_nested or flat is not None,
        has_prediction=body.prediction is not None,
        proposer_param="speculative_model" if proposer_is_flat else "spec_decode.proposer",
        k_param=("" if k_is_flat else "spec_decode.") + "num_speculative_tokens",
    )


def _canonical(name: str | None) -> str | None:
    """The name, or `None` for every name of plain decoding; a policy's own name."""
    if name is None or name.lower() in PLAIN_SPELLINGS:
        return None
    return policy_name(name) or name


def _conflict(flat: str, nested: str) -> InvalidField:
    return InvalidField(flat, f"{flat} and {nested} are both given and differ; send one of them.")

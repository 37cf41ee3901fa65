"""The fake engine's checks of a request before it starts."""

from collections.abc import Sequence

from engine_adapter.policies.names import POLICY_NAMES
from engine_adapter.proposers.contract import ProposerSpec
from engine_adapter.seam.errors import InvalidRequest
from engine_adapter.seam.types import (
    NONE,
    ConstraintKind,
    EngineInfo,
    GenerationRequest,
    SamplingOptions,
    SpecMethod,
)


def check_request(
    request: GenerationRequest, info: EngineInfo, specs: Sequence[ProposerSpec]
) -> None:
    """Raises `InvalidRequest`, which names the field, if the engine cannot do what it asks."""
    _check_prompt(request.prompt_token_ids, info)
    sampling = request.sampling
    if sampling.max_tokens is not None and sampling.max_tokens < 1:
        raise InvalidRequest("max_tokens", f"must be at least 1, got {sampling.max_tokens}")
    if sampling.max_tokens is not None and sampling.min_tokens > sampling.max_tokens:
        raise InvalidRequest("min_tokens", "must not be above max_tokens")
    for param, count in (
        ("logprobs", sampling.logprobs),
        ("prompt_logprobs", sampling.prompt_logprobs),
    ):
        if count is not None and not 0 <= count <= info.max_logprobs:
            raise InvalidRequest(param, f"must be in [0, {info.max_logprobs}], got {count}")
    for token_id in sampling.stop_token_ids:
        if not 0 <= token_id < info.vocab_size:
            raise InvalidRequest("stop_token_ids", f"{token_id} is not in the vocabulary")
    _check_restrictions(sampling)
    check_method(request.spec_decode.spec_method, specs, info.max_speculative_tokens)


def check_method(method: SpecMethod, specs: Sequence[ProposerSpec], capacity: int) -> None:
    """Raises `InvalidRequest` for a proposer that is not loaded or a k above its own.

    The k of a policy is at most `capacity`.
    """
    if method.proposer == NONE:
        return
    if method.proposer in POLICY_NAMES:
        _check_k(method, capacity)
        return
    spec = next((spec for spec in specs if spec.name == method.proposer), None)
    if spec is None:
        names = ", ".join([*(spec.name for spec in specs), NONE])
        raise InvalidRequest(
            "spec_decode.proposer",
            f"no proposer {method.proposer!r} is loaded; the choices are {names}",
            "proposer_not_found",
        )
    _check_k(method, spec.num_speculative_tokens)


def _check_k(method: SpecMethod, limit: int) -> None:
    if not 0 <= method.num_speculative_tokens <= limit:
        raise InvalidRequest(
            "spec_decode.num_speculative_tokens",
            f"must be in [0, {limit}] for {method.proposer}, got {method.num_speculative_tokens}",
        )


def _check_restrictions(sampling: SamplingOptions) -> None:
    """Its text is random words or fits a JSON schema: it cannot enforce another restriction."""
    constraint = sampling.structured_output
    if constraint is not None and constraint.kind is ConstraintKind.JSON_SCHEMA:
        constraint = None
    for param, is_requested in (
        ("allowed_token_ids", bool(sampling.allowed_token_ids)),
        ("bad_words", bool(sampling.bad_words)),
        ("repetition_detection", sampling.repetition_detection is not None),
        (constraint.param if constraint else "", constraint is not None),
    ):
        if is_requested:
            raise InvalidRequest(param, f"the fake engine does not support {param}")


def _check_prompt(token_ids: tuple[int, ...], info: EngineInfo) -> None:
    if not token_ids:
        raise InvalidRequest("prompt", "must have at least one token")
    if len(token_ids) >= info.max_model_len:
        raise InvalidRequest(
            "prompt",
            f"has {len(token_ids)} tokens, the context is {info.max_model_len}",
            "context_length_exceeded",
        )
    for token_id in token_ids:
        if not 0 <= token_id < info.vocab_size:
            raise InvalidRequest("prompt", f"token id {token_id} is not in the vocabulary")

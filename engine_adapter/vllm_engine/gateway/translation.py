"""Translates a request into vLLM's types, and vLLM's outputs and refusals into the seam's."""

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

from engine_adapter.seam.errors import (
    CONSTRAINT_TOO_COMPLEX,
    EngineDead,
    EngineError,
    EngineFull,
    InvalidRequest,
)
from engine_adapter.seam.text import truncate
from engine_adapter.seam.types import (
    Alternative,
    ConstraintKind,
    Delta,
    FinishReason,
    GenerationRequest,
    LoraAdapter,
    RepetitionDetection,
    StructuredOutput,
    TokenLogprob,
)
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.grammars import BACKEND
from engine_adapter.vllm_engine.patches.prompt_logprobs import pieces_of
from engine_adapter.vllm_engine.wire import (
    GRAMMARS_FULL,
    decode_failure,
    decode_request,
    to_extra_args,
)


class ConstraintFailed(EngineError):
    """The engine ended a request because of its constraint; the message has the reason."""


class Checker(Protocol):
    """What checks constraints before a request: `ConstraintChecker`."""

    def size_of(self, constraint: StructuredOutput) -> int | None:
        """The bytes that a constraint takes when it is compiled; `None` if that is not known."""


def sampling_params(request: GenerationRequest, checker: Checker | None = None) -> Any:
    """vLLM's `SamplingParams` of a request.

    Args:
        checker: has checked its constraint, and vLLM does not; `None` if vLLM does.

    Raises:
        InvalidRequest: vLLM refuses a value.
    """
    options = request.sampling
    constraint = options.structured_output
    size = checker.size_of(constraint) if checker and constraint else None
    try:
        return compat.SamplingParams(
            temperature=options.temperature,
            top_p=options.top_p,
            top_k=options.top_k,
            min_p=options.min_p,
            min_tokens=options.min_tokens,
            max_tokens=options.max_tokens,
            stop=list(options.stop),
            stop_token_ids=list(options.stop_token_ids),
            seed=options.seed,
            presence_penalty=options.presence_penalty,
            frequency_penalty=options.frequency_penalty,
            repetition_penalty=options.repetition_penalty,
            thinking_token_budget=options.thinking_token_budget,
            repetition_detection=_repetition_detection(options.repetition_detection),
            logit_bias=dict(options.logit_bias) or None,
            allowed_token_ids=list(options.allowed_token_ids) or None,
            bad_words=list(options.bad_words) or None,
            structured_outputs=_structured_outputs(constraint, is_checked=checker is not None),
            logprobs=options.logprobs,
            prompt_logprobs=options.prompt_logprobs,
            ignore_eos=options.ignore_eos,
            skip_special_tokens=options.skip_special_tokens,
            spaces_between_special_tokens=options.spaces_between_special_tokens,
            include_stop_str_in_output=options.include_stop_str_in_output,
            output_kind=compat.RequestOutputKind.DELTA,
            stream_interval=request.stream_interval,
            extra_args=to_extra_args(request.spec_decode, size),
        )
    except (ValueError, compat.VLLMClientError) as error:
        raise to_invalid_request(error, request) from error


def engine_input(request: GenerationRequest) -> dict[str, Any]:
    """vLLM's `TokensInput` of a request, or its `MultiModalInput`.

    They are what vLLM's renderer returns: a `TokensPrompt` would be rendered in a thread first.
    """
    if request.media is None:
        rendered: dict[str, Any] = compat.tokens_input(list(request.prompt_token_ids))
    else:
        rendered = dict(request.media.payload)
    if request.cache_salt is not None:
        rendered["cache_salt"] = request.cache_salt
    return rendered


def lora_request(adapter: LoraAdapter | None) -> Any:
    """vLLM's `LoRARequest`. Its name keys the prefix cache, so every load has its own name."""
    if adapter is None:
        return None
    return compat.LoRARequest(f"{adapter.name}:{adapter.id}", adapter.id, adapter.folder)


def _repetition_detection(detection: RepetitionDetection | None) -> Any:
    """vLLM's `RepetitionDetectionParams`."""
    if detection is None:
        return None
    return compat.RepetitionDetectionParams(
        max_pattern_size=detection.max_pattern_size,
        min_pattern_size=detection.min_pattern_size,
        min_count=detection.min_count,
    )


def _structured_outputs(constraint: StructuredOutput | None, *, is_checked: bool) -> Any:
    """vLLM's `StructuredOutputsParams`. vLLM's check, if there is one, sets the backend itself."""
    if constraint is None:
        return None
    fields: dict[ConstraintKind, dict[str, Any]] = {
        ConstraintKind.JSON_OBJECT: {"json_object": True},
        ConstraintKind.JSON_SCHEMA: {"json": constraint.value},
        ConstraintKind.REGEX: {"regex": constraint.value},
        ConstraintKind.CHOICE: {"choice": list(constraint.choices)},
        ConstraintKind.GRAMMAR: {"grammar": constraint.value},
    }
    params = compat.StructuredOutputsParams(**fields[constraint.kind])
    if is_checked:
        params._backend = BACKEND
    return params


def to_invalid_request(error: BaseException, request: GenerationRequest) -> InvalidRequest:
    """vLLM's refusal of a request, with the request's field if it is known.

    vLLM never names the field of a constraint that it cannot enforce. It names the other fields
    that it refuses, or the gateway has checked them before.
    """
    param = getattr(error, "parameter", None)
    # The text of a `VLLMValidationError` repeats the whole value; its first argument does not.
    # vLLM repeats the request's own text in it.
    message = truncate(str(error.args[0] if error.args else error))
    constraint = request.sampling.structured_output
    if param is None and constraint is not None:
        return InvalidRequest(constraint.param, f"{constraint.param}: {message}")
    return InvalidRequest(param, message if param is None else f"{param}: {message}")


def to_failed_constraint(error: ConstraintFailed, request: GenerationRequest) -> InvalidRequest:
    """The refusal of a request whose constraint has failed while its text was generated."""
    constraint = request.sampling.structured_output
    param = "structured_outputs" if constraint is None else constraint.param
    return InvalidRequest(param, f"{param}: {truncate(str(error))}", CONSTRAINT_TOO_COMPLEX)


async def read_prompt_logprobs(output: Any, turn: asyncio.Lock) -> tuple[TokenLogprob | None, ...]:
    """The log probabilities of a prompt, if a `RequestOutput` has them: a request's first one.

    They are decoded in pieces, with others' work between them.

    Args:
        turn: of all requests of an engine; the requests that read at the same time take turns.
    """
    entries: list[TokenLogprob | None] = []
    pieces = pieces_of(output.prompt_logprobs)
    while True:
        async with turn:
            piece = next(pieces, None)
            if piece is None:
                return tuple(entries)
            token_ids = output.prompt_token_ids[len(entries) : len(entries) + len(piece)]
            entries += [
                None if position is None else _token_logprob(token_id, position)
                for token_id, position in zip(token_ids, piece, strict=True)
            ]
            await asyncio.sleep(0)


def to_delta(output: Any, prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None) -> Delta:
    """One `RequestOutput` of kind DELTA, with what `read_prompt_logprobs` has read of it.

    Raises:
        EngineDead: vLLM ended the request because it is stopping.
        EngineFull: the grammars of running requests leave no room for the request's own.
        ConstraintFailed: the request's constraint could not be enforced to its end.
        EngineError: vLLM ended the request with another error.
    """
    choice = output.outputs[0]
    return Delta(
        text=choice.text,
        token_ids=tuple(choice.token_ids),
        logprobs=_logprobs(choice),
        prompt_logprobs=prompt_logprobs,
        finish_reason=_finish_reason(choice.finish_reason, output.kv_transfer_params),
        stop_reason=choice.stop_reason,
        num_cached_tokens=output.num_cached_tokens or 0,
        spec=decode_request(output.kv_transfer_params),
    )


def _finish_reason(reason: str | None, attached: Mapping[str, Any] | None) -> FinishReason | None:
    if reason is None:
        return None
    if reason == "abort":
        raise EngineDead("the engine stopped before the request was finished")
    if reason == "error":
        failure = decode_failure(attached)
        if failure == GRAMMARS_FULL:
            raise EngineFull("the formats of running requests take all memory for formats")
        if failure is not None:
            raise ConstraintFailed(failure)
        raise EngineError("the engine could not finish the request")
    return FinishReason(reason)


def _logprobs(choice: Any) -> tuple[TokenLogprob, ...] | None:
    if choice.logprobs is None:
        return None
    return tuple(
        _token_logprob(token_id, position)
        for token_id, position in zip(choice.token_ids, choice.logprobs, strict=True)
    )


def _token_logprob(token_id: int, position: Any) -> TokenLogprob:
    """`position` maps token ids to vLLM's `Logprob`; ranks run from 1, the best."""
    ranked = sorted(position.items(), key=lambda item: item[1].rank)
    alternatives = {
        key: Alternative(key, entry.decoded_token or "", entry.logprob, entry.rank)
        for key, entry in ranked
    }
    return TokenLogprob(alternatives[token_id], tuple(alternatives.values()))

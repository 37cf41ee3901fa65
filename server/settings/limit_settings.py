"""The settings that bound what a request may ask for."""

from typing import Annotated

from pydantic import BaseModel, ByteSize, Field

from engine_adapter.seam.config import DEFAULT_GRAMMAR_BYTES
from server.settings.types import Count, PositiveSeconds, Seconds


class LimitSettings(BaseModel):
    """What a request may ask for, and what is kept of it."""

    default_max_tokens: Count | None = Field(
        None, description="most output tokens of a chat that sets no limit (rest of the context)"
    )
    max_output_tokens: Count | None = Field(
        None, description="largest limit of output tokens that a request may set"
    )
    max_constraint_s: PositiveSeconds = Field(
        2.0,
        description="most seconds of CPU time to compile a request's schema, regex, choice or "
        "grammar",
    )
    max_compiled_grammar_bytes: Annotated[ByteSize, Field(ge=2**20)] = Field(
        ByteSize(DEFAULT_GRAMMAR_BYTES),
        description="most bytes of compiled schemas, regexes, choices and grammars of an engine, "
        "or as 256MiB; one of them may take a quarter",
    )
    strict_fields: bool = Field(
        False, description="refuse fields of request bodies that would be ignored"
    )
    max_video_pixels: Count = Field(
        2**27,
        description="most pixels of the frames that the target reads of a request's videos; the "
        "server holds three bytes for each, and the target's processor more",
    )
    max_stored_responses: int = Field(
        1000, ge=0, description="responses of /v1/responses kept in memory; 0 keeps none"
    )
    max_stored_response_bytes: Annotated[ByteSize, Field(ge=0)] = Field(
        ByteSize(256 * 2**20), description="most bytes of these responses together, or as 256MiB"
    )

    max_engine_sequences: Count | None = Field(
        None,
        description="most sequences that the engine has at a time, others wait in the queue "
        "(--max-num-seqs and a quarter)",
    )
    max_request_sequences: Count | None = Field(
        None,
        description="most of them of one request; its others follow as they end (a quarter of "
        "--max-num-seqs; 8 for the demo)",
    )
    reserved_sequences: int | None = Field(
        None,
        ge=0,
        description="sequences of --max-num-seqs that an API key leaves free for the others, while "
        "there are several (a sixteenth of --max-num-seqs, at least 1); 0 leaves none",
    )
    max_request_prefill_tokens: Count = Field(
        512, description="most prompt tokens of one request that the engine has yet to read"
    )
    max_queued_requests: int = Field(
        1024, ge=0, description="most requests in the queue; more are refused; 0 queues none"
    )
    max_queued_prompt_tokens: Count = Field(
        2**20, description="most prompt tokens of these requests together"
    )
    max_key_requests: Count | None = Field(
        None,
        description="most unfinished requests of one API key that generate or tokenize (no limit)",
    )
    max_key_requests_per_minute: Count | None = Field(
        None,
        description="most requests a minute of one API key that generate or tokenize (no limit)",
    )
    queue_timeout_s: Seconds = Field(
        300.0, description="seconds that a request may wait in the queue; 0 sets no limit"
    )
    first_token_timeout_s: Seconds = Field(
        600.0, description="seconds from the start of a request to its first token; 0 sets no limit"
    )
    request_timeout_s: Seconds = Field(
        3600.0, description="seconds that a request may take in all; 0 sets no limit"
    )

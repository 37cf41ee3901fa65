"""The settings that bound what a request may ask for."""

from typing import Annotated

from pydantic import BaseModel, ByteSize, Field

from server.settings.types import Count


class LimitSettings(BaseModel):
    """What a request may ask for, and what is kept of it."""

    default_max_tokens: Count | None = Field(
        None, description="most output tokens of a chat that sets no limit (rest of the context)"
    )
    max_output_tokens: Count | None = Field(
        None, description="largest limit of output tokens that a request may set"
    )
    max_constraint_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        2.0,
        description="most seconds of CPU time to compile a request's schema, regex, choice or "
        "grammar",
    )
    strict_fields: bool = Field(
        False, description="refuse fields of request bodies that would be ignored"
    )
    max_stored_responses: int = Field(
        1000, ge=0, description="responses of /v1/responses kept in memory; 0 keeps none"
    )
    max_stored_response_bytes: Annotated[ByteSize, Field(ge=0)] = Field(
        ByteSize(256 * 2**20), description="most bytes of these responses together, or as 256MiB"
    )

"""Bodies of the admin routes. Unknown fields and loose types are refused."""

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class SwitchRequest(BaseModel):
    """`POST /v1/switch_spec_method`. One of `speculative_model` and `proposer` must be there.

    `null`, the wire's spelling of plain decoding, differs from a field that is left out.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    speculative_model: str | None = Field(
        None, description="a proposer's name, model or [method], primary, backup, or none"
    )
    proposer: str | None = Field(None, description="the same under another name")
    num_speculative_tokens: int | None = Field(
        None, ge=0, description="most tokens to draft in a step; the proposer's k if left out"
    )
    mode: str = Field("immediate", description="which requests change: see docs/api.md")
    timeout_s: float = Field(30.0, gt=0, description="seconds that a mode which waits may wait")
    reason: str | None = Field(None, max_length=200, description="kept with the switch's record")

    @model_validator(mode="after")
    def _one_name(self) -> Self:
        given = self.model_fields_set & {"speculative_model", "proposer"}
        if not given:
            raise ValueError("speculative_model is required; null or none is plain decoding")
        if len(given) == 2 and self.speculative_model != self.proposer:
            raise ValueError("speculative_model and proposer mean the same, but differ")
        return self

    @property
    def name_field(self) -> str:
        """The field that names the proposer, as the client wrote it."""
        given = "speculative_model" in self.model_fields_set
        return "speculative_model" if given else "proposer"

    @property
    def name(self) -> str | None:
        """What it says."""
        return self.speculative_model if self.name_field == "speculative_model" else self.proposer


class Method(BaseModel):
    """What drafts, and how much."""

    spec_method: str
    num_speculative_tokens: int


class SwitchResponse(BaseModel):
    """A switch that happened."""

    previous: Method
    active: Method
    mode: str
    generation: int
    in_flight: int = Field(description="requests admitted and unfinished when it took effect")
    waited_ms: float


class Switch(BaseModel):
    """A switch of the past, failed ones included."""

    when: float = Field(description="Unix time in seconds")
    previous: Method = Field(serialization_alias="from")
    to: Method
    mode: str
    generation: int
    reason: str | None
    outcome: str = Field(description="switched or failed")
    error: str | None
    took_ms: float


class Figures(BaseModel):
    """One proposer's last minute; a ratio is null where nothing was drafted."""

    drafts: int
    drafted: int
    accepted: int
    acceptance_rate: float | None
    mean_acceptance_length: float | None
    system_efficiency: float | None


class SpecMethodResponse(Method):
    """`GET /v1/spec_method`."""

    generation: int
    since: float = Field(description="Unix time in seconds")
    in_flight: dict[str, int] = Field(description="unfinished requests by what drafts for them")
    window_s: int = Field(description="seconds that `proposers` sums over")
    proposers: dict[str, Figures]
    switches: list[Switch] = Field(description="the last ones, newest first")


class Proposer(BaseModel):
    """A loaded proposer with its present figures."""

    name: str
    method: str
    model: str | None
    num_speculative_tokens: int
    tensor_parallel_size: int
    state: str
    roles: list[str] = Field(description="primary, backup, both or neither")
    weights_bytes: int
    kv_bytes: int
    draft_latency_ms: float | None = Field(description="rolling mean per drafted token")


class ProposersResponse(BaseModel):
    """`GET /v1/proposers`."""

    object: str = "list"
    data: list[Proposer]

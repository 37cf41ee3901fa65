"""Bodies of the admin routes. Unknown fields and other types are refused.

Switches, drains and audit records are shown as `server.control.records` defines them.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, RootModel

from engine_adapter.seam.errors import EngineDead
from engine_adapter.seam.text import NAME
from engine_adapter.seam.types import ParserChoice
from server.control.method_names import MethodRequest
from server.control.records import Drain, PolicyStatus, ProposerRecord, SwitchRecord
from server.control.types import (
    DRAIN_TIMEOUT_S,
    MAX_DRAIN_TIMEOUT_S,
    OnTimeout,
    SwitchMode,
)
from server.errors import InvalidField
from server.fleet.replica import FleetStatus, Way
from server.schema.base import Reason, Strict, UnicodeText
from server.telemetry.rolling_stats import RollingStats


class SwitchWay(BaseModel):
    """How a switch is made."""

    model_config = ConfigDict(extra="forbid", strict=True)

    mode: str = Field(SwitchMode.IMMEDIATE, description="which requests change: see docs/api.md")
    timeout_s: float = Field(
        DRAIN_TIMEOUT_S,
        gt=0,
        le=MAX_DRAIN_TIMEOUT_S,
        allow_inf_nan=False,
        description="seconds that a drain may wait",
    )
    on_timeout: Literal["fail", "move", "abort"] = Field(
        "fail",
        description="what a drain does then with requests that have not ended: see docs/api.md",
    )
    reason: Reason | None = Field(None, description="stored in the audit record")

    def after_timeout(self) -> OnTimeout:
        """What a drain does at its limit. Raises `InvalidField` if the switch is not a drain.

        The default is no error there: generated clients send it with every switch.
        """
        if self.on_timeout != "fail" and self.mode != SwitchMode.DRAIN:
            message = f"on_timeout needs mode drain; the mode is {self.mode}."
            raise InvalidField("on_timeout", message)
        return OnTimeout(self.on_timeout)

    def way(self) -> Way:
        """The same for a fleet. Raises `InvalidField`."""
        return Way(self.mode, self.timeout_s, self.after_timeout(), self.reason)


class SwitchRequest(SwitchWay):
    """`POST /v1/switch_spec_method`. `speculative_model` or `proposer` is required.

    `null` is plain decoding; it differs from a field that is left out.
    """

    speculative_model: str | None = Field(
        None,
        description="a proposer's name, model or [method], a policy, primary, backup, or none",
    )
    proposer: str | None = Field(None, description="the same under another name")
    num_speculative_tokens: int | None = Field(
        None,
        ge=0,
        description="most tokens to draft in a step; by default the proposer's k, or for a policy "
        "the largest k",
    )

    def method_request(self) -> MethodRequest:
        """The requested method. Raises `InvalidField` if none is named, or two different ones."""
        names = [n for n in ("speculative_model", "proposer") if n in self.model_fields_set]
        if not names:
            message = "speculative_model is required; null or none is plain decoding."
            raise InvalidField("speculative_model", message, "missing_required_parameter")
        if len(names) == 2 and self.speculative_model != self.proposer:
            message = "speculative_model and proposer mean the same but differ; send one of them."
            raise InvalidField("proposer", message)
        return MethodRequest(
            getattr(self, names[0]),
            self.num_speculative_tokens,
            is_named=True,
            proposer_param=names[0],
            k_param="num_speculative_tokens",
        )


def engine_state(failure: EngineDead | None) -> str:
    """An engine's state, of its `failure`."""
    if failure is None:
        return "serving"
    return "dead" if failure.retry_after_s is None else "restarting"


class Engine(BaseModel):
    """The state of the engine process, and when it should serve again."""

    state: str = Field(description="serving, restarting or dead")
    reason: str | None = Field(default=None, description="why the last process ended")
    retry_after_s: float | None = Field(
        default=None, description="until the next process should serve"
    )

    @classmethod
    def from_failure(cls, failure: EngineDead | None) -> Self:
        """The state of an engine with this `failure`."""
        if failure is None:
            return cls(state=engine_state(None))
        return cls(
            state=engine_state(failure), reason=str(failure), retry_after_s=failure.retry_after_s
        )


class Parsers(BaseModel):
    """What reads the calls and the reasoning in the target's texts."""

    tool_call: ParserChoice
    reasoning: ParserChoice


class SpecMethodResponse(BaseModel):
    """`GET /v1/spec_method`."""

    spec_method: str
    num_speculative_tokens: int
    generation: int
    since: float = Field(description="Unix time in seconds")
    in_flight: dict[str, int] = Field(description="unfinished requests by proposer")
    drain: Drain | None = Field(description="the running drain, if there is one")
    engine: Engine = Field(description="serving while one of the engines serves")
    engines: list[Engine] = Field(description="each engine; one without --data-parallel-size")
    parsers: Parsers = Field(description="of the target's calls and reasoning")
    policy: PolicyStatus | None = Field(description="the active policy; null for a proposer")
    window_s: int = Field(description="seconds that `proposers` and `decisions` sum over")
    proposers: dict[str, RollingStats]
    switches: list[SwitchRecord] = Field(description="the last ones, newest first")
    fleet: FleetStatus


class Proposer(BaseModel):
    """A loaded proposer: the fields of `ProposerInfo`, and its roles."""

    model_config = ConfigDict(extra="forbid")

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
    last_error: str | None = Field(description="why it was quarantined, if it was")
    settings: dict[str, Any] = Field(description="the body that loads it; defaults are left out")
    can_unload: bool = Field(description="it can be unloaded and loaded while the server runs")


class ProposersResponse(BaseModel):
    """`GET /v1/proposers`."""

    object: str = "list"
    data: list[Proposer]
    changes: list[ProposerRecord] = Field(description="the last ones, newest first")


class LoadRequest(RootModel[dict[str, Any]]):
    """`POST /v1/load_proposer`: a proposer's fields, as in `--proposer`."""


class UnloadRequest(BaseModel):
    """`POST /v1/unload_proposer`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str = Field(pattern=f"^{NAME.pattern}$")


class UnloadResponse(BaseModel):
    """An unloaded proposer."""

    object: str = "proposer"
    name: str
    unloaded: bool = True


class PrefixCacheReset(BaseModel):
    """`POST /reset_prefix_cache`."""

    reset: Literal[True]


def _check_printable(name: str) -> str:
    if not name.isprintable():
        raise ValueError("must have no control characters")
    return name


Name = Annotated[str, Field(min_length=1, max_length=128), AfterValidator(_check_printable)]
Path = Annotated[UnicodeText, Field(min_length=1, max_length=4096)]


class LoadAdapterRequest(Strict):
    """`POST /v1/load_lora_adapter`."""

    lora_name: Name
    lora_path: Path


class UnloadAdapterRequest(Strict):
    """`POST /v1/unload_lora_adapter`."""

    lora_name: Name

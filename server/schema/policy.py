"""Bodies of `/v1/spec_policy` and `/v1/explain`. Unknown fields and other types are refused."""

from typing import Any, Self

from pydantic import BaseModel, Field, model_validator

from server.control.records import PolicyRecord, PolicyStatus
from server.schema.base import Reason, Strict
from server.schema.chat import ChatCompletionRequest
from server.schema.completions import CompletionRequest

MAX_HEADERS = 100


class PolicyRequest(Strict):
    """`PUT /v1/spec_policy`. What is left out stays as it is."""

    policies: dict[str, dict[str, Any]] | None = Field(
        None, description="policy -> its parameters; those left out get their defaults"
    )
    rules: list[Any] | None = Field(None, description="all routing rules, in order")
    reason: Reason | None = Field(None, description="stored in the audit record")


class RoutingRule(BaseModel):
    """A routing rule in force, as it was given, and its measured overlap."""

    name: str
    match: dict[str, Any]
    use: dict[str, Any]
    overlap: float | None = Field(
        description="mean of the answers to the last requests that its other conditions match"
    )
    answers: int = Field(description="answers in this mean, at most 100")


class PolicyResponse(BaseModel):
    """`GET /v1/spec_policy`, and the answer to a change."""

    active: str | None = Field(description="the active policy; null if none is active")
    window_s: int = Field(description="seconds that `decisions` sums over")
    policies: list[PolicyStatus]
    rules: list[RoutingRule]
    warnings: list[str] = Field(description="rules that never decide")
    evidence: dict[str, Any] = Field(description="what the policies have measured")
    changes: list[PolicyRecord] = Field(description="the last ones, newest first")


class ExplainRequest(Strict):
    """`POST /v1/explain`: one body of a generation route, and what comes beside a body."""

    chat: ChatCompletionRequest | None = Field(None, description="a body of /v1/chat/completions")
    completion: CompletionRequest | None = Field(None, description="a body of /v1/completions")
    headers: dict[str, str] | None = Field(
        None, max_length=MAX_HEADERS, description="headers that the request would have"
    )
    api_key: str | None = Field(None, description="the name of the request's API key")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.chat is None) == (self.completion is None):
            raise ValueError("exactly one of chat and completion is required")
        return self


class RuleVerdict(BaseModel):
    """What one rule says for a request."""

    rule: str
    matches: bool
    why: str = Field(description="the condition that does not hold, or that the method fails")


class ExplainResponse(BaseModel):
    """The method that a request would get now, and why."""

    spec_method: str
    num_speculative_tokens: int
    selected_by: str = Field(description="request, rule or active")
    rule: str | None = Field(description="the rule that decides, or whose method is capped")
    why: str
    request: dict[str, Any] = Field(description="what rules match of the request")
    rules: list[RuleVerdict] = Field(description="every rule, in order")
    policy: PolicyStatus | None = Field(description="the chosen policy; null for a proposer")

"""The admin routes: show, switch, load and unload proposers; empty the prefix cache."""

from dataclasses import asdict

from fastapi import APIRouter, Request

from engine_adapter.seam.types import ProposerInfo
from server.contract.answers import answers
from server.control.records import SwitchResult
from server.control.switching.errors import SWITCH_ERRORS, to_refusal
from server.errors import ApiError, InvalidField
from server.http.auth import caller
from server.http.event_stream import until_disconnect
from server.http.exchange import exchange_of
from server.schema import admin as schema
from server.schema.admin import (
    LoadRequest,
    Proposer,
    ProposersResponse,
    SpecMethodResponse,
    SwitchRequest,
    UnloadRequest,
    UnloadResponse,
)
from server.state import ReadyRuntime, Runtime, StartedRuntime
from server.telemetry.rolling_stats import WINDOW_S

router = APIRouter(tags=["Speculation"])


@router.post(
    "/v1/switch_spec_method",
    responses=answers(
        errors={
            404: "proposer_not_found",
            409: "switch_in_progress, proposer_quarantined",
            503: "engine_dead, audit_unavailable",
            504: "drain_timeout",
        }
    ),
)
async def switch_spec_method(
    request: Request, body: SwitchRequest, runtime: StartedRuntime
) -> SwitchResult:
    """Makes another proposer, a policy, or plain decoding the active method."""
    switching = runtime.switcher.switch(
        body.method_request(),
        body.mode,
        body.reason,
        timeout_s=body.timeout_s,
        on_timeout=body.after_timeout(),
        caller=caller(request),
    )
    try:
        # A drain must not make requests wait for a caller that is gone.
        result = await until_disconnect(request.receive, switching)
    except SWITCH_ERRORS as error:
        raise to_refusal(error) from None
    if (span := exchange_of(request.scope).span) is not None:
        span.annotate(
            spec_method=result.active.spec_method,
            previous_spec_method=result.previous.spec_method,
            switch_mode=result.mode,
            switch_generation=result.generation,
        )
    return result


@router.get("/v1/spec_method", operation_id="get_spec_method")
async def spec_method(runtime: StartedRuntime) -> SpecMethodResponse:
    """The active method, the requests in flight, and the recent figures of each proposer."""
    switcher = runtime.switcher
    active = switcher.active
    return SpecMethodResponse(
        spec_method=active.name,
        num_speculative_tokens=active.spec_method.num_speculative_tokens,
        generation=active.epoch,
        since=active.since,
        in_flight=dict(switcher.in_flight.by_proposer),
        drain=switcher.drain,
        parsers=schema.Parsers(
            tool_call=runtime.info.tool_call_parser, reasoning=runtime.info.reasoning_parser
        ),
        policy=runtime.policy_admin.status(active.name),
        window_s=WINDOW_S,
        proposers=runtime.metrics.rolling_stats(),
        engine=schema.Engine.from_failure(runtime.engine.failure),
        engines=[schema.Engine.from_failure(failure) for failure in runtime.engine.failures],
        switches=list(runtime.audit.switches),
        fleet=runtime.fleet.status(),
    )


@router.get("/v1/proposers", operation_id="list_proposers")
async def proposers(runtime: StartedRuntime) -> ProposersResponse:
    """Every loaded proposer, and the last loads and unloads."""
    data = [_proposer(info, runtime) for info in await runtime.engine.proposers()]
    return ProposersResponse(data=data, changes=list(runtime.audit.proposer_changes))


@router.post(
    "/v1/load_proposer",
    responses=answers(
        errors={
            409: "proposer_exists, needs_restart, no_room, load_in_progress",
            503: "audit_unavailable",
        }
    ),
)
async def load_proposer(request: Request, body: LoadRequest, runtime: ReadyRuntime) -> Proposer:
    """Loads a proposer while requests are served."""
    asker = caller(request)
    return _proposer(await runtime.proposer_admin.load(body.root, asker), runtime)


@router.post(
    "/v1/unload_proposer",
    responses=answers(
        errors={
            404: "proposer_not_found",
            409: "proposer_in_use, needs_restart, load_in_progress, switch_in_progress",
            503: "audit_unavailable",
        }
    ),
)
async def unload_proposer(
    request: Request, body: UnloadRequest, runtime: ReadyRuntime
) -> UnloadResponse:
    """Unloads a proposer that is not in use, and frees its memory."""
    asker = caller(request)
    await runtime.proposer_admin.unload(body.name, asker)
    return UnloadResponse(name=body.name)


@router.post(
    "/reset_prefix_cache",
    operation_id="reset_prefix_cache",
    responses=answers(errors={400: "unsupported_parameter", 409: "prefix_cache_in_use"}),
)
async def reset_prefix_cache(request: Request, runtime: ReadyRuntime) -> schema.PrefixCacheReset:
    """Empties the prefix cache, as before a benchmark. The name is vLLM's."""
    if request.query_params:
        name = next(iter(request.query_params))
        message = f"{name!r} is not supported: this route has no options."
        raise InvalidField(name, message, "unsupported_parameter")
    if not await runtime.engine.reset_prefix_cache():
        message = "A running request uses the prefix cache. Try again when none runs."
        raise ApiError(409, message, code="prefix_cache_in_use")
    return schema.PrefixCacheReset(reset=True)


def _proposer(info: ProposerInfo, runtime: Runtime) -> Proposer:
    settings = runtime.settings
    roles = {"primary": settings.primary, "backup": settings.backup}
    return Proposer(
        **asdict(info), roles=[role for role, name in roles.items() if name == info.name]
    )

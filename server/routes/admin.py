"""The admin routes: which proposers there are, which one is active, and how to change it."""

from dataclasses import asdict

from fastapi import APIRouter, Request

from engine_adapter.errors import EngineConfigError, EngineDead
from engine_adapter.types import ProposerInfo
from server.control.errors import DrainStopped, DrainTimeout, ProposerQuarantined, SwitchInProgress
from server.control.records import SwitchResult
from server.control.selection import SelectionError
from server.errors import ApiError, InvalidField, NotFound, Stopping
from server.http.auth import caller
from server.http.event_stream import until_disconnect
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
from server.state import LoadedState, ReadyState, State
from server.telemetry.rolling_stats import WINDOW_S

router = APIRouter()


@router.post("/v1/switch_spec_method")
async def switch_spec_method(
    request: Request, body: SwitchRequest, state: LoadedState
) -> SwitchResult:
    """Makes another proposer, or none, the active method."""
    switching = state.switcher.switch(
        body.method_request(),
        body.mode,
        body.reason,
        timeout_s=body.timeout_s,
        caller=caller(request.headers, request.client, state.settings),
    )
    try:
        # A drain must not hold requests for a caller that is gone.
        return await until_disconnect(request.receive, switching)
    except SelectionError as error:
        kind = NotFound if error.code == "proposer_not_found" else InvalidField
        raise kind(message=error.message, param=error.param, code=error.code) from None
    except ProposerQuarantined as error:
        raise ApiError(409, f"{error}.", code="proposer_quarantined") from None
    except SwitchInProgress:
        message = "Another switch has not ended yet; nothing was changed."
        raise ApiError(409, message, code="switch_in_progress") from None
    except DrainTimeout as error:
        message = f"{error}; nothing was changed."
        raise ApiError(504, message, type="server_error", code="drain_timeout") from None
    except DrainStopped:
        raise Stopping("The server is stopping; nothing was changed.") from None


@router.get("/v1/spec_method")
async def spec_method(state: LoadedState) -> SpecMethodResponse:
    """The active method, what is in flight, and how each proposer has done lately."""
    switcher = state.switcher
    active = switcher.active
    return SpecMethodResponse(
        spec_method=active.name,
        num_speculative_tokens=active.spec_method.num_speculative_tokens,
        generation=active.epoch,
        since=active.since,
        in_flight=dict(switcher.in_flight.by_proposer),
        drain=switcher.drain,
        window_s=WINDOW_S,
        proposers=state.metrics.rolling_stats(),
        engine=_engine(state.engine.failure),
        switches=list(state.audit.switches),
    )


@router.get("/v1/proposers")
async def proposers(state: LoadedState) -> ProposersResponse:
    """Every loaded proposer, and the last that were loaded or unloaded."""
    data = [_proposer(info, state) for info in await state.engine.proposers()]
    return ProposersResponse(data=data, changes=list(state.audit.proposer_changes))


@router.post("/v1/load_proposer")
async def load_proposer(request: Request, body: LoadRequest, state: ReadyState) -> Proposer:
    """Loads a proposer while requests are served."""
    asker = caller(request.headers, request.client, state.settings)
    try:
        return _proposer(await state.proposers.load(body.root, asker), state)
    except EngineConfigError as error:
        raise InvalidField(error.field, error.message, error.code) from None


@router.post("/v1/unload_proposer")
async def unload_proposer(
    request: Request, body: UnloadRequest, state: ReadyState
) -> UnloadResponse:
    """Unloads a proposer that nobody uses, and frees its memory."""
    asker = caller(request.headers, request.client, state.settings)
    await state.proposers.unload(body.name, asker)
    return UnloadResponse(name=body.name)


def _proposer(info: ProposerInfo, state: State) -> Proposer:
    roles = {"primary": state.catalog.primary, "backup": state.catalog.backup}
    return Proposer(
        **asdict(info), roles=[role for role, name in roles.items() if name == info.name]
    )


def _engine(failure: EngineDead | None) -> schema.Engine:
    if failure is None:
        return schema.Engine(state="serving")
    state = "dead" if failure.retry_after_s is None else "restarting"
    return schema.Engine(state=state, reason=str(failure), retry_after_s=failure.retry_after_s)

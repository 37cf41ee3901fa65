"""The admin routes: which proposers there are, which one is active, and how to change it."""

from dataclasses import asdict

from fastapi import APIRouter, Request

from engine_adapter.errors import EngineConfigError, EngineDead
from engine_adapter.types import ProposerInfo, SpecMethod
from server.control.selection import SelectionError
from server.control.switcher import (
    Drain,
    DrainStopped,
    DrainTimeout,
    ProposerQuarantined,
    SwitchInProgress,
)
from server.errors import ApiError, InvalidField, NotFound, Stopping
from server.http.auth import caller
from server.http.event_stream import until_disconnect
from server.schema import admin as schema
from server.schema.admin import (
    Figures,
    LoadRequest,
    Proposer,
    ProposerChange,
    ProposersResponse,
    SpecMethodBody,
    SpecMethodResponse,
    Switch,
    SwitchRequest,
    SwitchResponse,
    UnloadRequest,
    UnloadResponse,
)
from server.state import LoadedState, ReadyState, State
from server.telemetry.rolling_stats import WINDOW_S

router = APIRouter()


@router.post("/v1/switch_spec_method")
async def switch_spec_method(
    request: Request, body: SwitchRequest, state: LoadedState
) -> SwitchResponse:
    """Makes another proposer, or none, the active method."""
    switching = state.switcher.switch(
        body.asked(),
        body.mode,
        body.reason,
        timeout_s=body.timeout_s,
        caller=caller(request.headers, request.client, state.settings),
    )
    try:
        # A drain must not hold requests for a caller that is gone.
        result = await until_disconnect(request.receive, switching)
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
    return SwitchResponse(
        previous=_method(result.previous),
        active=_method(result.active),
        mode=result.mode,
        generation=result.generation,
        in_flight=result.in_flight,
        waited_ms=result.waited_ms,
    )


@router.get("/v1/spec_method")
async def spec_method(state: LoadedState) -> SpecMethodResponse:
    """The active method, what is in flight, and how each proposer has done lately."""
    switcher = state.switcher
    active = switcher.active
    figures = state.metrics.rolling()
    return SpecMethodResponse(
        spec_method=active.name,
        num_speculative_tokens=active.spec_method.num_speculative_tokens,
        generation=active.epoch,
        since=active.since,
        in_flight=dict(switcher.in_flight.by_proposer),
        drain=_drain(switcher.drain),
        window_s=WINDOW_S,
        proposers={name: Figures(**asdict(one)) for name, one in figures.items()},
        engine=_engine(state.engine.failure),
        switches=[Switch(**record.fields() | {"when": record.when}) for record in state.audit.last],
    )


@router.get("/v1/proposers")
async def proposers(state: LoadedState) -> ProposersResponse:
    """Every loaded proposer, and the last that were loaded or unloaded."""
    changes = [ProposerChange(**r.fields() | {"when": r.when}) for r in state.audit.changes]
    data = [_proposer(info, state) for info in await state.engine.proposers()]
    return ProposersResponse(data=data, changes=changes)


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


def _drain(drain: Drain | None) -> schema.Drain | None:
    if drain is None:
        return None
    return schema.Drain(**asdict(drain) | {"to": _method(drain.to)})


def _method(method: SpecMethod) -> SpecMethodBody:
    return SpecMethodBody(
        spec_method=method.proposer, num_speculative_tokens=method.num_speculative_tokens
    )

"""The three calls of a fleet switch: prepare, commit, roll back."""

from fastapi import APIRouter, Request

from server.contract.answers import answers
from server.control.records import SwitchResult
from server.control.refusals import REFUSALS, to_refusal
from server.fleet.replica import Prepared, ReplicaState
from server.http.auth import caller
from server.http.event_stream import until_disconnect
from server.schema.fleet import CommitRequest, PrepareRequest, RollbackRequest
from server.state import StartedRuntime

router = APIRouter(tags=["Speculation"])


@router.post(
    "/v1/prepare_switch",
    responses=answers(
        errors={
            404: "proposer_not_found",
            409: "switch_in_progress, proposer_quarantined",
            503: "engine_dead, audit_unavailable",
        }
    ),
)
async def prepare_switch(
    request: Request, body: PrepareRequest, runtime: StartedRuntime
) -> Prepared:
    """Checks that a switch is possible, and reserves the server for it until the lease ends."""
    try:
        return runtime.fleet.prepare(body.switch_id, body.order(), body.lease_s, caller(request))
    except REFUSALS as error:
        raise to_refusal(error) from None


@router.post(
    "/v1/commit_switch",
    responses=answers(
        errors={
            404: "proposer_not_found",
            409: "not_prepared, stale_generation, proposer_quarantined",
            503: "engine_dead, audit_unavailable",
            504: "drain_timeout",
        }
    ),
)
async def commit_switch(
    request: Request, body: CommitRequest, runtime: StartedRuntime
) -> SwitchResult:
    """Makes the switch that was prepared, under the number of the fleet."""
    committing = runtime.fleet.commit(body.switch_id, body.generation)
    try:
        # A drain must not make requests wait for a coordinator that is gone.
        return await until_disconnect(request.receive, committing)
    except REFUSALS as error:
        raise to_refusal(error) from None


@router.post(
    "/v1/rollback_switch",
    responses=answers(errors={409: "switch_in_progress, proposer_quarantined", 503: "engine_dead"}),
)
async def rollback_switch(
    request: Request, body: RollbackRequest, runtime: StartedRuntime
) -> ReplicaState:
    """Ends the reservation, or restores the method that the server had before the commit."""
    try:
        return await runtime.fleet.rollback(body.switch_id, body.generation, caller(request))
    except REFUSALS as error:
        raise to_refusal(error) from None

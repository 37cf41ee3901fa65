"""Why a switch did not happen, as the API says it."""

from engine_adapter.policies.parameters import PolicyError
from server.control.method_names import SelectionError
from server.control.switching.errors import (
    DrainStopped,
    DrainTimeout,
    ProposerQuarantined,
    SwitchInProgress,
)
from server.errors import ApiError, AuditUnavailable, InvalidField, NotFound, Stopping, to_api_error

REFUSALS = (
    SelectionError,
    PolicyError,
    SwitchInProgress,
    ProposerQuarantined,
    DrainTimeout,
    DrainStopped,
    AuditUnavailable,
)
"""What a switch raises besides an `EngineError`."""


def to_refusal(error: BaseException) -> ApiError:
    """The error that a client gets for a switch that raised `error`."""
    match error:
        case SelectionError():
            kind = NotFound if error.code == "proposer_not_found" else InvalidField
            return kind(message=error.message, param=error.param, code=error.code)
        case PolicyError():
            param = f"policies.{error.field}"
            return InvalidField(param, f"{param}: {error.message}")
        case ProposerQuarantined():
            return ApiError(409, f"{error}.", code="proposer_quarantined")
        case SwitchInProgress():
            message = "Another switch has not ended yet; nothing was changed."
            return ApiError(409, message, code="switch_in_progress")
        case DrainTimeout():
            message = f"{error}; the method was not changed."
            return ApiError(504, message, type="server_error", code="drain_timeout")
        case DrainStopped():
            return Stopping("The server is stopping; nothing was changed.")
        case _:
            return to_api_error(error)

"""The settings of logs."""

from typing import Literal

from pydantic import BaseModel, Field


class TelemetrySettings(BaseModel):
    """What the server logs."""

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="least severe messages to log"
    )
    log_json: bool = Field(False, description="log one JSON object per line")
    access_log: bool = Field(True, description="log every HTTP request")

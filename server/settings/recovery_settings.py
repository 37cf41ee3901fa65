"""The settings of the engine's process: when it counts as dead, and when it is replaced."""

from pydantic import BaseModel, Field

from engine_adapter.seam.config import HangPolicy, RestartPolicy
from server.settings.types import PositiveSeconds, Seconds


class RecoverySettings(BaseModel):
    """Hangs and deaths of the engine's process."""

    engine_hang_timeout_s: Seconds = Field(
        30.0,
        description="seconds without an answer from an engine that uses no CPU time, after which "
        "it is replaced; 0 is never",
    )
    engine_step_timeout_s: Seconds = Field(
        1800.0,
        description="seconds that a step of a busy engine may take before it is replaced; 0 sets "
        "no limit",
    )
    engine_restart_delay_s: PositiveSeconds = Field(
        1.0, description="seconds before a dead engine is replaced; doubles with each time"
    )
    engine_restart_max_delay_s: PositiveSeconds = Field(
        60.0, description="most seconds that this delay grows to"
    )
    engine_restart_limit: int = Field(
        5,
        ge=0,
        description="replacements within the window, after which it stays dead; 0 allows none",
    )
    engine_restart_window_s: PositiveSeconds = Field(
        600.0, description="seconds for which a replacement counts"
    )

    @property
    def hang_policy(self) -> HangPolicy:
        """When a live process counts as dead."""
        return HangPolicy(self.engine_hang_timeout_s, self.engine_step_timeout_s)

    @property
    def restart_policy(self) -> RestartPolicy:
        """When a dead process is replaced."""
        return RestartPolicy(
            self.engine_restart_delay_s,
            self.engine_restart_max_delay_s,
            self.engine_restart_limit,
            self.engine_restart_window_s,
        )

"""The limits of admission: from the settings, and from what the engine can run at a time."""

import time
from collections.abc import Callable

from engine_adapter.types import EngineInfo
from server.control.admission import Admission
from server.control.slots import SlotLimits
from server.settings import Settings
from server.telemetry.admission_metrics import AdmissionMetrics


def new_admission(
    settings: Settings,
    info: EngineInfo,
    metrics: AdmissionMetrics,
    is_shared: Callable[[], bool],
) -> Admission:
    """The admission of an engine. See `Admission` for `is_shared`."""
    return Admission(slot_limits(settings, info), settings, metrics, time.monotonic, is_shared)


def slot_limits(settings: Settings, info: EngineInfo) -> SlotLimits:
    """The engine's slots. By default some more than it runs, so that none idles between two.

    A reserve leaves a key at least one row.
    """
    runs = info.max_num_seqs
    total = settings.max_engine_sequences or runs + runs // 4
    of_request = settings.max_request_sequences or max(1, runs // 4)
    rows = min(runs, total)
    reserved = settings.reserved_sequences
    if reserved is None:
        reserved = max(1, runs // 16)
    return SlotLimits(
        total=total,
        rows=rows,
        reserved=min(reserved, rows - 1),
        of_request=min(of_request, total),
        request_prompt_tokens=settings.max_request_prefill_tokens,
    )

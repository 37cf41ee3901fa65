"""The limits of admission: from the settings, and from what the engine can run at a time."""

from engine_adapter.types import EngineInfo
from server.control.admission import Admission
from server.control.slots import SlotLimits
from server.settings import Settings
from server.telemetry.admission_metrics import AdmissionMetrics


def new_admission(settings: Settings, info: EngineInfo, metrics: AdmissionMetrics) -> Admission:
    """The admission of an engine."""
    return Admission(slot_limits(settings, info), settings, metrics)


def slot_limits(settings: Settings, info: EngineInfo) -> SlotLimits:
    """The engine's slots. By default some more than it runs, so that none idles between two."""
    runs = info.max_num_seqs
    total = settings.max_engine_sequences or runs + runs // 4
    of_request = settings.max_request_sequences or max(1, runs // 4)
    return SlotLimits(
        total=total,
        of_request=min(of_request, total),
        request_prompt_tokens=settings.max_request_prefill_tokens,
    )

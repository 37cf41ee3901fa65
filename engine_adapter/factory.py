"""Engine name -> engine. The engine's libraries are imported when it is created."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from prometheus_client import CollectorRegistry

from engine_adapter.interface import Engine, EngineObserver
from engine_adapter.proposers.contract import ProposerSpec
from engine_adapter.proposers.methods import with_prediction

ENGINES = ("vllm", "fake")
"""The engines that `create_engine` knows."""

MIN_CAPACITY = 5
"""The draft capacity where nothing asks for more, so that proposers can come later."""


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """When a dead engine process is replaced.

    Attributes:
        first_delay_s: wait before the first attempt; it doubles with each further one.
        max_delay_s: the longest wait.
        limit: attempts within `window_s` seconds, after which it is given up; 0 never tries.
    """

    first_delay_s: float = 1.0
    max_delay_s: float = 60.0
    limit: int = 5
    window_s: float = 600.0


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What an engine is built from; `server.settings` makes one.

    Attributes:
        model: the target's path or id.
        served_model_name: the `model_name` label of the `vllm:` metrics.
        proposers: in the order given; may be empty. `create_engine` adds `prediction`.
        max_speculative_tokens: the draft capacity; `None` is the largest k, at least
            `MIN_CAPACITY`.
        arguments: the engine's own arguments by vLLM's field names, set ones only.
        log_level: of the engine process.
        restart: when a dead process is replaced; the fake engine's is not.
        adapters: LoRA adapters to begin with, name -> path; needs `enable_lora`.
    """

    model: str
    served_model_name: str
    proposers: Sequence[ProposerSpec] = ()
    max_speculative_tokens: int | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    log_level: str = "WARNING"
    restart: RestartPolicy = RestartPolicy()
    adapters: Mapping[str, str] = field(default_factory=dict)


def create_engine(
    name: str, config: EngineConfig, registry: CollectorRegistry, observer: EngineObserver
) -> Engine:
    """Builds the engine called `name`, not yet started.

    `registry` gets the engine's own metrics (the `vllm:` names); `observer` gets its steps.
    Raises `ValueError` for a name that is not in `ENGINES`.
    """
    largest = max((spec.num_speculative_tokens for spec in config.proposers), default=0)
    k = config.max_speculative_tokens or max(largest, MIN_CAPACITY)
    config = replace(config, proposers=with_prediction(config.proposers, k))
    if name == "vllm":
        from engine_adapter.vllm_engine.gateway.engine import VllmEngine

        return VllmEngine(config, registry, observer)
    if name == "fake":
        from engine_adapter.fake.engine import FakeEngine

        return FakeEngine(config, registry, observer)
    raise ValueError(f"unknown engine {name!r}; the engines are {', '.join(ENGINES)}")

"""LoRA adapters in the engine's process: loading them, and loading them again in the next one."""

import logging

from engine_adapter.errors import EngineConfigError
from engine_adapter.lora_registry import LoraRegistry
from engine_adapter.types import LoraAdapter
from engine_adapter.vllm_engine.gateway.process import EngineProcess
from engine_adapter.vllm_engine.gateway.translation import lora_request

log = logging.getLogger(__name__)


async def load(process: EngineProcess, adapters: LoraRegistry, name: str, path: str) -> LoraAdapter:
    """Loads an adapter; see `Engine.load_lora_adapter`. A step waits while its files are read."""
    with adapters.loading(name, path) as adapter:
        try:
            await process.add_adapter(lora_request(adapter))
        except ValueError as error:
            message = f"{name}: {path!r} cannot be used: {error}"
            raise EngineConfigError("lora_modules", message, "lora_path") from error
    return adapter


async def load_again(process: EngineProcess, adapters: LoraRegistry) -> None:
    """Loads what the process before held. What cannot be read any more is given up.

    A request that came with an adapter which only a step would find missing would end the process.
    """
    for adapter in adapters.loaded:
        try:
            await process.add_adapter(lora_request(adapter))
        except ValueError as error:
            log.error("adapter %s is given up, it cannot be loaded again: %s", adapter.name, error)
            adapters.drop(adapter)

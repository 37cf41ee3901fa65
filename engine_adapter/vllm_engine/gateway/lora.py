"""Loads LoRA adapters into the engine process, and loads them again into its replacement."""

import logging

from engine_adapter.registries.lora_registry import LoraRegistry
from engine_adapter.seam.errors import EngineConfigError
from engine_adapter.seam.types import LoraAdapter
from engine_adapter.vllm_engine.gateway.process import EngineProcess
from engine_adapter.vllm_engine.gateway.translation import lora_request

log = logging.getLogger(__name__)


async def load_adapter(
    process: EngineProcess, registry: LoraRegistry, name: str, path: str
) -> LoraAdapter:
    """Loads an adapter; see `Engine.load_lora_adapter`.

    Its files are found, and downloaded, before the engine hears of it: no step runs while the
    engine reads them.
    """
    async with registry.loading(name, path) as adapter:
        try:
            await process.add_lora(lora_request(adapter))
        except ValueError as error:
            message = f"{name}: {path!r} cannot be used: {error}"
            raise EngineConfigError("lora_modules", message, "lora_path") from error
    return adapter


async def reload_adapters(process: EngineProcess, registry: LoraRegistry) -> None:
    """Loads the adapters of the process before, and drops those that cannot be read any more.

    vLLM would read a missing adapter in a step, and the failure there would end the process.
    """
    for adapter in registry.loaded:
        try:
            await process.add_lora(lora_request(adapter))
        except ValueError as error:
            log.error("adapter %s is dropped: it cannot be loaded again: %s", adapter.name, error)
            registry.drop(adapter)

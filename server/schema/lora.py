"""Bodies of the routes that load and unload LoRA adapters, with vLLM's names."""

from typing import Annotated

from pydantic import Field

from server.schema.base import Strict, UnicodeText

Name = Annotated[UnicodeText, Field(min_length=1, max_length=128)]
Path = Annotated[UnicodeText, Field(min_length=1, max_length=4096)]


class LoadAdapterRequest(Strict):
    """`POST /v1/load_lora_adapter`."""

    lora_name: Name
    lora_path: Path


class UnloadAdapterRequest(Strict):
    """`POST /v1/unload_lora_adapter`."""

    lora_name: Name

"""Bodies of the routes that load and unload LoRA adapters, with vLLM's names."""

from typing import Annotated

from pydantic import AfterValidator, Field

from server.rendering import is_unicode
from server.schema.base import Strict


def _encodable(text: str) -> str:
    if not is_unicode(text):
        raise ValueError("holds half of a surrogate pair")
    return text


Name = Annotated[str, Field(min_length=1, max_length=128), AfterValidator(_encodable)]
Path = Annotated[str, Field(min_length=1, max_length=4096), AfterValidator(_encodable)]


class LoadAdapterRequest(Strict):
    """`POST /v1/load_lora_adapter`."""

    lora_name: Name
    lora_path: Path


class UnloadAdapterRequest(Strict):
    """`POST /v1/unload_lora_adapter`."""

    lora_name: Name

"""Bodies of the routes that load and unload LoRA adapters, with vLLM's names."""

from typing import Annotated

from pydantic import AfterValidator, Field

from server.schema.base import Strict, UnicodeText


def _check_printable(name: str) -> str:
    if not name.isprintable():
        raise ValueError("must have no control characters")
    return name


Name = Annotated[str, Field(min_length=1, max_length=128), AfterValidator(_check_printable)]
Path = Annotated[UnicodeText, Field(min_length=1, max_length=4096)]


class LoadAdapterRequest(Strict):
    """`POST /v1/load_lora_adapter`."""

    lora_name: Name
    lora_path: Path


class UnloadAdapterRequest(Strict):
    """`POST /v1/unload_lora_adapter`."""

    lora_name: Name

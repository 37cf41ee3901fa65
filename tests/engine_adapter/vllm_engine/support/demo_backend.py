"""What compiling a constraint reads of vLLM's `GuidanceBackend`, on the demo's tokenizer."""

from functools import cache
from types import SimpleNamespace
from typing import Any

from server.settings import Settings


@cache
def demo_backend() -> Any:
    """The backend, with the tokenizer's `encode` and `decode`."""
    import llguidance.hf
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(Settings(engine="fake").model)
    return SimpleNamespace(
        ll_tokenizer=llguidance.hf.from_tokenizer(tokenizer, len(tokenizer)),
        vocab_size=len(tokenizer),
        disable_any_whitespace=True,
        disable_additional_properties=False,
        encode=lambda text: tokenizer.encode(text, add_special_tokens=False),
        decode=tokenizer.decode,
    )

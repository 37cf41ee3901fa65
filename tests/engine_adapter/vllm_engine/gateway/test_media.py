"""What vLLM's processing of media refuses."""

from typing import Any

import pytest

from engine_adapter.seam.errors import InvalidRequest
from engine_adapter.vllm_engine.gateway.media import render_media


class RefusingRenderer:
    """A renderer whose processor raises."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def process_for_engine_async(self, *arguments: Any, **options: Any) -> Any:
        raise self.error


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        # What vLLM says where the chat template writes no placeholder.
        (AssertionError("Failed to apply prompt replacement"), "--chat-template"),
        (ValueError("too small"), "refuses the media: too small"),
    ],
)
async def test_a_refusal_names_the_field(error: Exception, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason) as caught:
        await render_media(RefusingRenderer(error), [1], [], "messages.0", {})
    assert caught.value.param == "messages.0"


async def test_another_exception_is_not_the_requests() -> None:
    with pytest.raises(KeyError):
        await render_media(RefusingRenderer(KeyError("a")), [1], [], "messages.0", {})

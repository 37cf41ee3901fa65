"""`/v1/responses/compact`: a conversation becomes its user's messages and a summary.

The target writes the summary. It travels as a `compaction` item, in whose place the model reads the
summary when a later request has the item in its input. Nothing is stored: OpenAI's servers encrypt
the content, here it is the text in another alphabet, which the client could have sent as well.
"""

from collections.abc import Sequence
from typing import Any

from engine_adapter.seam.types import FinishReason
from server.errors import ApiError, InvalidField
from server.openai.request import AdmittedRequest
from server.openai.responses.builder import ResponsesBuilder, response_usage
from server.openai.responses.conversation import Source
from server.openai.responses.input_items import Item, compaction_item
from server.openai.responses.prepare import (
    PreparedResponse,
    conversation_items,
    prepare_response,
)
from server.openai.usage import response_metrics
from server.schema.responses import CompactRequest
from server.state import Runtime

REQUEST = (
    "Summarize this conversation for yourself: your next answer will read the summary in place of "
    "it. Keep every goal, decision, name, number, path and result that may matter later, what was "
    "done, and what is left to do. Write the summary alone."
)
"""What the model is asked after the last message."""

LEFT_OUT = ("text", "tools", "tool_choice", "parallel_tool_calls")
"""Fields of a body that agents send with every request, and a summary has no use for."""


async def prepare_compaction(
    runtime: Runtime, body: CompactRequest, owner: str
) -> tuple[PreparedResponse, list[Item]]:
    """The response that writes the summary, and the messages that stay. Raises `ApiError`."""
    ignored = tuple(name for name in LEFT_OUT if getattr(body, name) is not None)
    request = body.model_copy(update={**dict.fromkeys(LEFT_OUT), "store": False})
    conversation = conversation_items(runtime.responses, request, owner)
    if not conversation:
        raise InvalidField("input", "input: send it, or previous_response_id.")
    messages = [source.item for source in conversation if source.item.get("role") == "user"]
    parts = [{"type": "input_text", "text": REQUEST}]
    closing = [Source({"type": "message", "role": "user", "content": parts}, "input")]
    return await prepare_response(runtime, request, owner, closing, ignored), messages


class CompactionBuilder(ResponsesBuilder):
    """Shapes the answer of a compaction, in one piece.

    Args:
        messages: those of the user, which stay.
        response: writes the summary.
    """

    def __init__(
        self, messages: Sequence[Item], response: PreparedResponse, request: AdmittedRequest
    ) -> None:
        super().__init__(lambda body: None, response, request)
        self._messages = messages

    def _finished(self, reason: FinishReason) -> dict[str, Any]:
        """The compacted conversation. Raises `ApiError` if the model wrote no text."""
        output = self._output.end(complete=reason is not FinishReason.LENGTH)
        parts = (part for item in output if item["type"] == "message" for part in item["content"])
        summary = "".join(part["text"] for part in parts).strip()
        if not summary:
            message = "The model wrote no summary. Send the conversation again, or a higher "
            raise ApiError(500, f"{message}max_output_tokens.", type="server_error")
        request = self._response.request
        return {
            "id": request.id,
            "object": "response.compaction",
            "created_at": request.created,
            "output": [*self._messages, compaction_item(summary)],
            "usage": response_usage(self._request, self.choices),
            "metrics": response_metrics(self._request, self.choices),
        }

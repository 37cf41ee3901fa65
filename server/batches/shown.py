"""Files and batches as their routes show them."""

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from server.batches.batch import Batch
from server.batches.files import StoredFile
from server.openai.responses.item_pages import page_of

_TIMES = (
    *("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled"),
)


class _Listed(Protocol):
    @property
    def id(self) -> str:
        """A page can begin after it."""
        ...


Item = TypeVar("Item", bound=_Listed)


def file_object(file: StoredFile) -> dict[str, Any]:
    """A file."""
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.num_bytes,
        "created_at": file.created_at,
        "expires_at": file.expires_at,
        "filename": file.name,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": None,
    }


def batch_object(batch: Batch) -> dict[str, Any]:
    """A batch."""
    tokens = batch.tokens
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "errors": {"object": "list", "data": batch.faults} if batch.faults else None,
        "input_file_id": batch.input_file_id,
        "completion_window": "24h",
        "status": batch.status,
        "output_file_id": batch.output_file_id if batch.has_output else None,
        "error_file_id": batch.error_file_id if batch.has_errors else None,
        "created_at": batch.created_at,
        "expires_at": batch.expires_at,
        **{f"{status}_at": batch.times.get(status) for status in _TIMES},
        "request_counts": {
            "total": batch.total,
            "completed": batch.completed,
            "failed": batch.failed,
        },
        "usage": {
            "input_tokens": tokens.input_tokens,
            "input_tokens_details": {"cached_tokens": tokens.cached_tokens},
            "output_tokens": tokens.output_tokens,
            "output_tokens_details": {"reasoning_tokens": tokens.reasoning_tokens},
            "total_tokens": tokens.input_tokens + tokens.output_tokens,
        },
        "metadata": batch.metadata,
    }


def page(
    items: Sequence[Item], after_id: str | None, limit: int, *, newest_first: bool = True
) -> tuple[Sequence[Item], bool]:
    """The items after one of them, and whether there are more.

    Args:
        items: the oldest first.
        after_id: the id of the last item of the page before.

    Raises:
        InvalidField: there is no such item.
    """
    ids = [item.id for item in items]
    places, has_more = page_of(ids, after_id=after_id, limit=limit, newest_first=newest_first)
    return [items[place] for place in places], has_more


def list_object(data: Sequence[dict[str, Any]], *, has_more: bool) -> dict[str, Any]:
    """A page."""
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": has_more,
    }

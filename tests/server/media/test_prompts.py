"""The threads that decode media."""

import asyncio
import threading
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from engine_adapter.seam.media import MediaPrompt, MediaSupport, Modality, ModalitySupport
from server.media import prompts as module
from server.media.pictures import decode_picture
from server.media.prompts import MAX_REQUESTS, MediaPrompts
from server.media.sources import MediaSource
from server.telemetry.media_metrics import MediaMetrics
from server.telemetry.metric_maker import MetricMaker
from tests.server.gateway import eventually
from tests.server.pictures import data_url, encoded

SOURCE = MediaSource(Modality.IMAGE, "messages", data_url(encoded()))


class PromptEngine:
    """Renders every prompt."""

    async def render_media(
        self, token_ids: Any, items: Any, param: str, processor_kwargs: Any
    ) -> MediaPrompt:
        return MediaPrompt(tuple(token_ids), None)


async def test_requests_that_are_cancelled_leave_no_thread_more_than_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    is_free, running, most_running = threading.Event(), 0, 0

    def slow(content: bytes, source: MediaSource) -> Any:
        nonlocal running, most_running
        running += 1
        most_running = max(most_running, running)
        assert is_free.wait(60)
        running -= 1
        return decode_picture(content, source)

    monkeypatch.setattr(module, "decode_picture", slow)
    engine: Any = PromptEngine()
    support = MediaSupport({Modality.IMAGE: ModalitySupport("", 1)}, takes_parts=True)
    media = MediaPrompts(engine, support, MediaMetrics(MetricMaker(CollectorRegistry())), 1)
    for _ in range(3):
        tasks = [
            asyncio.create_task(media.render((1,), [SOURCE], None)) for _ in range(MAX_REQUESTS)
        ]
        await eventually(lambda: running == MAX_REQUESTS)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    waiting = asyncio.create_task(media.render((1, 2), [SOURCE], None))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    is_free.set()
    assert (await waiting).token_ids == (1, 2)
    assert most_running == MAX_REQUESTS

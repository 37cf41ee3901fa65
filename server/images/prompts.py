"""The pictures of a chat: from their URLs to a prompt with them.

A picture is decoded and processed for a few requests at a time, each with a bounded number of
pixels, in threads. A request that is cancelled leaves the queue; what a thread has begun, it ends.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engine_adapter.seam.errors import InvalidRequest
from engine_adapter.seam.images import ImagePrompt, ImageSupport
from engine_adapter.seam.interface import Engine
from server.errors import InvalidField
from server.images.data_urls import INVALID_URL, SCHEME, read_data_url
from server.images.decoding import MAX_PIXELS, decode
from server.images.fetcher import ImageFetcher
from server.telemetry.image_metrics import ImageMetrics, ImageOutcome, ImageStage

MAX_REQUESTS = 2
"""Requests whose pictures are decoded and processed at a time."""

MAX_REQUEST_PIXELS = 2 * MAX_PIXELS
"""The most pixels of all pictures of a request."""


@dataclass(frozen=True, slots=True)
class ImageUrl:
    """Where a picture of a chat is.

    Attributes:
        param: the field that has the URL.
    """

    url: str
    param: str


class ImagePrompts:
    """Makes prompts with pictures.

    Args:
        engine: renders them.
        support: what the target takes; `None` if it takes no pictures.
        metrics: counts them.
    """

    def __init__(self, engine: Engine, support: ImageSupport | None, metrics: ImageMetrics) -> None:
        self._engine, self._support, self._metrics = engine, support, metrics
        self._fetcher = ImageFetcher(() if support is None else support.allowed_domains)
        self._places = asyncio.Semaphore(MAX_REQUESTS)

    def check(self, urls: Sequence[ImageUrl]) -> None:
        """Raises `InvalidField` for pictures that the target does not take."""
        if not urls:
            return
        if self._support is None:
            message = f"{urls[0].param}: this model takes no pictures, only text."
            raise InvalidField(urls[0].param, message, "unsupported_parameter")
        if len(urls) > (limit := self._support.max_images):
            param = urls[limit].param
            message = (
                f"{param}: the chat has {len(urls)} pictures; at most {limit} are read "
                "(--limit-mm-per-prompt)."
            )
            raise InvalidField(param, message)

    async def render(self, token_ids: Sequence[int], urls: Sequence[ImageUrl]) -> ImagePrompt:
        """The prompt with the pictures in the places of their placeholders.

        Raises:
            InvalidField: a picture cannot be had, read or processed; it names the picture's field.
            InvalidRequest: the target's processor refuses them.
        """
        try:
            prompt = await self._rendered(token_ids, urls)
        except (InvalidField, InvalidRequest) as error:
            is_unusable = error.code != INVALID_URL
            self._metrics.count(ImageOutcome.UNUSABLE if is_unusable else ImageOutcome.NOT_FETCHED)
            raise
        self._metrics.count(ImageOutcome.READ, len(urls))
        self._metrics.count_tokens(len(prompt.token_ids) - len(token_ids))
        return prompt

    async def _rendered(self, token_ids: Sequence[int], urls: Sequence[ImageUrl]) -> ImagePrompt:
        contents = [await self._content(source) for source in urls]
        with self._metrics.timed(ImageStage.WAIT):
            await self._places.acquire()
        try:
            with self._metrics.timed(ImageStage.PROCESS):
                images = await self._decoded(contents, urls)
                return await self._engine.render_images(token_ids, images, urls[0].param)
        finally:
            self._places.release()

    async def _content(self, source: ImageUrl) -> bytes:
        if source.url[: len(SCHEME)].lower() == SCHEME:
            return read_data_url(source.url, source.param)
        with self._metrics.timed(ImageStage.FETCH):
            return await self._fetcher.fetch(source.url, source.param)

    async def _decoded(self, contents: Sequence[bytes], urls: Sequence[ImageUrl]) -> list[Any]:
        images: list[Any] = []
        for content, source in zip(contents, urls, strict=True):
            images.append(await asyncio.to_thread(decode, content, source.param))
            pixels = sum(image.width * image.height for image in images)
            if pixels > MAX_REQUEST_PIXELS:
                message = (
                    f"{source.param}: the pictures have {pixels} pixels together; at most "
                    f"{MAX_REQUEST_PIXELS} are read."
                )
                raise InvalidField(source.param, message, "invalid_image")
        return images

"""The media of a chat: from their URLs and data to a prompt with them.

Media are decoded and processed for a few requests at a time, each with a bounded number of pixels
and seconds, in threads. A request that is cancelled leaves the queue; what a thread has begun, it
ends, and it begins nothing else before.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from engine_adapter.seam.errors import InvalidRequest
from engine_adapter.seam.interface import Engine
from engine_adapter.seam.media import NOUNS, MediaItem, MediaPrompt, MediaSupport, Modality
from server.errors import InvalidField
from server.media.fetcher import MediaFetcher
from server.media.pictures import MAX_PIXELS, decode_picture
from server.media.recordings import MAX_SECONDS, decode_recording
from server.media.sources import INVALID_URL, MediaSource
from server.media.videos import decode_video
from server.schema.processor_arguments import ProcessorArguments
from server.telemetry.media_metrics import MediaMetrics, MediaOutcome, MediaStage

MAX_REQUESTS = 2
"""Requests whose media are decoded and processed at a time."""

MAX_SIZES = {
    Modality.IMAGE: (2 * MAX_PIXELS, "pixels"),
    Modality.AUDIO: (MAX_SECONDS, "seconds"),
}
"""The most that all items of a request may have together, and its unit; of videos, see
`MediaPrompts`."""


class MediaPrompts:
    """Makes prompts with media.

    Args:
        engine: renders them.
        support: what the target takes; `None` if it takes text only.
        metrics: counts them.
        max_video_pixels: the most pixels of all frames that the target reads of a request's videos.
    """

    def __init__(
        self,
        engine: Engine,
        support: MediaSupport | None,
        metrics: MediaMetrics,
        max_video_pixels: int,
    ) -> None:
        self._engine, self._metrics = engine, metrics
        self._max_sizes = {**MAX_SIZES, Modality.VIDEO: (max_video_pixels, "pixels")}
        self._modalities = {} if support is None else support.modalities
        self._fetcher = MediaFetcher(() if support is None else support.allowed_domains)
        self._places = asyncio.Semaphore(MAX_REQUESTS)
        self._threads = ThreadPoolExecutor(MAX_REQUESTS, "media")

    def check(self, sources: Sequence[MediaSource]) -> None:
        """Raises `InvalidField` for media that the target does not take."""
        for modality in Modality:
            params = [source.param for source in sources if source.modality is modality]
            if not params:
                continue
            noun = f"{NOUNS[modality]}s"
            if (support := self._modalities.get(modality)) is None:
                names = ["text", *(f"{NOUNS[other]}s" for other in self._modalities)]
                message = f"{params[0]}: this model takes no {noun}, only {' and '.join(names)}."
                raise InvalidField(params[0], message, "unsupported_parameter")
            if len(params) > (limit := support.max_items):
                message = (
                    f"{params[limit]}: the chat has {len(params)} {noun}; at most {limit} are read "
                    "(--limit-mm-per-prompt)."
                )
                raise InvalidField(params[limit], message)

    async def render(
        self,
        token_ids: Sequence[int],
        sources: Sequence[MediaSource],
        arguments: ProcessorArguments | None,
    ) -> MediaPrompt:
        """The prompt with the media in the places of their placeholders.

        Args:
            arguments: the request's own of the target's processor.

        Raises:
            InvalidField: an item cannot be fetched, read or processed; it names the item's field.
            InvalidRequest: the target's processor refuses them.
        """
        try:
            prompt = await self._rendered(token_ids, sources, arguments)
        except (InvalidField, InvalidRequest) as error:
            self._count_failure(error, sources)
            raise
        for source in sources:
            self._metrics.count(source.modality, MediaOutcome.READ)
        self._metrics.count_tokens(len(prompt.token_ids) - len(token_ids))
        return prompt

    def _count_failure(
        self, error: InvalidField | InvalidRequest, sources: Sequence[MediaSource]
    ) -> None:
        """Counts the item that the error names, or the first one."""
        of_param = (each.modality for each in sources if each.param == error.param)
        modality = next(of_param, sources[0].modality)
        is_of_url = error.code == INVALID_URL[modality]
        outcome = MediaOutcome.NOT_FETCHED if is_of_url else MediaOutcome.UNUSABLE
        self._metrics.count(modality, outcome)

    async def _rendered(
        self,
        token_ids: Sequence[int],
        sources: Sequence[MediaSource],
        arguments: ProcessorArguments | None,
    ) -> MediaPrompt:
        kwargs = {} if arguments is None else arguments.values()
        param = "mm_processor_kwargs" if kwargs else sources[0].param
        contents = [await self._content(source) for source in sources]
        with self._metrics.timed(MediaStage.WAIT):
            await self._places.acquire()
        try:
            with self._metrics.timed(MediaStage.PROCESS):
                items = await self._decoded(contents, sources)
                return await self._engine.render_media(token_ids, items, param, kwargs)
        finally:
            self._places.release()

    async def _content(self, source: MediaSource) -> bytes:
        if source.is_in_body:
            return source.read()
        with self._metrics.timed(MediaStage.FETCH):
            return await self._fetcher.fetch(source)

    async def _decoded(
        self, contents: Sequence[bytes], sources: Sequence[MediaSource]
    ) -> list[MediaItem]:
        items: list[MediaItem] = []
        sizes = Counter[Modality]()
        loop = asyncio.get_running_loop()
        for content, source in zip(contents, sources, strict=True):
            item, size = await loop.run_in_executor(self._threads, self._decode, content, source)
            items.append(item)
            sizes[source.modality] += size
            limit, unit = self._max_sizes[source.modality]
            if sizes[source.modality] > limit:
                noun = NOUNS[source.modality]
                flag = " (--max-video-pixels)" if source.modality is Modality.VIDEO else ""
                raise source.unusable(
                    f"the {noun}s have {sizes[source.modality]} {unit} together; at most {limit} "
                    f"are read{flag}"
                )
        return items

    def _decode(self, content: bytes, source: MediaSource) -> tuple[MediaItem, int]:
        """An item, and its size, in the unit of its limit."""
        if source.modality is Modality.IMAGE:
            picture = decode_picture(content, source)
            return MediaItem(source.modality, picture), picture.width * picture.height
        support = self._modalities[source.modality]
        if support.choose_frames is not None:
            max_pixels, _ = self._max_sizes[Modality.VIDEO]
            video = decode_video(content, support.choose_frames, max_pixels, source)
            return MediaItem(source.modality, video), video.frames.size // 3
        samples = decode_recording(content, support.sample_rate, source)
        return MediaItem(source.modality, samples), len(samples) // support.sample_rate

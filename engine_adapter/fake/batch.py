"""The running and the waiting sequences, the prefix cache and the use of KV blocks."""

from collections import OrderedDict, deque
from collections.abc import Iterator

from engine_adapter.fake.options import FakeOptions
from engine_adapter.fake.sequence import FakeSequence
from engine_adapter.fake.tokens import draw, text_key


class PrefixCache:
    """Remembers the blocks of earlier prompts; evicts the least recently used."""

    def __init__(self, block_size: int, num_blocks: int) -> None:
        """Starts empty; holds `num_blocks` blocks of `block_size` tokens."""
        self._block_size = block_size
        self._num_blocks = num_blocks
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def read(self, token_ids: tuple[int, ...], salt: str | None = None) -> int:
        """Adds a prompt; returns how many of its first tokens were cached before.

        Only whole blocks count, and those of prompts with the same salt. The last token never
        counts: it must be computed.
        """
        chain, cached, missed = text_key((), None, salt) if salt else 0, 0, False
        for end in range(self._block_size, len(token_ids), self._block_size):
            chain = draw(chain, *token_ids[end - self._block_size : end])
            missed = missed or chain not in self._blocks
            cached += 0 if missed else self._block_size
            self._blocks[chain] = None
            self._blocks.move_to_end(chain)
        while len(self._blocks) > self._num_blocks:
            self._blocks.popitem(last=False)
        return cached


class Batch:
    """The live sequences: those that run, and those that wait, in order of arrival."""

    def __init__(self, options: FakeOptions) -> None:
        """Starts empty."""
        self._options = options
        self._waiting: deque[FakeSequence] = deque()
        self._running: list[FakeSequence] = []
        self._prefixes = PrefixCache(options.block_size, options.num_gpu_blocks_override)

    @property
    def running(self) -> tuple[FakeSequence, ...]:
        """The sequences that run."""
        return tuple(self._running)

    @property
    def num_waiting(self) -> int:
        """The number of sequences that wait."""
        return len(self._waiting)

    @property
    def kv_usage(self) -> float:
        """The share of the KV blocks that running sequences hold, in [0, 1]."""
        size = self._options.block_size
        blocks = sum(-(-s.num_tokens // size) for s in self._running)
        return min(1.0, blocks / self._options.num_gpu_blocks_override)

    def live(self) -> Iterator[FakeSequence]:
        """Every sequence that runs or waits."""
        yield from self._running
        yield from self._waiting

    def add(self, sequence: FakeSequence) -> None:
        """Appends a sequence to the queue."""
        self._waiting.append(sequence)

    def discard(self, sequence: FakeSequence) -> bool:
        """Removes a sequence; False if it was not live."""
        for sequences in (self._running, self._waiting):
            if sequence in sequences:
                sequences.remove(sequence)
                return True
        return False

    def clear(self) -> None:
        """Removes every sequence."""
        self._running.clear()
        self._waiting.clear()

    def admit(self, now_s: float) -> None:
        """Starts waiting sequences, up to `max_num_seqs` running ones."""
        while self._waiting and len(self._running) < self._options.max_num_seqs:
            sequence = self._next()
            self._waiting.remove(sequence)
            sequence.times.admitted_s = now_s
            request = sequence.request
            sequence.num_cached_tokens = self._prefixes.read(
                request.prompt_token_ids, request.cache_salt
            )
            self._running.append(sequence)

    def _next(self) -> FakeSequence:
        """The waiting sequence that starts first; of equal priorities, the one that came first."""
        if self._options.scheduling_policy == "priority":
            return min(self._waiting, key=lambda sequence: sequence.request.priority)
        return self._waiting[0]

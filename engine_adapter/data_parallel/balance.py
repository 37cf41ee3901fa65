"""Which engine gets the next sequence: the one with the least to do.

The load is that of vLLM's first balancer (`DPLBAsyncMPClient`): a sequence that waits counts four
times. vLLM takes the counts that its engines report ten times a second; the gateway is the only
client of its engines, so its own counts are exact.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

WAITING_WEIGHT = 4
"""How much a sequence without a first token counts, beside one that has tokens."""


@dataclass(slots=True)
class Assignment:
    """A sequence and its engine.

    Attributes:
        engine: the engine's index.
        has_begun: it has its first token.
    """

    engine: int
    has_begun: bool = False


@dataclass(slots=True)
class _Prompt:
    """A prompt whose choices run.

    Attributes:
        engine: the index of the engine that has its KV.
        choices: how many of them run.
    """

    engine: int
    choices: int = 0


class Balancer:
    """Counts the sequences of each engine. Lives on the event loop.

    Args:
        num_engines: how many there are.
    """

    def __init__(self, num_engines: int) -> None:
        self._waiting = [0] * num_engines
        self._running = [0] * num_engines
        self._next_engine = 0
        # The identity of a prompt's tuple -> where it is; sequences that run keep the tuple alive.
        self._prompts: dict[int, _Prompt] = {}

    @contextmanager
    def assign(self, engines: Sequence[int], prompt: tuple[int, ...]) -> Iterator[Assignment]:
        """Assigns a sequence to an engine for the time of the block.

        Args:
            engines: the indices of the engines that can take it; at least one.
            prompt: its tokens. Choices of one prompt share the tuple, and go to one engine, whose
                prefix cache has the prompt after the first of them.
        """
        shared = self._prompts.get(id(prompt))
        if shared is None or shared.engine not in engines:
            shared = self._prompts[id(prompt)] = _Prompt(self._least_loaded(engines))
        shared.choices += 1
        assignment = Assignment(shared.engine)
        self._waiting[assignment.engine] += 1
        try:
            yield assignment
        finally:
            (self._running if assignment.has_begun else self._waiting)[assignment.engine] -= 1
            shared.choices -= 1
            if not shared.choices and self._prompts.get(id(prompt)) is shared:
                del self._prompts[id(prompt)]

    def begin(self, assignment: Assignment) -> None:
        """The sequence has its first token. Does nothing if it had one."""
        if not assignment.has_begun:
            assignment.has_begun = True
            self._waiting[assignment.engine] -= 1
            self._running[assignment.engine] += 1

    def load(self, engine: int) -> int:
        """What an engine has to do."""
        return WAITING_WEIGHT * self._waiting[engine] + self._running[engine]

    def _least_loaded(self, engines: Sequence[int]) -> int:
        """Of equal ones, the next in turn."""
        size = len(self._waiting)
        best = min(
            engines, key=lambda engine: (self.load(engine), (engine - self._next_engine) % size)
        )
        self._next_engine = (best + 1) % size
        return best

"""The workloads: which prompts are sent, in which order, at which temperatures."""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain, count, islice
from pathlib import Path

from benchmarks.load.code_edits import code_edits
from benchmarks.load.prompt_files import read_prompts
from benchmarks.load.prompts import Prompt, Split, chat, prompts_in
from benchmarks.load.structured import with_schemas, with_tools
from demo import more_prompts_path
from demo.prompts import Prompt as MeasuredPrompt
from demo.prompts import PromptKind, load_prompts

RANDOM_PROMPTS, RANDOM_WORDS = 200, 60
MIXED_TEMPERATURES = (0.0, 0.7, 1.0)
HOTTEST = 2.0
"""The temperature of random prompts: their answers are then nearly random too."""


@dataclass(frozen=True, slots=True)
class Workload:
    """An endless sequence of prompts.

    Attributes:
        name: as given on the command line.
        phases: each has pools of prompts and takes from them in turn. With several phases a pass
            changes from one to the next.
        temperatures: used in turn if the run does not set one.
    """

    name: str
    phases: Sequence[Sequence[Sequence[Prompt]]] = field(repr=False)
    temperatures: Sequence[float] = (0.0,)

    @property
    def size(self) -> int:
        """The number of different prompts."""
        return len({prompt.id for prompt in chain.from_iterable(chain.from_iterable(self.phases))})

    def draw(self, number: int, skip: int, seed: int) -> list[list[Prompt]]:
        """The prompts of each phase of one repetition.

        Args:
            number: how many in each phase.
            skip: how many of each phase the repetitions before have used. A prompt comes again
                only when its whole pool has been used.
            seed: of the order in each pool.
        """
        return [
            list(
                islice(
                    chain.from_iterable(zip(*(_shuffled(p, seed) for p in pools), strict=True)),
                    skip,
                    skip + number,
                )
            )
            for pools in self.phases
        ]


def _shuffled(pool: Sequence[Prompt], seed: int) -> Iterator[Prompt]:
    """The pool again and again, each time in another order."""
    for cycle in count():
        order = list(pool)
        random.Random(f"{seed}:{cycle}").shuffle(order)
        yield from order


@cache
def _demo_prompts() -> tuple[MeasuredPrompt, ...]:
    """All shipped prompts."""
    return (*load_prompts(), *load_prompts(more_prompts_path()))


@cache
def _halves() -> Mapping[str, Split]:
    """Corpus group -> half: what is written about one definition is in one half, of every kind.

    The largest groups are placed first, each in the half that has fewer prompts.
    """
    halves: dict[str, Split] = {}
    sizes = Counter({Split.TUNE: 0, Split.REPORT: 0})
    for group, size in Counter(prompt.group for prompt in _demo_prompts()).most_common():
        halves[group] = min(sizes, key=lambda half: sizes[half])
        sizes[halves[group]] += size
    return halves


def _measured(kind: PromptKind) -> list[Prompt]:
    return [
        chat(p.id, p.kind, p.messages, _halves()[p.group])
        for p in _demo_prompts()
        if p.kind == kind
    ]


def _edits() -> list[Prompt]:
    return code_edits(_demo_prompts(), _halves())


def _random_words() -> list[Prompt]:
    """Chats of meaningless words, which no proposer has seen."""
    rng = random.Random("random words")

    def word() -> str:
        return "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(rng.randint(3, 9)))

    texts = [" ".join(word() for _ in range(RANDOM_WORDS)) for _ in range(RANDOM_PROMPTS)]
    return [
        chat(f"random-{i:03d}", "random", [{"role": "user", "content": text}])
        for i, text in enumerate(texts)
    ]


KINDS: Mapping[str, Callable[[], list[Prompt]]] = {
    "quote": lambda: _measured("quote"),
    "free": lambda: _measured("free"),
    "code-edit": _edits,
    "random": _random_words,
}
"""The kinds of prompts, each of which is a workload too."""

WORKLOADS = (*KINDS, "rag", "mixed", "structured", "shift")


def workload(name: str, split: Split) -> Workload:
    """The workload of a name.

    `rag` alternates quoting and free chats, `mixed` all kinds, and `structured` free chats whose
    answers have a schema with those whose answers are calls of tools. `shift` changes from quoting
    to free chats, and `shift:A:B` from kind A to kind B. Any other name is a file: see
    `read_prompts`.

    Raises:
        ValueError: the file cannot be used, or the split leaves no prompts.
        OSError: the file cannot be read.
    """

    def pool(kind: str) -> list[Prompt]:
        return prompts_in(split, KINDS[kind]())

    if name == "random":
        return Workload(name, [[pool(name)]], (HOTTEST,))
    if name in KINDS:
        return Workload(name, [[pool(name)]])
    if name == "rag":
        return Workload(name, [[pool("quote"), pool("free")]])
    if name == "structured":
        free = pool("free")
        return Workload(name, [[with_schemas(free), with_tools(free)]])
    if name == "mixed":
        return Workload(name, [[pool(kind) for kind in KINDS]], MIXED_TEMPERATURES)
    if name == "shift" or name.startswith("shift:"):
        return Workload(name, [[pool(kind)] for kind in _phases(name)])
    prompts = prompts_in(split, read_prompts(Path(name)))
    if not prompts:
        raise ValueError(f"{name}: the split {split} has no prompts; use a larger file")
    return Workload(Path(name).name, [[prompts]])


def _phases(name: str) -> list[str]:
    kinds = name.split(":")[1:] or ["quote", "free"]
    for kind in kinds:
        if kind not in KINDS:
            raise ValueError(
                f"{name}: no kind of prompts {kind!r}; the kinds are {', '.join(KINDS)}"
            )
    if len(kinds) < 2:
        raise ValueError(f"{name}: give two kinds, e.g. shift:quote:free")
    return kinds

"""Many large formats of one key leave the engine's memory as it was.

`GRAMMARS` formats are sent to the demo, each another one. Some are refused while their text is
generated, some succeed. Then formats that keep their lexers busy run at once.
"""

import asyncio
import json
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.e2e.served import Samples, Served

pytestmark = [pytest.mark.engine, pytest.mark.prove]

GRAMMARS = int(os.environ.get("GRAMMARS", "2000"))
WARM_UP = 150
AT_ONCE = 4
AT_ONCE_BUSY = 128
BUDGET = 64 << 20
MIB = 1 << 20


def text(chars: int, seed: int) -> str:
    """Letters and spaces that no other seed gives."""
    return "".join(random.Random(seed).choices("abcdefghijklmnopqrstuvwxyz ", k=chars))


def words(count: int, chars: int, seed: int) -> list[str]:
    whole = text(count * chars, seed)
    return [f"{i}{whole[i * chars : (i + 1) * chars]}" for i in range(count)]


def outputs(seed: int) -> dict[str, Any]:
    """One of nine kinds of large formats, in turns."""
    match seed % 9:
        case 0:
            return {"json": {"const": text(15_000, seed)}}
        case 1:
            return {"json": {"enum": words(1500, 100, seed)}}
        case 2:
            return {"choice": words(1500, 100, seed)}
        case 3:
            return {"regex": text(18_000, seed)}
        case 4:
            return {"grammar": f'start: "{text(20_000, seed)}"'}
        case 5:
            return {"grammar": "start: " + " | ".join(f'"{w}"' for w in words(400, 100, seed))}
        case 6:
            names = {name: {"type": "integer"} for name in words(200, 100, seed)}
            return {"json": {"type": "object", "properties": names}}
        case 7:
            # More branches than a parser may follow: refused after the first token, on any machine.
            branches = (f'"{word}" [a-z]' for word in words(2600, 12, seed))
            return {"grammar": f"root ::= {' | '.join(branches)}"}
        case _:
            return {"regex": f"[a-z ]*{text(20, seed)}[a-z ]{{60}}[xyz]"}


def body(seed: int) -> dict[str, Any]:
    # Every sixth generates until its tokens take too long, if they do.
    tokens = 200 if seed % 18 in (0, 3, 4) else 8
    return {"prompt": "a", "max_tokens": tokens, "structured_outputs": outputs(seed)}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The demo in a server of its own, with a small budget."""
    log = tmp_path_factory.mktemp("grammars") / "server.log"
    flags = ("--max-compiled-grammar-bytes", str(BUDGET))
    served = Served.start_beside(log, *flags)
    yield served
    assert served.stop() == 0, served.tail()
    assert "Traceback" not in served.log.read_text(errors="replace"), served.tail()


class Memory:
    """The resident memory of the engine, and its peak."""

    def __init__(self, served: Served) -> None:
        self._engine = served.engine
        self.peak = 0

    def now(self) -> int:
        rss = int(self._engine.memory_info().rss)
        self.peak = max(self.peak, rss)
        return rss


async def send(served: Served, seeds: range, memory: Memory) -> Counter[str]:
    """Sends formats, `AT_ONCE` at a time. Counts the answers by status and code."""
    answers: Counter[str] = Counter()
    pending = iter(seeds)
    limits = httpx.Timeout(600)
    async with httpx.AsyncClient(base_url=served.url, trust_env=False, timeout=limits) as client:

        async def work() -> None:
            for seed in pending:
                response = await client.post("/v1/completions", json=body(seed))
                error = response.json().get("error") or {}
                answers[f"{response.status_code} {error.get('code') or ''}".strip()] += 1
                assert response.status_code in (200, 400), response.text[:300]
                resident = memory.now()
                if not answers.total() % 100:
                    print(
                        f"{answers.total()}: {resident / MIB:.0f} MiB, {dict(answers)}", flush=True
                    )

        await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    return answers


def test_many_large_formats_leave_the_engines_memory_as_it_was(served: Served) -> None:
    memory = Memory(served)
    asyncio.run(send(served, range(WARM_UP), memory))
    before, began = settled(memory), time.monotonic()
    memory.peak = 0
    answers = asyncio.run(send(served, range(WARM_UP, WARM_UP + GRAMMARS), memory))
    took, peak, after = time.monotonic() - began, memory.peak, settled(memory)
    kept = served.scrape()("specgate_compiled_grammar_bytes")
    print(
        f"{GRAMMARS} formats in {took:.0f} s: {json.dumps(answers)}; engine {before / MIB:.0f} MiB "
        f"before, {after / MIB:.0f} MiB after ({after / before - 1:+.1%}), peak {peak / MIB:.0f} "
        f"MiB; {kept / MIB:.0f} MiB kept"
    )
    assert answers["200"] > GRAMMARS / 4
    assert answers["400 constraint_too_complex"] > GRAMMARS / 20
    assert kept <= BUDGET
    assert after < 1.1 * before


def busy(seed: int) -> dict[str, Any]:
    """A small format whose lexer has new states after each token, until it has too many."""
    letters = "".join(random.Random(seed).sample("defghijklmnop", 6))
    regex = rf"(.|\n)*[{letters}](.|\n){{150}}[abc]"
    limits = {"max_tokens": 400, "temperature": 1.3, "seed": seed}
    return {"prompt": "a", **limits, "structured_outputs": {"regex": regex}}


async def send_at_once(
    served: Served, bodies: list[dict[str, Any]], memory: Memory
) -> tuple[Counter[str], float]:
    """Sends all bodies at once. The answers by status, and the most bytes of formats."""
    most_bytes = 0.0
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(
        base_url=served.url, trust_env=False, timeout=600, limits=limits
    ) as client:
        sent = [asyncio.create_task(client.post("/v1/completions", json=body)) for body in bodies]
        while not all(each.done() for each in sent):
            await asyncio.sleep(0.3)
            memory.now()
            text = (await client.get("/metrics")).text
            most_bytes = max(most_bytes, Samples(text)("specgate_compiled_grammar_bytes"))
        return Counter(str(each.result().status_code) for each in sent), most_bytes


def test_lexers_that_learn_at_once_are_bounded_together(served: Served) -> None:
    """Without a bound they take 2 GB, from requests of 100 characters.

    Beside compiled formats and what they learn, the process has what has just ended: the allocator
    gives it back a second later.
    """
    memory = Memory(served)
    # What so many sequences take by themselves is there after the first ones.
    warm_up = [busy(seed) for seed in range(AT_ONCE_BUSY)]
    asyncio.run(send_at_once(served, warm_up, memory))
    before = settled(memory)
    memory.peak = 0
    attack = [busy(seed) for seed in range(AT_ONCE_BUSY, 2 * AT_ONCE_BUSY)]
    answers, most_bytes = asyncio.run(send_at_once(served, attack, memory))
    print(
        f"{AT_ONCE_BUSY} at once: {dict(answers)}; {most_bytes / MIB:.0f} MiB of formats at most; "
        f"engine {before / MIB:.0f} MiB before, peak {memory.peak / MIB:.0f} MiB"
    )
    assert set(answers) <= {"200", "400"}
    assert most_bytes < 2 * BUDGET
    assert memory.peak - before < 3 * BUDGET
    small = served.post(
        "/v1/completions", {"prompt": "a", "structured_outputs": {"choice": ["a"]}}
    ).json()
    assert small["choices"][0]["text"] == "a"


def settled(memory: Memory) -> int:
    """The least of what is resident within some seconds: freed memory is given back after one."""
    readings = []
    for _ in range(8):
        readings.append(memory.now())
        time.sleep(0.5)
    return min(readings)

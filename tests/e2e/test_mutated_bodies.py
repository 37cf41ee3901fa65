"""Nearly valid bodies for every operation, to a server: each is answered with 2xx or 4xx.

`BODIES` sets the number that a server on the fake engine gets, and `FIRST_BODY` the first of them;
the demo on vLLM gets `DEMO_BODIES`, by default a tenth, from a million on.
"""

import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.e2e.served import Served
from tests.server.contract.contract import contract
from tests.server.hostile.mutations import mutated

BODIES = int(os.environ.get("BODIES", "10000"))
DEMO_BODIES = int(os.environ.get("DEMO_BODIES", BODIES // 10))
FIRST_BODY = int(os.environ.get("FIRST_BODY", "0"))
DEMO_FROM = 1_000_000
"""The demo gets other bodies than the fake engine."""

LIMIT_S = 60.0
"""The longest that one request may take."""

pytestmark = [
    pytest.mark.engine,
    pytest.mark.prove,
    pytest.mark.timeout(max(BODIES, DEMO_BODIES) / 2 + 300),
]

CONTEXT = ("--max-model-len", "256")
"""It bounds what a body can have generated."""

FAKE = ("--engine", "fake", "--engine-args", '{"fake_step_ms": 0}', "--enable-lora")
GREEDY = {"prompt": "def area(", "max_tokens": 16, "temperature": 0}
GREEDY_EVERY = 100
"""How many bodies are between two ordinary requests."""


@contextmanager
def serving(log: Path, *flags: str) -> Iterator[Served]:
    """A server that ends well."""
    served = Served.start_beside(log, "--no-access-log", *CONTEXT, *flags)
    try:
        yield served
        assert served.process.poll() is None, f"the server died:\n{served.tail()}"
        assert served.stop() == 0, served.tail()
        assert "Traceback" not in log.read_text(errors="replace"), served.tail()
    finally:
        served.process.kill()


def send_all(served: Served, seeds: range) -> Counter[tuple[str, int]]:
    """Sends the bodies one after the other; returns path and status -> how often.

    Ordinary requests between them must have the same text throughout.
    """
    seen: Counter[tuple[str, int]] = Counter()
    text = ordinary_text(served)
    with httpx.Client(base_url=served.url, trust_env=False, timeout=LIMIT_S) as client:
        for seed in seeds:
            method, path, content = mutated(seed)
            headers = {"content-type": "application/json"}
            response = client.request(method, path, content=content, headers=headers)
            status = response.status_code
            details = (seed, method, path, content[:300], response.text[:500])
            assert 200 <= status < 300 or 400 <= status < 500, details
            contract().check(response)
            seen[path, status] += 1
            if seed % GREEDY_EVERY == 0:
                assert ordinary_text(served) == text, details
    served.wait_until_idle()
    return seen


def ordinary_text(served: Served) -> str:
    """The text of a small request."""
    text: str = served.post("/v1/completions", GREEDY).json()["choices"][0]["text"]
    return text


def check_and_show(seen: Counter[tuple[str, int]], seconds: float) -> None:
    """Prints a table; bodies of every operation must be among those answered and those refused."""
    paths = sorted({path for path, _ in seen})
    statuses = sorted({status for _, status in seen})
    rows = [
        f"| {sum(seen.values()):,} bodies in {seconds:.0f} s | {' | '.join(map(str, statuses))} |"
    ]
    rows.append(f"|{'---|' * (len(statuses) + 1)}")
    for path in paths:
        rows.append(f"| `{path}` | {' | '.join(str(seen[path, status]) for status in statuses)} |")
    print("\n" + "\n".join(rows))
    operations = contract().document["paths"].items()
    with_json = [
        path
        for path, item in operations
        for operation in item.values()
        if "application/json" in operation.get("requestBody", {}).get("content", ())
    ]
    assert paths == sorted(set(with_json)), "an upload is a form: see test_files.py"
    for path in paths:
        assert any(seen[path, status] for status in statuses if status >= 400), path
    assert sum(count for (_, status), count in seen.items() if status < 300) > len(paths)


def test_mutated_bodies_to_the_fake_engine(tmp_path: Path) -> None:
    with serving(tmp_path / "fake.log", *FAKE) as served:
        begun = time.monotonic()
        seen = send_all(served, range(FIRST_BODY, FIRST_BODY + BODIES))
        check_and_show(seen, time.monotonic() - begun)


def test_mutated_bodies_to_the_demo(tmp_path: Path) -> None:
    first = DEMO_FROM + FIRST_BODY
    with serving(tmp_path / "demo.log") as served:
        begun = time.monotonic()
        seen = send_all(served, range(first, first + DEMO_BODIES))
        check_and_show(seen, time.monotonic() - begun)

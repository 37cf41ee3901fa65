"""Two replicas of the demo under Ray Serve: 50 switches in each mode leave every text plain."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests import ray_cluster

pytest.importorskip("ray.serve", reason=ray_cluster.ABSENT)

from tests.server.ray_serve.serving import SWITCHES, Fleet, serving, switch_under_load

pytestmark = [
    pytest.mark.prove,
    pytest.mark.engine,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(1800),
    pytest.mark.filterwarnings("default"),
]

ARGS = {"max_model_len": 512, "kv_cache_memory_bytes": "128MiB", "max_num_seqs": 8}
METHODS = ("ngram", "draft", "none", "eagle", "auto", "medusa", "eagle3", "suffix")
PROMPTS = (
    "def fibonacci(n):",
    "class Stack:\n    def push(self, item):",
    "import os\n\ndef read(path):",
    "for i in range(10):\n    print(i)\nfor i in range(10):\n    print(",
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def demo() -> AsyncIterator[Fleet]:
    async with serving(ARGS, 2) as made:
        yield made


@pytest.mark.parametrize("mode", ["immediate", "new_requests", "drain"])
async def test_fifty_switches_under_load(demo: Fleet, mode: str) -> None:
    load, generations = await switch_under_load(demo, mode, METHODS, PROMPTS)
    assert load.faults == []
    assert load.done >= SWITCHES
    assert generations == list(range(generations[0], generations[0] + SWITCHES))

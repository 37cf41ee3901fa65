"""Two servers behind haproxy as it is deployed: what the affinity of chats saves.

The same chats are asked twice: through haproxy, which sends a chat's turns to one server, and turn
by turn to both servers in turn.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from demo.prompts import load_prompts
from tests.deploy.rehearsal import balancing, haproxy
from tests.e2e.served import Served, wait_until

pytestmark = [
    pytest.mark.engine,
    pytest.mark.prove,
    pytest.mark.timeout(600),
    pytest.mark.skipif(haproxy() is None, reason="haproxy is missing"),
]

CHATS, TURNS, MAX_TOKENS = 12, 4, 48
PROMPTS = [prompt.messages for prompt in load_prompts()][: 2 * CHATS]


@dataclass
class Totals:
    """What the answers of all chats say."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    drafted: int = 0
    accepted: int = 0

    def add(self, answer: dict[str, Any]) -> None:
        usage, speculation = answer["usage"], answer["metrics"]["speculative_decoding"]
        self.prompt_tokens += usage["prompt_tokens"]
        self.cached_tokens += usage["prompt_tokens_details"]["cached_tokens"]
        self.drafted += speculation["num_draft_tokens"]
        self.accepted += speculation["num_accepted_draft_tokens"]

    def __str__(self) -> str:
        return (
            f"{self.cached_tokens / self.prompt_tokens:.0%} of {self.prompt_tokens} prompt tokens "
            f"cached, {self.accepted} of {self.drafted} drafts accepted"
        )


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Served, Served]]:
    with ExitStack() as stack:
        servers = []
        for name in ("one", "two"):
            server = Served.start_beside(tmp_path / f"{name}.log", "--enable-prefix-caching")
            stack.callback(server.kill)
            server.switch("suffix")
            servers.append(server)
        yield servers[0], servers[1]


def has_servers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/ready", trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def ask_all(chats: Sequence[Sequence[Any]], url: Callable[[int, int], str]) -> Totals:
    """Asks all chats turn by turn; `url` is the address for a chat and a turn."""
    totals, histories = Totals(), [list(chat) for chat in chats]
    for turn in range(TURNS):
        for number, messages in enumerate(histories):
            body = {"messages": messages, "max_tokens": MAX_TOKENS, "temperature": 0}
            answer = httpx.post(
                f"{url(number, turn)}/v1/chat/completions", json=body, trust_env=False, timeout=60
            )
            assert answer.status_code == 200, answer.text
            totals.add(answer.json())
            text = answer.json()["choices"][0]["message"]["content"]
            messages.append({"role": "assistant", "content": text})
            messages.append({"role": "user", "content": f"Write it again, change {turn}."})
    return totals


def test_the_turns_of_a_chat_find_their_prefix(pair: tuple[Served, Served], tmp_path: Path) -> None:
    addresses = {
        name: server.url.removeprefix("http://")
        for name, server in zip(("one", "two"), pair, strict=True)
    }
    with balancing(addresses, tmp_path) as balancer:
        wait_until(lambda: has_servers(balancer.url), 30, "the balancer has servers")
        together = ask_all(PROMPTS[:CHATS], lambda _number, _turn: balancer.url)
    apart = ask_all(PROMPTS[CHATS:], lambda number, turn: pair[(number + turn) % 2].url)
    print(f"\none server for each chat: {together}\nin turn: {apart}")
    shares = [t.cached_tokens / t.prompt_tokens for t in (together, apart)]
    assert shares[0] > 1.3 * shares[1]

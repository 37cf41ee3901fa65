"""`python -m demo.training.measure`: tokens per decode step of each proposer, on a running server.

Sends the 40 quoting and the 40 free chats of `demo/prompts.json`, one at a time, with each loaded
proposer at each temperature, and prints the table in docs/lab/demo.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from demo.prompts import KINDS, Prompt, PromptKind, load_prompts

MAX_TOKENS = 128
SEED = 1234
TEMPERATURES = (0.0, 0.7)


@dataclass(frozen=True, slots=True)
class Reply:
    """The figures of one completion.

    Attributes:
        tokens: completion tokens emitted by decode steps: all except the first, eos included.
        tokens_per_step: `mean_tokens_per_step` of the response; 1 without speculation.
        drafted, accepted: numbers of draft tokens.
        ended: the answer ended before the token limit.
    """

    tokens: int
    tokens_per_step: float
    drafted: int
    accepted: int
    ended: bool


@dataclass(frozen=True, slots=True)
class TableRow:
    """One row of the table, aggregated over the prompts of a kind.

    Attributes:
        acceptance_rate: accepted over drafted tokens; `None` without drafts.
        ended: share of the answers that ended before the token limit.
    """

    kind: PromptKind
    temperature: float
    proposer: str
    tokens_per_step: float
    acceptance_rate: float | None
    ended: float


def aggregate(
    kind: PromptKind, temperature: float, proposer: str, replies: Sequence[Reply]
) -> TableRow:
    """Divides all tokens by all decode steps, so that long answers weigh more."""
    steps = sum(reply.tokens / reply.tokens_per_step for reply in replies)
    drafted = sum(reply.drafted for reply in replies)
    return TableRow(
        kind=kind,
        temperature=temperature,
        proposer=proposer,
        tokens_per_step=sum(reply.tokens for reply in replies) / steps if steps else 1.0,
        acceptance_rate=sum(r.accepted for r in replies) / drafted if drafted else None,
        ended=sum(reply.ended for reply in replies) / len(replies),
    )


def read_reply(body: dict[str, Any]) -> Reply:
    """Reads the figures from the body of a chat completion."""
    figures = (body.get("metrics") or {}).get("speculative_decoding") or {}
    return Reply(
        tokens=max(0, int(body["usage"]["completion_tokens"]) - 1),
        tokens_per_step=float(figures.get("mean_tokens_per_step") or 1.0),
        drafted=int(figures.get("num_draft_tokens") or 0),
        accepted=int(figures.get("num_accepted_draft_tokens") or 0),
        ended=body["choices"][0]["finish_reason"] == "stop",
    )


def measure(
    client: httpx.Client,
    prompts: Sequence[Prompt],
    proposer: str,
    temperature: float,
    max_tokens: int = MAX_TOKENS,
) -> list[Reply]:
    """Sends `prompts` one after another with a pinned proposer.

    Args:
        client: with the server's base URL and, if needed, a key.
        prompts: the prompts to send.
        proposer: name of a loaded proposer, with `:k` to limit its draft tokens, or `none`.
        temperature: sampling temperature; the seed is fixed.
        max_tokens: token limit of an answer.

    Raises:
        httpx.HTTPStatusError: the server refused a request.
    """
    name, _, k = proposer.partition(":")
    spec_decode: dict[str, Any] = {"proposer": name}
    if k:
        spec_decode["num_speculative_tokens"] = int(k)
    model = client.get("/v1/models").raise_for_status().json()["data"][0]["id"]
    replies = []
    for prompt in prompts:
        body = {
            "model": model,
            "messages": prompt.messages,
            "max_tokens": max_tokens,
            "temperature": temperature,
            "seed": SEED,
            "spec_decode": spec_decode,
        }
        answer = client.post("/v1/chat/completions", json=body).raise_for_status()
        replies.append(read_reply(answer.json()))
    return replies


def loaded_proposers(client: httpx.Client) -> list[str]:
    """Names of the loaded proposers, from an admin route (needs loopback or an admin key)."""
    body = client.get("/v1/proposers").raise_for_status().json()
    entries = body if isinstance(body, list) else body.get("data") or body.get("proposers") or []
    return [str(entry["name"]) for entry in entries]


def table(rows: Iterable[TableRow]) -> Iterator[str]:
    """The lines of a Markdown table, each as soon as its row is known."""
    head = (
        "prompts",
        "temperature",
        "proposer",
        "tokens per decode step",
        "accepted",
        "ends by itself",
    )
    yield f"| {' | '.join(head)} |"
    yield "|---|---|---|---|---|---|"
    for row in rows:
        rate = "" if row.acceptance_rate is None else f"{row.acceptance_rate:.0%}"
        yield (
            f"| {row.kind} | {row.temperature:g} | `{row.proposer}` "
            f"| {row.tokens_per_step:.2f} | {rate} | {row.ended:.0%} |"
        )


def main(argv: list[str] | None = None) -> None:
    """Measures and prints the table."""
    parser = argparse.ArgumentParser(prog="python -m demo.training.measure", description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--api-key", default="", help="inference key")
    parser.add_argument(
        "--proposers",
        default="",
        metavar="NAME[:K],...",
        help="default: none and every loaded proposer",
    )
    parser.add_argument("--max-tokens", type=int, default=MAX_TOKENS)
    parser.add_argument("--limit", type=int, default=0, help="prompts per kind; 0 for all")
    options = parser.parse_args(argv)
    headers = {"Authorization": f"Bearer {options.api_key}"} if options.api_key else {}
    with httpx.Client(base_url=options.url, headers=headers, timeout=300) as client:
        names = (
            options.proposers.split(",")
            if options.proposers
            else ["none", *(name for name in loaded_proposers(client) if name != "none")]
        )
        rows = (
            _table_row(client, kind, temperature, name, options.max_tokens, options.limit)
            for kind in KINDS
            for temperature in TEMPERATURES
            for name in names
        )
        for line in table(rows):
            print(line, flush=True)


def _table_row(
    client: httpx.Client,
    kind: PromptKind,
    temperature: float,
    proposer: str,
    max_tokens: int,
    limit: int,
) -> TableRow:
    prompts = [prompt for prompt in load_prompts() if prompt.kind == kind]
    replies = measure(client, prompts[: limit or None], proposer, temperature, max_tokens)
    return aggregate(kind, temperature, proposer, replies)


if __name__ == "__main__":
    main()

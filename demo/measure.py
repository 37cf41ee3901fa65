"""`python -m demo.measure`: what each proposer gains on the demo prompts, from a running server.

Sends the 40 quoting and the 40 free chats of `demo/prompts.json`, one at a time, with each loaded
proposer at each temperature, and prints the table of demo/README.md.
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
    """One completion's figures.

    Attributes:
        tokens: completion tokens that decode steps emitted: all but the first, eos included.
        tokens_per_step: `mean_tokens_per_step` of the response; 1 without speculation.
        drafted, accepted: draft tokens.
        ended: the generation ended by itself.
    """

    tokens: int
    tokens_per_step: float
    drafted: int
    accepted: int
    ended: bool


@dataclass(frozen=True, slots=True)
class Line:
    """One row of the table: pooled over the prompts of a kind."""

    kind: PromptKind
    temperature: float
    proposer: str
    tokens_per_step: float
    acceptance_rate: float | None
    ended: float


def pool(kind: PromptKind, temperature: float, proposer: str, replies: Sequence[Reply]) -> Line:
    """Pool replies: all tokens over all decode steps, so that long answers weigh more."""
    steps = sum(reply.tokens / reply.tokens_per_step for reply in replies)
    drafted = sum(reply.drafted for reply in replies)
    return Line(
        kind=kind,
        temperature=temperature,
        proposer=proposer,
        tokens_per_step=sum(reply.tokens for reply in replies) / steps if steps else 1.0,
        acceptance_rate=sum(r.accepted for r in replies) / drafted if drafted else None,
        ended=sum(reply.ended for reply in replies) / len(replies),
    )


def read_reply(body: dict[str, Any]) -> Reply:
    """Take the figures out of a chat completion's body."""
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
    """Send `prompts` one after another with a pinned proposer.

    Args:
        client: with the server's base URL and, where needed, a key.
        prompts: what to send.
        proposer: a loaded proposer's name, with `:k` to cap its draft tokens, or `none`.
        temperature: of the sampling; the seed is fixed.
        max_tokens: most tokens per answer.

    Raises:
        httpx.HTTPStatusError: the server refused.
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
    """Names of the loaded proposers (an admin route: loopback, or with an admin key)."""
    body = client.get("/v1/proposers").raise_for_status().json()
    entries = body if isinstance(body, list) else body.get("data") or body.get("proposers") or []
    return [str(entry["name"]) for entry in entries]


def table(lines: Iterable[Line]) -> Iterator[str]:
    """The rows of a markdown table, each as soon as its line is there."""
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
    for line in lines:
        rate = "" if line.acceptance_rate is None else f"{line.acceptance_rate:.0%}"
        yield (
            f"| {line.kind} | {line.temperature:g} | `{line.proposer}` "
            f"| {line.tokens_per_step:.2f} | {rate} | {line.ended:.0%} |"
        )


def main(argv: list[str] | None = None) -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(prog="python -m demo.measure", description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--api-key", default="", help="inference key")
    parser.add_argument(
        "--proposers",
        default="",
        metavar="NAME[:K],...",
        help="default: every loaded one, and none",
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
        lines = (
            _line(client, kind, temperature, name, options.max_tokens, options.limit)
            for kind in KINDS
            for temperature in TEMPERATURES
            for name in names
        )
        for row in table(lines):
            print(row, flush=True)


def _line(
    client: httpx.Client,
    kind: PromptKind,
    temperature: float,
    proposer: str,
    max_tokens: int,
    limit: int,
) -> Line:
    prompts = [prompt for prompt in load_prompts() if prompt.kind == kind]
    replies = measure(client, prompts[: limit or None], proposer, temperature, max_tokens)
    return pool(kind, temperature, proposer, replies)


if __name__ == "__main__":
    main()

"""Many pairs of tokens from the verifier, drafted as proposers draft.

The vocabulary has four tokens; the target's logits depend on the tokens before. Each row gets two
drafts. If the first is rejected, one more step drafts and verifies the second token.
"""

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from engine_adapter.vllm_engine.worker.verification.verifier import Verifier, VerifyInputs

from engine_adapter.vllm_engine.worker.verification import logits_processors
from engine_adapter.vllm_engine.worker.verification.rejection import SampledDraft
from tests.engine_adapter.vllm_engine.support.exact import Floats, Sampling, distribution

V = 4
PROMPT = 2
"""The only token of the prompt."""

CPU = torch.device("cpu")

_RNG = np.random.default_rng(11)
TARGET = [_RNG.normal(0, 1.2, (V,) * n) for n in (1, 2, 3)]
"""Logits of the first, second and third token, given the tokens before."""

DRAFT = [torch.from_numpy(_RNG.normal(0, 1.0, (V,) * n)).softmax(-1) for n in (1, 2)]
"""q: the distribution of the first draft, and of the second after each first."""

RULES = ("one-hot", "token", "block")


@dataclass
class World:
    """How drafts are made; correct by default. Each field can introduce a mistake or a condition.

    Attributes:
        q: what drafts are sampled from.
        stated: the distributions that the verifier gets, if not `q`.
        allowed: the second tokens that a grammar allows after each first, bool [V, V].
        verifies_dropped: whether the first dropped draft of a row is verified.
        shifts_rows: whether each row gets its neighbour's drafts.
        drops: a first draft whose row is then verified without drafts.
        ends: first drafts after which a row drafts nothing more.
    """

    q: Sequence[torch.Tensor] = tuple(DRAFT)
    stated: Sequence[torch.Tensor] | None = None
    allowed: npt.NDArray[np.bool_] | None = None
    verifies_dropped: bool = True
    shifts_rows: bool = False
    drops: int | None = None
    ends: Sequence[int] = ()


def expected(sampling: Sampling, allowed: npt.NDArray[np.bool_] | None = None) -> Floats:
    """The exact joint distribution of the first two tokens, [V, V]."""
    first = distribution(TARGET[0], sampling, [PROMPT])
    second = []
    for token in range(V):
        logits = TARGET[1][token].copy()
        if allowed is not None:
            logits[~allowed[token]] = -np.inf
        second.append(distribution(logits, sampling, [PROMPT, token]))
    return first[:, None] * np.array(second)


def observed(
    rules: Sequence[str], sampling: Sampling, samples: int, world: World | None = None
) -> dict[str, npt.NDArray[np.int64]]:
    """How often each pair was emitted, [V, V], by rule; the rows take the rules in turn."""
    world = world or World()
    rows = samples * len(rules)
    rule = [rules[i % len(rules)] for i in range(rows)]
    gc.disable()  # a million small objects without references
    try:
        with torch.inference_mode():
            pairs = _pairs(rule, sampling, world)
    finally:
        gc.enable()
    counts = {}
    for i, name in enumerate(rules):
        cells = np.bincount(pairs[i :: len(rules)] @ [V, 1], minlength=V * V)
        counts[name] = cells.reshape(V, V)
    return counts


def _pairs(rule: list[str], sampling: Sampling, world: World) -> npt.NDArray[np.int64]:
    rows = len(rule)
    verifier = Verifier(_sampler())
    history = torch.empty(rows, 0, dtype=torch.long)
    emitted = _step(verifier, rule, history, sampling, world)
    first = emitted[:, :1].long()
    pairs = torch.cat([first, emitted[:, 1:2].long()], dim=1)
    left = (pairs[:, 1] < 0).nonzero().squeeze(1)
    again = _step(verifier, [rule[i] for i in left.tolist()], first[left], sampling, world)
    pairs[left, 1] = again[:, 0].long()
    return pairs.numpy()


def _step(
    verifier: Verifier, rule: list[str], history: torch.Tensor, sampling: Sampling, world: World
) -> torch.Tensor:
    """Drafts up to the second token and verifies; the emitted tokens, int32 [B, width]."""
    drafts = _drafts(rule, history, world)
    text = torch.cat([history, drafts], dim=1)
    begun = history.shape[1]
    lengths = torch.full((len(rule),), 2 - begun)
    if world.allowed is not None:
        allowed = torch.from_numpy(world.allowed)
        lengths -= (~allowed[text[:, 0], text[:, 1]]).long()
    if world.drops is not None and not begun:
        lengths[drafts[:, 0] == world.drops] = 0
    drafted = torch.full_like(lengths, 2 - begun)
    if not begun:
        drafted[torch.isin(drafts[:, 0], torch.tensor(list(world.ends), dtype=torch.long))] = 1
    lengths = lengths.minimum(drafted)
    logits = _logits(text, begun, lengths, world)
    scheduled = torch.arange(2 - begun) < lengths[:, None]
    given = drafts.roll(1, 0) if world.shifts_rows else drafts
    verified = (lengths + world.verifies_dropped).minimum(drafted).tolist()
    known = {name: _sampled(begun, name == "block", world) for name in ("token", "block")}
    places = zip(rule, torch.cat([history, given], dim=1).tolist(), verified, strict=True)
    sampled = {
        row: known[name][first, second, length]
        for row, (name, (first, second), length) in enumerate(places)
        if name != "one-hot" and length
    }
    metadata = SimpleNamespace(
        num_draft_tokens=lengths.tolist(), draft_token_ids=given[scheduled].int()
    )
    rows = _metadata(sampling, history)
    rows.spec_token_ids = [
        row[:n] for row, n in zip(given.tolist(), metadata.num_draft_tokens, strict=True)
    ]
    output = verifier(metadata, VerifyInputs(sampled), logits, rows)
    emitted: torch.Tensor = output.sampled_token_ids
    if emitted.shape[1] < 2:
        emitted = torch.nn.functional.pad(emitted, (0, 1), value=-1)
    return emitted


def _drafts(rule: list[str], history: torch.Tensor, world: World) -> torch.Tensor:
    """Drafts up to the second token, int64 [B, n]."""
    one_hot = torch.tensor([name == "one-hot" for name in rule])
    text = history
    while text.shape[1] < 2:
        at = tuple(text.unbind(1))
        q = world.q[len(at)][at].expand(len(rule), V)
        # A one-hot draft may be any token, if it is chosen before the target is sampled.
        chosen = (text.sum(1) + torch.arange(len(rule)) // len(RULES)) % V
        token = torch.where(one_hot, chosen, torch.multinomial(q, 1).squeeze(1))
        text = torch.cat([text, token[:, None]], dim=1)
    return text[:, history.shape[1] :]


def _sampled(begun: int, block: bool, world: World) -> dict[tuple[int, int, int], SampledDraft]:
    """(first token, second token, n) -> the first n drafts after `begun` tokens, with their q."""
    first, second = world.stated or world.q
    drafts = {}
    for i, j in np.ndindex(V, V):
        tokens = np.array([i, j][begun:])
        q = torch.stack([first, second[i]][begun:]).float()
        whole = SampledDraft(tokens, q, block)
        drafts |= {(i, j, n): whole.truncated(n) for n in range(1, len(tokens) + 1)}
    return drafts


def _logits(text: torch.Tensor, begun: int, lengths: torch.Tensor, world: World) -> torch.Tensor:
    """The target's logits at each row's positions, [T + B, V]."""
    places = []
    for n in range(begun, 3):
        at = tuple(text[:, :n].unbind(1))
        logits = torch.from_numpy(TARGET[n])[at].expand(len(text), V)
        if n == 1 and world.allowed is not None:
            logits = logits.masked_fill(~torch.from_numpy(world.allowed)[at], float("-inf"))
        places.append(logits.float())
    every = torch.stack(places, dim=1)
    return every[torch.arange(3 - begun) <= lengths[:, None]]


def _sampler() -> Any:
    from vllm.v1.sample.sampler import Sampler

    return Sampler()


def _metadata(sampling: Sampling, history: torch.Tensor) -> Any:
    """vLLM's sampling metadata of rows with the same parameters."""
    from vllm import SamplingParams
    from vllm.v1.sample.logits_processor import BatchUpdate
    from vllm.v1.sample.metadata import SamplingMetadata

    rows = len(history)
    config = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_seqs=rows))
    processors = logits_processors.build(config, CPU)
    params = SamplingParams(min_p=sampling.min_p, logit_bias=dict(sampling.logit_bias) or None)
    added = [(row, params, None, []) for row in range(rows)]
    for processor in processors.all:
        processor.update_state(BatchUpdate(rows, removed=[], added=added, moved=[]))
    return SamplingMetadata(
        temperature=torch.full((rows,), sampling.temperature),
        all_greedy=False,
        all_random=True,
        top_p=torch.full((rows,), sampling.top_p) if sampling.top_p < 1 else None,
        top_k=torch.full((rows,), sampling.top_k, dtype=torch.int32) if sampling.top_k else None,
        generators={},
        max_num_logprobs=None,
        no_penalties=sampling.repetition_penalty == 1.0,
        prompt_token_ids=torch.full((rows, 1), PROMPT),
        frequency_penalties=torch.zeros(rows),
        presence_penalties=torch.zeros(rows),
        repetition_penalties=torch.full((rows,), sampling.repetition_penalty),
        output_token_ids=history.tolist(),
        allowed_token_ids_mask=None,
        bad_words_token_ids={},
        logitsprocs=processors,
        spec_token_ids=[[] for _ in range(rows)],
    )

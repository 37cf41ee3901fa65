"""Many pairs of tokens from the verifier, drafted as proposers draft.

The vocabulary has four tokens; the target's logits depend on the tokens before. Each row gets two
drafts. If the first is rejected, one more step drafts and verifies the second token.
"""

import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engine_adapter.vllm_engine.worker.verification.exact_match import ExactMatch
from engine_adapter.vllm_engine.worker.verification.rejection import (
    SampledDraft,
)
from tests.engine_adapter.vllm_engine.support.exact import Floats, Sampling, distribution
from tests.engine_adapter.vllm_engine.support.v2_states import rows_of, sampler_of

V = 4
PROMPT = 2
"""The only token of the prompt."""

_LENGTH = 3
"""Positions of a text."""

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
    verification = _Verification(sampling)
    nothing = torch.empty(len(rule), 0, dtype=torch.long)
    pairs, counts = _step(verification, rule, np.arange(len(rule)), nothing, world)
    left = (counts < 2).nonzero().squeeze(1)
    rest = [rule[i] for i in left.tolist()]
    again, _ = _step(verification, rest, left.numpy(), pairs[left, :1], world)
    pairs[left, 1] = again[:, 0]
    return pairs.numpy()


def _step(
    verification: "_Verification",
    rule: list[str],
    texts: npt.NDArray[np.int64],
    history: torch.Tensor,
    world: World,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Drafts up to the second token and verifies.

    Args:
        texts: the numbers of the B texts that take part.
        history: int64 [B, n], their tokens.

    Returns:
        int64 [B, 2], of which the first are emitted, and int32 [B], how many; it may be three.
    """
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
    given = drafts.roll(1, 0) if world.shifts_rows else drafts
    verified = (lengths + world.verifies_dropped).minimum(drafted).tolist()
    known = {name: _sampled(begun, name == "block", world) for name in ("token", "block")}
    places = zip(rule, torch.cat([history, given], dim=1).tolist(), verified, strict=True)
    sampled = {
        row: known[name][first, second, length]
        for row, (name, (first, second), length) in enumerate(places)
        if name != "one-hot" and length
    }
    emitted, counts = verification(texts, history, given, lengths, sampled, logits)
    return torch.nn.functional.pad(emitted, (0, max(0, 2 - emitted.shape[1])))[:, :2], counts


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
        tokens = torch.tensor([i, j][begun:])
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


class _Verification:
    """`ExactMatch` and the rules over vLLM's sampler, as the runner calls them.

    vLLM keeps the options of a request in its row of states. Here all texts with the same history
    share one; their noise differs, since each has positions of its own.
    """

    def __init__(self, sampling: Sampling) -> None:
        from engine_adapter.vllm_engine.worker.verification.rule_sampler import RuleSampler

        options = {
            "seed": 7,  # a request keeps its seed when its history grows
            "temperature": sampling.temperature,
            "top_k": sampling.top_k or -1,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            "repetition_penalty": sampling.repetition_penalty,
            "logit_bias": dict(sampling.logit_bias) or None,
        }
        histories: list[list[int]] = [[], *([token] for token in range(V))]
        requests = [([PROMPT], history, options) for history in histories]
        self._sampler = sampler_of(V, requests, RuleSampler)
        self._states = torch.from_numpy(rows_of(self._sampler, range(V + 1)))
        self._verify = ExactMatch(self._sampler)

    def __call__(
        self,
        texts: npt.NDArray[np.int64],
        history: torch.Tensor,
        drafts: torch.Tensor,
        lengths: torch.Tensor,
        sampled: Mapping[int, SampledDraft],
        logits: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Verifies the first `lengths` [B] of the drafts [B, n]; see `accept_matching`."""
        newest = history[:, -1:] if history.shape[1] else torch.full((len(texts), 1), PROMPT)
        scheduled = torch.arange(drafts.shape[1] + 1) <= lengths[:, None]
        inputs = torch.cat([newest, drafts], dim=1)[scheduled]
        state = self._states[newest[:, 0] + 1 if history.shape[1] else newest[:, 0] * 0]
        batch = _batch(state, texts * _LENGTH + history.shape[1], lengths + 1, inputs)
        self._sampler.drafts = sampled
        output = self._verify(logits, batch)
        return output.sampled_token_ids, output.num_sampled


def _batch(
    state: torch.Tensor,
    first: npt.NDArray[np.int64],
    sizes: torch.Tensor,
    inputs: torch.Tensor,
) -> Any:
    """vLLM's `InputBatch` of rows with these states, first positions and numbers of positions."""
    starts = torch.nn.functional.pad(sizes.cumsum(0), (1, 0))
    place = torch.arange(len(inputs)) - starts[:-1].repeat_interleave(sizes)
    context = torch.full((len(sizes),), _LENGTH + 1, dtype=torch.int32)
    return SimpleNamespace(
        num_reqs=len(sizes),
        num_draft_tokens_per_req=sizes.numpy() - 1,
        idx_mapping=state,
        idx_mapping_np=state.numpy(),
        expanded_idx_mapping=state.repeat_interleave(sizes),
        expanded_local_pos=place.int(),
        cu_num_logits=starts.int(),
        cu_num_logits_np=starts.numpy(),
        logits_indices=torch.arange(len(inputs)),
        input_ids=inputs,
        positions=torch.from_numpy(first).repeat_interleave(sizes) + place,
        seq_lens=context,
        seq_lens_cpu_upper_bound=context,
    )

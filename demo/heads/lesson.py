"""What heads learn from: chats with the target's hidden states, and its distributions as goals.

Positions are those of the row, from 0. A chain starts at a position whose next token is known: it
has the hidden state of its start and the token after it, and its step i (from 0) guesses the token
i + 2 positions after its start, as in decoding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from transformers import LlamaForCausalLM

from demo.packing import Tokenized

# EAGLE-3's auxiliary states: what goes into these layers of the target.
AUX_LAYERS = (2, 4, 5)
# Logits of most tokens say nothing about a batch. In training those tokens count which the target
# gives most weight in it, and as many others as this, drawn at random, which stand for the rest
# (sampled softmax, arXiv:1412.2007).
LIKELY_TOKENS, OTHER_TOKENS = 512, 128


@dataclass(frozen=True, slots=True)
class Lesson:
    """A batch of chats.

    Attributes:
        ids: int64 [rows, length + steps]; the last columns are padding for late steps.
        hidden: fp32 [rows, length, hidden], the target's output after its final norm.
        aux: fp32 [rows, length, 3 * hidden], the inputs of the layers `AUX_LAYERS` side by side.
        rows: int64 [places], the row of each place that a token of an answer follows.
        starts: int64 [places], its position; the places of a row are next to each other.
        tokens_at_play: int64 [tokens], ascending ids of the tokens that the logits are about.
        bias: fp32 [tokens], added to logits: the log of how many tokens each stands for.
        goals: fp32 [places, tokens], the target's probabilities of the token that follows.
        chains: for each step, the places where the chains that make it start, int64 [chains].
        kept: for each step, which chains of the step before make it; of the first, `chains[0]`.
    """

    ids: torch.Tensor
    hidden: torch.Tensor
    aux: torch.Tensor
    rows: torch.Tensor
    starts: torch.Tensor
    tokens_at_play: torch.Tensor
    bias: torch.Tensor
    goals: torch.Tensor
    chains: list[torch.Tensor]
    kept: list[torch.Tensor]

    def states(self, of: torch.Tensor, step: int) -> torch.Tensor:
        """Rows of `of` [rows, length, n] at the starts of the chains of `step`: [chains, n]."""
        places = self.chains[step]
        return of[self.rows[places], self.starts[places]]

    def spread(self, states: torch.Tensor, step: int) -> torch.Tensor:
        """The opposite of `states`: [rows, length, n], zero where no chain of `step` starts."""
        places = self.chains[step]
        where = (self.rows[places], self.starts[places])
        return states.new_zeros(*self.hidden.shape[:2], states.shape[-1]).index_put(where, states)

    def tokens(self, step: int) -> torch.Tensor:
        """int64 [chains]: for each chain of `step`, the token before the one that it guesses."""
        places = self.chains[step]
        return self.ids[self.rows[places], self.starts[places] + 1 + step]

    def logits(self, states: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
        """[chains, tokens], of states [chains, n] and an output matrix [vocabulary, n]."""
        return F.linear(states, matrix[self.tokens_at_play]) + self.bias

    def loss(self, step: int, logits: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy in nats of the target's distribution under the head's.

        Args:
            step: which guess.
            logits: any float dtype [chains, tokens]; -inf for a token that the head cannot
                write. The target's distribution is then taken among the others.
        """
        goals = self.goals[self.chains[step] + 1 + step]
        cannot = logits[0].isneginf()
        if bool(cannot.any()):
            goals = F.normalize(goals.masked_fill(cannot, 0), p=1, dim=-1)
            logits = logits.masked_fill(cannot, torch.finfo(logits.dtype).min)
        return F.cross_entropy(logits.float(), goals)

    def hits(self, step: int, logits: torch.Tensor) -> torch.Tensor:
        """Bool [chains]: whether the head's first choice is the text's own token; see `loss`."""
        places = self.chains[step]
        text = self.ids[self.rows[places], self.starts[places] + 2 + step]
        return self.tokens_at_play[logits.argmax(-1)] == text


@torch.no_grad()
def new_lesson(
    target: LlamaForCausalLM, chats: Sequence[Tokenized], steps: int, share: float = 1.0
) -> Lesson:
    """One pass of the target over `chats`.

    With a `share` below 1, for training, tokens are sampled too.

    Args:
        target: fp32, in evaluation mode.
        chats: a batch; what is masked is the prompt.
        steps: k, the number of guesses of a chain.
        share: of the chains that make a step, how many are taken on to the next.
    """
    length = max(len(chat.ids) for chat in chats)
    ids = torch.zeros(len(chats), length + steps, dtype=torch.int64)
    answer = torch.zeros(len(chats), length, dtype=torch.bool)
    for row, chat in enumerate(chats):
        ids[row, : len(chat.ids)] = torch.tensor(chat.ids)
        answer[row, max(1, chat.masked) - 1 : len(chat.ids) - 1] = True
    with torch.autocast("cpu", torch.bfloat16):
        out = target.model(ids[:, :length], use_cache=False, output_hidden_states=True)
        hidden = out.last_hidden_state.float()
        logits = target.lm_head(hidden[answer]).float()
    rows, starts = answer.nonzero(as_tuple=True)
    aux = torch.cat([out.hidden_states[layer].float() for layer in AUX_LAYERS], -1)
    chains, kept = _chains(rows, steps, share)
    tokens, bias = _tokens_at_play(logits, sampled=share < 1)
    goals = (logits[:, tokens] + bias).softmax(-1)
    return Lesson(ids, hidden, aux, rows, starts, tokens, bias, goals, chains, kept)


def _tokens_at_play(logits: torch.Tensor, *, sampled: bool) -> tuple[torch.Tensor, torch.Tensor]:
    vocabulary = logits.shape[1]
    bias = torch.zeros(vocabulary)
    if not sampled:
        return torch.arange(vocabulary), bias
    order = logits.softmax(-1).sum(0).argsort(descending=True)
    likely, rest = order[:LIKELY_TOKENS], order[LIKELY_TOKENS:]
    others = rest[torch.randperm(len(rest))[:OTHER_TOKENS]]
    bias[others] = math.log(len(rest) / len(others))
    tokens = torch.cat([likely, others]).sort().values
    return tokens, bias[tokens]


def _chains(
    rows: torch.Tensor, steps: int, share: float
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """`chains` and `kept` of a lesson: all that do not outrun their row, fewer at every step."""
    chains: list[torch.Tensor] = []
    kept: list[torch.Tensor] = []
    left = torch.randperm(len(rows)) if share < 1 else torch.arange(len(rows))
    for step in range(steps):
        # The goal of step i is that of the place i + 1 entries on, if it is still the same row.
        last = left + 1 + step
        fits = (last < len(rows)) & (rows[last.clamp(max=len(rows) - 1)] == rows[left])
        kept.append(fits.nonzero()[: int(len(left) * (share if step else 1)), 0])
        left = left[kept[-1]]
        chains.append(left)
    return chains, [chains[0], *kept[1:]]

"""Training data of heads: chats with the target's hidden states and output distributions.

Positions are counted from 0 in each row. A chain starts at a position whose next token is known:
its inputs are the hidden state at its start and the token after it, and its step i (from 0)
predicts the token i + 2 positions after its start, as in decoding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from transformers import LlamaForCausalLM

from demo.training.packing import Tokenized
from demo.training.precision import mixed_precision

# EAGLE-3's auxiliary hidden states are the inputs of these layers of the target.
AUX_LAYERS = (2, 4, 5)
# Most tokens have almost no probability in a batch. Training uses the tokens that the target gives
# the most probability in the batch, and a random sample that represents all others (sampled
# softmax, arXiv:1412.2007).
LIKELY_TOKENS, OTHER_TOKENS = 512, 128


@dataclass(frozen=True, slots=True)
class TeacherBatch:
    """A batch of chats.

    Attributes:
        ids: int64 [rows, length + steps]; the last columns are padding for late steps.
        hidden: fp32 [rows, length, hidden], the target's output after its final norm.
        aux: fp32 [rows, length, 3 * hidden], the concatenated inputs of the layers `AUX_LAYERS`.
        rows: int64 [places], the row of each place (a position before a token of an answer).
        starts: int64 [places], its position in the row; the places of a row are consecutive.
        token_subset: int64 [tokens], ascending ids of the tokens that have logits.
        bias: fp32 [tokens], added to logits: the log of the number of tokens that each represents.
        target_probs: fp32 [places, tokens], the target's distribution of the next token.
        chains: for each step, int64 [chains]: the start places of the chains that have this step.
        continued: for each step, int64 [chains]: the indices of these chains in the step before;
            `chains[0]` for the first step.
    """

    ids: torch.Tensor
    hidden: torch.Tensor
    aux: torch.Tensor
    rows: torch.Tensor
    starts: torch.Tensor
    token_subset: torch.Tensor
    bias: torch.Tensor
    target_probs: torch.Tensor
    chains: list[torch.Tensor]
    continued: list[torch.Tensor]

    def states(self, states: torch.Tensor, step: int) -> torch.Tensor:
        """[chains, n]: the entries of `of` [rows, length, n] at the chain starts of `step`."""
        places = self.chains[step]
        return states[self.rows[places], self.starts[places]]

    def spread(self, states: torch.Tensor, step: int) -> torch.Tensor:
        """The inverse of `states`: [rows, length, n], zero where no chain of `step` starts."""
        places = self.chains[step]
        where = (self.rows[places], self.starts[places])
        return states.new_zeros(*self.hidden.shape[:2], states.shape[-1]).index_put(where, states)

    def tokens(self, step: int) -> torch.Tensor:
        """int64 [chains]: for each chain of `step`, the token before the predicted one."""
        places = self.chains[step]
        return self.ids[self.rows[places], self.starts[places] + 1 + step]

    def logits(self, states: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
        """Logits [chains, tokens] from states [chains, n] and an output matrix [vocabulary, n]."""
        return F.linear(states, matrix[self.token_subset]) + self.bias

    def loss(self, step: int, logits: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy in nats of the head's distribution relative to the target's.

        Args:
            step: step of the chains, from 0.
            logits: any float dtype [chains, tokens]; -inf for a token that the head cannot draft.
                The target's distribution is then restricted to the other tokens.
        """
        expected = self.target_probs[self.chains[step] + 1 + step]
        cannot = logits[0].isneginf()
        if bool(cannot.any()):
            expected = F.normalize(expected.masked_fill(cannot, 0), p=1, dim=-1)
            logits = logits.masked_fill(cannot, torch.finfo(logits.dtype).min)
        return F.cross_entropy(logits.float(), expected)

    def hits(self, step: int, logits: torch.Tensor) -> torch.Tensor:
        """Bool [chains]: whether the head's most likely token is the text's token; see `loss`."""
        places = self.chains[step]
        text = self.ids[self.rows[places], self.starts[places] + 2 + step]
        return self.token_subset[logits.argmax(-1)] == text


@torch.no_grad()
def teacher_batch(
    target: LlamaForCausalLM, chats: Sequence[Tokenized], steps: int, share: float = 1.0
) -> TeacherBatch:
    """One pass of the target over `chats`.

    With a `share` below 1, which is for training, the tokens are sampled too.

    Args:
        target: fp32, in evaluation mode.
        chats: with masked prompts.
        steps: k, the number of steps of a chain.
        share: the fraction of the chains of a step that continue to the next.
    """
    length = max(len(chat.ids) for chat in chats)
    ids = torch.zeros(len(chats), length + steps, dtype=torch.int64)
    answer = torch.zeros(len(chats), length, dtype=torch.bool)
    for row, chat in enumerate(chats):
        ids[row, : len(chat.ids)] = torch.tensor(chat.ids)
        answer[row, max(1, chat.masked) - 1 : len(chat.ids) - 1] = True
    with mixed_precision():
        out = target.model(ids[:, :length], use_cache=False, output_hidden_states=True)
        hidden = out.last_hidden_state.float()
        logits = target.lm_head(hidden[answer]).float()
    rows, starts = answer.nonzero(as_tuple=True)
    aux = torch.cat([out.hidden_states[layer].float() for layer in AUX_LAYERS], -1)
    chains, continued = _chains(rows, steps, share)
    tokens, bias = _choose_tokens(logits, sampled=share < 1)
    probs = (logits[:, tokens] + bias).softmax(-1)
    return TeacherBatch(ids, hidden, aux, rows, starts, tokens, bias, probs, chains, continued)


def _choose_tokens(logits: torch.Tensor, *, sampled: bool) -> tuple[torch.Tensor, torch.Tensor]:
    vocabulary = logits.shape[1]
    bias = torch.zeros(vocabulary)
    if not sampled:
        return torch.arange(vocabulary), bias
    order = logits.softmax(-1).sum(0).argsort(descending=True)
    likely, tail = order[:LIKELY_TOKENS], order[LIKELY_TOKENS:]
    sampled_tail = tail[torch.randperm(len(tail))[:OTHER_TOKENS]]
    bias[sampled_tail] = math.log(len(tail) / len(sampled_tail))
    tokens = torch.cat([likely, sampled_tail]).sort().values
    return tokens, bias[tokens]


def _chains(
    rows: torch.Tensor, steps: int, share: float
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """`chains` and `continued` of a batch: all that fit into their row, fewer at every step."""
    chains: list[torch.Tensor] = []
    continued: list[torch.Tensor] = []
    places = torch.randperm(len(rows)) if share < 1 else torch.arange(len(rows))
    for step in range(steps):
        # Step i predicts the next token of the place i + 1 entries later, if it is in the same row.
        next_places = places + 1 + step
        fits = (next_places < len(rows)) & (
            rows[next_places.clamp(max=len(rows) - 1)] == rows[places]
        )
        continued.append(fits.nonzero()[: int(len(places) * (share if step else 1)), 0])
        places = places[continued[-1]]
        chains.append(places)
    return chains, [chains[0], *continued[1:]]

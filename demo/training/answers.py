"""The target's own answers, on which drafts and heads are trained because they predict them.

Prompts come from the training split; the held-out split is not used.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from demo.tokenizer import encode, render_chat
from demo.training.corpus import Piece
from demo.training.documents import can_quote, can_request, free_chat, quoting_chat
from demo.training.packing import Tokenized
from demo.training.pretrain import SEED

BATCH, PROMPT_TOKENS = 64, 320


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a set of answers is sampled.

    Attributes:
        name: seeds the prompts and the noise.
        quote_every: one in this number of prompts asks for a quotation; the others are free.
        temperatures: used in turn, one per batch; 0 is greedy.
        max_tokens: length limit of an answer.
    """

    name: str
    quote_every: int
    temperatures: tuple[float, ...]
    max_tokens: int


FOR_DRAFTS = Sampling("samples", quote_every=2, temperatures=(0.7, 1.0), max_tokens=160)
FOR_HEADS = Sampling("heads", quote_every=8, temperatures=(0.0, 0.7), max_tokens=128)


@torch.inference_mode()
def sample_chats(
    target: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    pieces: Sequence[Piece],
    count: int,
    sampling: Sampling,
) -> list[Tokenized]:
    """`count` chats with the target's answers; the prompt of each is masked.

    Args:
        target: generates the answers; is left in evaluation mode.
        tokenizer: the target's.
        pieces: the subjects of the prompts, from the training split.
        count: number of chats, preferably a multiple of `BATCH`.
        sampling: kinds of prompts and temperatures.
    """
    rng = random.Random(f"{sampling.name}:{SEED}")
    torch.manual_seed(rng.getrandbits(32))
    target.train(False)
    prompts = _prompts(tokenizer, pieces, count, sampling.quote_every, rng)
    chats: list[Tokenized] = []
    for number, start in enumerate(range(0, count, BATCH)):
        temperature = sampling.temperatures[number % len(sampling.temperatures)]
        chats += _answers(target, prompts[start : start + BATCH], temperature, sampling.max_tokens)
        print(f"answered {len(chats)}/{count}", flush=True)
    return chats


def _answers(
    target: LlamaForCausalLM, prompts: Sequence[Sequence[int]], temperature: float, tokens: int
) -> list[Tokenized]:
    width = max(len(ids) for ids in prompts)
    ids = torch.tensor([[0] * (width - len(p)) + list(p) for p in prompts])
    noise = {"do_sample": True, "top_k": 0, "temperature": temperature}
    out = target.generate(  # type: ignore[misc]
        input_ids=ids,
        attention_mask=(ids != 0).long(),
        max_new_tokens=tokens,
        pad_token_id=0,
        eos_token_id=2,
        **(noise if temperature else {"do_sample": False, "temperature": None}),
    )
    assert isinstance(out, torch.Tensor)
    chats = [[token for token in row if token != 0] for row in out.tolist()]
    return [Tokenized(chat, len(p)) for chat, p in zip(chats, prompts, strict=True)]


def _prompts(
    tokenizer: PreTrainedTokenizerFast,
    pieces: Sequence[Piece],
    count: int,
    quote_every: int,
    rng: random.Random,
) -> list[list[int]]:
    quotable = [piece for piece in pieces if can_quote(piece)]
    free = [piece for piece in pieces if can_request(piece)]
    prompts: list[list[int]] = []
    while len(prompts) < count:
        quote = len(prompts) % quote_every == 0
        chat = (
            quoting_chat(rng.choice(quotable), quotable, rng)
            if quote
            else free_chat(rng.choice(free), rng)
        )
        ids = encode(tokenizer, render_chat(tokenizer, chat.prompt, answer_next=True))
        if len(ids) <= PROMPT_TOKENS:
            prompts.append(ids)
    # Similar lengths are batched together, which saves padding; the batches are shuffled.
    prompts.sort(key=len)
    batches = [prompts[start : start + BATCH] for start in range(0, count, BATCH)]
    rng.shuffle(batches)
    return [ids for batch in batches for ids in batch]


def corpus_chats(
    tokenizer: PreTrainedTokenizerFast, pieces: Sequence[Piece], count: int
) -> list[Tokenized]:
    """`count` free chats with the corpus's answers; the prompt of each is masked.

    The target did not write these answers, but it has a distribution for every position, and they
    need no sampling.
    """
    rng = random.Random(f"corpus-chats:{SEED}")
    chats: list[Tokenized] = []
    for piece in rng.sample([piece for piece in pieces if can_request(piece)], count):
        chat = free_chat(piece, rng)
        prompt = encode(tokenizer, render_chat(tokenizer, chat.prompt, answer_next=True))
        ids = encode(tokenizer, render_chat(tokenizer, chat.messages, answer_next=False))
        chats.append(Tokenized(ids, len(prompt)))
    return chats


def save_chats(chats: Sequence[Tokenized], path: Path) -> None:
    """Write chats as JSON, so that training can be repeated without sampling again."""
    path.write_text(json.dumps([asdict(chat) for chat in chats]), encoding="utf-8")


def load_chats(path: Path) -> list[Tokenized]:
    """Read chats that `save_chats` wrote."""
    return [Tokenized(**chat) for chat in json.loads(path.read_text(encoding="utf-8"))]

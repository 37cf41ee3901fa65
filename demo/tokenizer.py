"""The tokenizer of all demo models: byte-level BPE with 2,048 entries, trained on the corpus.

The vocabulary is small so that embeddings and the heads' output matrices are small.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypedDict

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

VOCAB_SIZE = 2048
MAX_LENGTH = 2048
BOS, EOS, PAD = "<|bos|>", "<|eos|>", "<|pad|>"
SYSTEM, USER, ASSISTANT = "<|system|>", "<|user|>", "<|assistant|>"
# The index is the token id: pad 0, bos 1, eos 2, then the role markers.
SPECIAL_TOKENS = (PAD, BOS, EOS, SYSTEM, USER, ASSISTANT)

CHAT_TEMPLATE = (
    "{{- bos_token }}"
    "{%- if tools %}"
    "{{- '<|system|># Tools' }}"
    "{%- for tool in tools %}{{- '\\n' + tool['function'] | tojson }}{%- endfor %}"
    "{%- endif %}"
    "{%- for message in messages %}"
    "{%- if message['role'] == 'assistant' %}"
    "{{- '<|assistant|>' + (message['content'] or '') }}"
    "{%- for call in message['tool_calls'] or [] %}"
    "{%- set called = {'name': call['function']['name'],"
    " 'arguments': call['function']['arguments']} %}"
    "{{- '<tool_call>\\n' + called | tojson + '\\n</tool_call>' }}"
    "{%- endfor %}"
    "{{- eos_token }}"
    "{%- elif message['role'] in ('system', 'developer') %}"
    "{{- '<|system|>' + (message['content'] or '') }}"
    "{%- elif message['role'] == 'tool' %}"
    "{{- '<|user|><tool_response>\\n' + (message['content'] or '') + '\\n</tool_response>' }}"
    "{%- else %}"
    "{{- '<|user|>' + (message['content'] or '') }}"
    "{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}"
)
"""A chat without tools is rendered as in training; the format of calls is that of Hermes models."""


class Message(TypedDict):
    """One chat message of the OpenAI API."""

    role: str
    content: str


def train_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Train the tokenizer on `texts` (the training split only); deterministic for equal input."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    # Completion prompts begin with bos, as chats do, whose template adds its own.
    core.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, SPECIAL_TOKENS.index(BOS))]
    )
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=core,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        additional_special_tokens=[SYSTEM, USER, ASSISTANT],
        model_max_length=MAX_LENGTH,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )


def load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """Load the tokenizer from a model folder or from the tokenizer stage's output."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(str(folder))
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    return tokenizer


def encode(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    """Token ids of `text` without added ones; special tokens in the text are recognised."""
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def render_chat(
    tokenizer: PreTrainedTokenizerFast, messages: Sequence[Message], *, answer_next: bool
) -> str:
    """The chat as text; `answer_next` appends the marker of the assistant's turn."""
    rows = [{"role": message["role"], "content": message["content"]} for message in messages]
    return str(
        tokenizer.apply_chat_template(rows, tokenize=False, add_generation_prompt=answer_next)
    )

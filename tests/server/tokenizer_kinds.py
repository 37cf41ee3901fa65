"""Small tokenizers of every kind that models have, trained on this repository's texts."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

SPECIAL = ["<s>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>", "<image>"]
NOT_SPECIAL = ["<tool_call>", "</think>"]
CORPUS = (Path(__file__).parents[2] / "docs" / "overload.md").read_text("utf-8").splitlines()
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def _byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=900, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def _metaspace(scheme: str) -> Tokenizer:
    """As in Llama 2's newer conversions: its own tokens are in the model's vocabulary too."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    first = ["<unk>", "<s>", "</s>", *BYTES]
    trainer = trainers.BpeTrainer(vocab_size=900, special_tokens=first, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return _without_bytes_as_added(tokenizer)


def _prepended() -> Tokenizer:
    """As in Llama 2 and Phi 3: the normalizer puts a space before every part."""
    tokenizer = _metaspace("never")
    tokenizer.pre_tokenizer = None
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    return tokenizer


def _gemma() -> Tokenizer:
    tokenizer = _metaspace("never")
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    return tokenizer


def _unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=400,
        special_tokens=["<unk>", "<s>", "</s>"],
        unk_token="<unk>",
        initial_alphabet=list("<>|/_=é漢"),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def _word_piece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=600,
        special_tokens=["<unk>", "<s>", "</s>"],
        initial_alphabet=list("<>|/_"),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def _word_level() -> Tokenizer:
    """Its model knows the special tokens as words."""
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordLevelTrainer(special_tokens=SPECIAL, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def _without_bytes_as_added(tokenizer: Tokenizer) -> Tokenizer:
    described = json.loads(tokenizer.to_str())
    described["added_tokens"] = [
        token for token in described["added_tokens"] if token["content"] not in BYTES
    ]
    return Tokenizer.from_str(json.dumps(described))


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "byte-level": _byte_level,
    "metaspace, first": lambda: _metaspace("first"),
    "metaspace, always": lambda: _metaspace("always"),
    "prepended": _prepended,
    "gemma": _gemma,
    "unigram": _unigram,
    "word piece": _word_piece,
    "word level": _word_level,
}
"""Kind -> a tokenizer without added tokens."""

KEEP_TEXT = ("byte-level", "metaspace, first", "metaspace, always", "prepended", "gemma")
"""The kinds whose tokens decode to the text, but for spaces beside added tokens."""


@cache
def tokenizer_of(kind: str, *, normalized: bool = False) -> PreTrainedTokenizerFast:
    """A tokenizer with special tokens, and others that it has added.

    Args:
        normalized: whether it looks for the special tokens in normalized text.
    """
    backend = KINDS[kind]()
    backend.add_special_tokens([AddedToken(t, normalized=normalized) for t in SPECIAL])
    backend.add_tokens([AddedToken(text, normalized=False) for text in NOT_SPECIAL])
    bos = ("<s>", backend.token_to_id("<s>"))
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[bos]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        clean_up_tokenization_spaces=False,
    )

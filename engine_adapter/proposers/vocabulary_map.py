"""Maps the tokens of a target to those of a draft model with another tokenizer.

Source: token-level intersection, arXiv 2502.05202, as vLLM's `use_heterogeneous_vocab`: tokens with
the same text are the same token, and a draft model drafts only these. Texts are compared as bytes,
so that tokenizers that spell spaces and bytes in different ways still match.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from engine_adapter.proposers.contract import OptionError

HETEROGENEOUS_VOCAB = "use_heterogeneous_vocab"
"""The option that allows a draft model another tokenizer."""

LEAST_SHARE = 0.1
"""The least share of the smaller vocabulary that must map."""

NO_TOKEN = -1
"""In `VocabularyMap.outputs`: a token that the draft model lacks."""

Text = bytes | str
"""What a token stands for: the bytes of its text, or the name of a special token."""

_DECODERS = {"ByteLevel", "ByteFallback", "Fuse", "Metaspace", "Replace", "Strip"}
"""The decoders of `tokenizers` whose spelling of tokens is known here."""

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
"""A token of one byte in vocabularies of SentencePiece."""


@dataclass(frozen=True, slots=True)
class VocabularyMap:
    """The tokens of a target, [0, V), and of a draft model, [0, D).

    Attributes:
        inputs: int64 [V], the token in [0, D) that the draft model reads for each token.
        outputs: int64 [V], the token in [0, D) that has the same text, or `NO_TOKEN`. No token
            occurs twice.
        num_target: tokens of the target's tokenizer.
        num_draft: the same of the draft model.
    """

    inputs: npt.NDArray[np.int64]
    outputs: npt.NDArray[np.int64]
    num_target: int
    num_draft: int

    @property
    def num_mapped(self) -> int:
        """How many tokens can be drafted."""
        return int((self.outputs != NO_TOKEN).sum())

    def __str__(self) -> str:
        """How much maps, for the log."""
        count = self.num_mapped
        return (
            f"{count} tokens map: {count / max(self.num_target, 1):.1%} of the target's "
            f"vocabulary, {count / max(self.num_draft, 1):.1%} of the draft model's"
        )


def load_tokenizer(model: str, revision: str | None, *, trust_remote_code: bool) -> Any:
    """The tokenizer of a folder or hub id. Raises `OSError` or `ValueError` if there is none."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(
        model, revision=revision or "main", trust_remote_code=trust_remote_code
    )


def map_vocabularies(target: Any, draft: Any, target_size: int, draft_size: int) -> VocabularyMap:
    """Maps the tokens of two tokenizers of transformers.

    The draft model reads the token of the same text; if there is none, its longest token that the
    text ends with; else its token for unknown text, or the end of a text. The tokens that begin
    and end a text map to each other, under any names. Other special tokens map by name.

    Args:
        target_size: V; tokens beyond it are ignored.
        draft_size: D, the rows of the draft model's embeddings.

    Raises:
        OptionError: too few tokens map, or a tokenizer has no file `tokenizer.json`.
    """
    target_texts, draft_texts = _texts(target, target_size), _texts(draft, draft_size)
    by_text = _first_by_text(draft_texts)
    inputs = np.full(target_size, _unknown(draft, draft_size), np.int64)
    outputs = np.full(target_size, NO_TOKEN, np.int64)
    for token, text in target_texts.items():
        if (draft_token := _longest_end(text, by_text)) is not None:
            inputs[token] = draft_token
    for text, token in _first_by_text(target_texts).items():
        outputs[token] = by_text.get(text, NO_TOKEN)
    for role in ("bos_token_id", "eos_token_id"):
        token, draft_token = getattr(target, role), getattr(draft, role)
        if _is_in(token, target_size) and _is_in(draft_token, draft_size):
            inputs[token] = draft_token
            if role == "eos_token_id":
                outputs[token] = draft_token
    counts = _num_tokens(target, target_size), _num_tokens(draft, draft_size)
    vocabulary_map = VocabularyMap(inputs, outputs, *counts)
    _check(vocabulary_map)
    return vocabulary_map


def _check(mapping: VocabularyMap) -> None:
    smaller = min(mapping.num_target, mapping.num_draft)
    if mapping.num_mapped < max(1, LEAST_SHARE * smaller):
        raise OptionError(
            HETEROGENEOUS_VOCAB,
            f"cannot help: only {mapping}; at least {LEAST_SHARE:.0%} of the smaller one must",
        )


def _num_tokens(tokenizer: Any, size: int) -> int:
    return sum(token < size for token in tokenizer.get_vocab().values())


def _is_in(token: int | None, size: int) -> bool:
    return token is not None and 0 <= token < size


def _unknown(tokenizer: Any, size: int) -> int:
    """The token that the draft model reads where it has none with the text."""
    candidates = (tokenizer.unk_token_id, tokenizer.eos_token_id)
    return next((token for token in candidates if _is_in(token, size)), 0)


def _longest_end(text: Text, by_text: Mapping[Text, int]) -> int | None:
    """The token of the whole text, or the longest one at its end."""
    starts: Iterable[int] = range(len(text)) if isinstance(text, bytes) else (0,)
    return next((by_text[text[i:]] for i in starts if text[i:] in by_text), None)


def _first_by_text(texts: Mapping[int, Text]) -> dict[Text, int]:
    """Text -> its token; of several, the first."""
    first_tokens: dict[Text, int] = {}
    for token, text in texts.items():
        first_tokens.setdefault(text, token)
    return first_tokens


def _texts(tokenizer: Any, size: int) -> dict[int, Text]:
    """The text of each token in [0, size) but those that begin and end a text.

    Tokens of single bytes come last: a tokenizer uses them only where it has no other token. The
    order is the same in every process, on which all ranks depend.
    """
    if getattr(tokenizer, "backend_tokenizer", None) is None:
        raise OptionError(
            HETEROGENEOUS_VOCAB,
            f"needs tokenizers with a file tokenizer.json; {tokenizer.name_or_path} has none",
        )
    to_bytes = _piece_reader(tokenizer.backend_tokenizer.decoder)
    added = tokenizer.added_tokens_decoder
    ends = {tokenizer.bos_token_id, tokenizer.eos_token_id}
    texts: dict[int, Text] = {}
    byte_texts: dict[int, Text] = {}
    for piece, token in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1]):
        if token >= size or token in ends:
            continue
        if token in added:
            content = added[token].content
            texts[token] = content if added[token].special else content.encode()
        else:
            (byte_texts if _BYTE.fullmatch(piece) else texts)[token] = to_bytes(piece)
    return {**texts, **byte_texts}


def _piece_reader(decoder: Any) -> Callable[[str], bytes]:
    """What turns a token, as the vocabulary spells it, into the bytes of its text."""
    steps = _decoder_steps(json.loads(decoder.__getstate__())) if decoder is not None else []
    kinds = {step["type"] for step in steps}
    if unknown_types := sorted(kinds - _DECODERS):
        message = f"cannot read tokens that the decoder {', '.join(unknown_types)} spells"
        raise OptionError(HETEROGENEOUS_VOCAB, message)
    if "ByteLevel" in kinds:
        bytes_of = _byte_level_alphabet()

        def from_byte_level(piece: str) -> bytes:
            # A character outside the alphabet stands for itself.
            return b"".join(bytes_of.get(char) or char.encode() for char in piece)

        return from_byte_level
    replaced = [pair for step in steps if (pair := _replacement(step)) is not None]

    def from_text(piece: str) -> bytes:
        if "ByteFallback" in kinds and (byte_match := _BYTE.fullmatch(piece)):
            return bytes.fromhex(byte_match[1])
        for old, new in replaced:
            piece = piece.replace(old, new)
        return piece.encode()

    return from_text


def _decoder_steps(decoder: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    if decoder["type"] != "Sequence":
        return [decoder]
    return [step for inner in decoder["decoders"] for step in _decoder_steps(inner)]


def _replacement(step: Mapping[str, Any]) -> tuple[str, str] | None:
    """What a step of a decoder replaces in every token, and by what."""
    if step["type"] == "Metaspace":
        return step["replacement"], " "
    if step["type"] == "Replace" and "String" in step["pattern"]:
        return step["pattern"]["String"], step["content"]
    return None


def _byte_level_alphabet() -> dict[str, bytes]:
    """Character -> the byte that it stands for in byte-level vocabularies.

    Source: GPT-2's `bytes_to_unicode`: printable characters of Latin-1 stand for themselves, the
    other bytes are the characters from 256 on.
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    unprintable = [byte for byte in range(256) if byte not in printable]
    characters = [*map(chr, printable), *(chr(256 + i) for i in range(len(unprintable)))]
    return {
        char: bytes([byte]) for char, byte in zip(characters, printable + unprintable, strict=True)
    }

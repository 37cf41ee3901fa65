"""Text -> token ids, by the target's tokenizer."""

import json
import secrets
from collections.abc import Mapping
from functools import cached_property
from threading import Lock
from typing import Any

import structlog

from server.special_tokens import HiddenValue, SpecialTokens
from server.text_threads import release_memory

log = structlog.get_logger(__name__)

TOKEN_NAMES = range(0xF0000, 0xFFFFE)
"""The code points of which special tokens have their other names: a plane of private use."""

_SECRET_CHARS = 8


class SpecialTokensNotTold(Exception):
    """A text has special tokens that this tokenizer cannot tell from the template's."""


class TextEncoder:
    """The tokenizer's encoder: its ids, without the offsets and masks that transformers adds.

    Safe for threads. Args:
        tokenizer: as transformers loads it.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._backend = _backend(tokenizer)
        if self._backend is not None:
            self._backend.no_truncation()
            self._backend.no_padding()
        self.special_tokens = _special_tokens(tokenizer, self._backend)
        self._lock = Lock()

    def encode(self, text: str, add_special_tokens: bool) -> tuple[int, ...]:
        """The ids of a text. The text of a special token is that token."""
        if self._backend is None:
            return tuple(self._tokenizer.encode(text, add_special_tokens=add_special_tokens))
        return _ids(self._backend, text, add_special_tokens)

    def encode_as_text(self, text: str, add_special_tokens: bool) -> tuple[int, ...]:
        """The ids of a text in which no special token counts as one.

        Raises `SpecialTokensNotTold` if this tokenizer can only take them for tokens.
        """
        if not self.special_tokens.occur_in(text):
            return self.encode(text, add_special_tokens)
        hidden_value = self.special_tokens.hide(text)
        return self._encode_mixed(hidden_value.value, hidden_value, add_special_tokens)

    def encode_rendered(
        self, text: str, hidden_value: HiddenValue, add_special_tokens: bool
    ) -> tuple[int, ...]:
        """The ids of a text that a template has rendered of a hidden value.

        The special tokens of the value are text, the template's own are tokens. Raises
        `SpecialTokensNotTold` if this tokenizer cannot tell them apart.
        """
        whole_text = hidden_value.restore(text)
        count = self.special_tokens.count
        same_tokens = whole_text == text or count(whole_text) == count(text)
        if not hidden_value.has_tokens and same_tokens:
            return self.encode(whole_text, add_special_tokens)
        return self._encode_mixed(text, hidden_value, add_special_tokens)

    def _encode_mixed(
        self, text: str, hidden_value: HiddenValue, add_special_tokens: bool
    ) -> tuple[int, ...]:
        if self._backend is None:
            return self._encode_parts(text, hidden_value, add_special_tokens)
        with self._lock:
            names, renamed_backend = self._renaming
        if renamed_backend is None:
            return self._encode_parts(text, hidden_value, add_special_tokens)
        text = hidden_value.restore(self.special_tokens.replace(text, names))
        return _ids(renamed_backend, text, add_special_tokens)

    def _encode_parts(
        self, text: str, hidden_value: HiddenValue, add_special_tokens: bool
    ) -> tuple[int, ...]:
        """Cuts each hidden token behind its first character, so that no part has a whole one."""
        # A token that only the normalizer makes has no stand-in, so nothing cuts it.
        if self.special_tokens.occur_in_value(hidden_value.value):
            raise SpecialTokensNotTold
        for stand_in, original in hidden_value.originals.items():
            text = text.replace(stand_in, f"{original}{stand_in}")
        first_part, *other_parts = _split(text, hidden_value.originals)
        ids = self.encode(first_part, add_special_tokens)
        return ids + tuple(i for part in other_parts for i in self.encode(part, False))

    @cached_property
    def _renaming(self) -> tuple[Mapping[str, str], Any]:
        """Another name of each special token, and the tokenizer in which they have these names.

        No client can write such a name: it has a secret. Made when it is first needed, since it
        takes as much memory as the tokenizer.
        """
        secret = "".join(chr(secrets.choice(TOKEN_NAMES)) for _ in range(_SECRET_CHARS))
        texts = sorted(self.special_tokens.texts)
        names = {text: secret + chr(TOKEN_NAMES[i]) for i, text in enumerate(texts)}
        try:
            renamed_backend = _renamed_backend(self._backend, names)
            release_memory()
            return names, renamed_backend
        except Exception as error:  # the library raises nothing more precise
            log.warning("special_tokens_not_renamed", error=str(error))
            return names, None


def _backend(tokenizer: Any) -> Any:
    """The tokenizer of the library `tokenizers`; `None` if Python code does a part of its work."""
    # The import takes seconds.
    from transformers import PreTrainedTokenizerFast as Fast

    has_own_code = not isinstance(tokenizer, Fast) or any(
        getattr(type(tokenizer), name) is not getattr(Fast, name)
        for name in ("encode", "_encode_plus")
    )
    return None if has_own_code else tokenizer.backend_tokenizer


def _special_tokens(tokenizer: Any, backend: Any) -> SpecialTokens:
    special_texts = set(getattr(tokenizer, "all_special_tokens", ()))
    if backend is None:
        added_tokens = getattr(tokenizer, "added_tokens_decoder", {})
    else:
        added_tokens = backend.get_added_tokens_decoder()
    special_tokens = [
        token for token in added_tokens.values() if token.special or token.content in special_texts
    ]
    normalizer = None if backend is None else backend.normalizer
    texts = [token.content for token in special_tokens]
    if normalizer is None or not any(token.normalized for token in special_tokens):
        return SpecialTokens(texts)
    return SpecialTokens(texts, normalizer.normalize_str)


def _ids(backend: Any, text: str, add_special_tokens: bool) -> tuple[int, ...]:
    # Only the call for several texts has a variant that tracks no offsets, in half of the memory.
    [encoding] = backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
    return tuple(encoding.ids)


def _renamed_backend(backend: Any, names: Mapping[str, str]) -> Any:
    """A copy of a tokenizer in which special tokens have other names and the same ids."""
    tokenizer = json.loads(backend.to_str())
    for token in tokenizer["added_tokens"]:
        if token["content"] in names:
            token |= {"content": names[token["content"]], "normalized": False, "single_word": False}
    model = tokenizer["model"]
    vocab = model["vocab"]
    if isinstance(vocab, dict):
        model["vocab"] = {names.get(piece, piece): index for piece, index in vocab.items()}
    else:
        model["vocab"] = [[names.get(piece, piece), *score] for piece, *score in vocab]
    if "merges" in model:
        model["merges"] = [
            [left_piece, right_piece]
            for left_piece, right_piece in model["merges"]
            if names.keys().isdisjoint((left_piece, right_piece, left_piece + right_piece))
        ]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    renamed_backend = type(backend).from_str(json.dumps(tokenizer))
    for text, name in names.items():
        if renamed_backend.token_to_id(name) != backend.token_to_id(text):
            raise ValueError("the ids of special tokens change with their names")
    return renamed_backend


def _split(text: str, separators: Mapping[str, str]) -> list[str]:
    separator, *other_separators = separators
    for other in other_separators:
        text = text.replace(other, separator)
    return text.split(separator)

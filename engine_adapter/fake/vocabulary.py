"""The tokens of a real tokenizer, from which the fake engine makes its text."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine_adapter.fake.media import media_support
from engine_adapter.fake.options import FakeOptions
from engine_adapter.seam.config import EngineConfig
from engine_adapter.seam.errors import EngineConfigError
from engine_adapter.seam.types import NO_PARSER, EngineInfo, ParserChoice

_DEFAULT_CONTEXT = 2048
_CHARACTERS = ("é", "ß", "→", "漢", "語", "🙂")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A tokenizer and its tokens by their use.

    Attributes:
        tokenizer: a `tokenizers.Tokenizer`.
        size: token ids are in [0, size).
        eos: the token that ends a text, or `None`.
        words: ids that decode to whole characters.
        characters: encodings of characters that take several tokens.
    """

    tokenizer: Any
    size: int
    eos: int | None
    words: tuple[int, ...]
    characters: tuple[tuple[int, ...], ...]

    def text(self, token_id: int) -> str:
        """The text of one token, as `logprobs` shows it."""
        return str(self.tokenizer.decode([token_id], skip_special_tokens=False))


def load_vocabulary(model: str) -> Vocabulary:
    """Reads the tokenizer of a model's folder or id. Raises `EngineConfigError`.

    It has transformers' general class. `AutoTokenizer`, which finds a model's own, takes three
    seconds of CPU to import.
    """
    from transformers import PreTrainedTokenizerFast

    try:
        loaded: Any = PreTrainedTokenizerFast.from_pretrained(model)
    except (OSError, ValueError) as error:
        raise EngineConfigError("model", f"{model!r} has no tokenizer: {error}") from error
    backend = getattr(loaded, "backend_tokenizer", None)
    if backend is None:
        raise EngineConfigError("model", f"the tokenizer of {model!r} is not a fast one")
    special = set(loaded.all_special_ids)
    words = tuple(i for i in range(len(loaded)) if i not in special and _is_whole(backend, i))
    encoded = (tuple(backend.encode(c, add_special_tokens=False).ids) for c in _CHARACTERS)
    characters = tuple(ids for ids in encoded if len(ids) > 1)
    return Vocabulary(backend, len(loaded), loaded.eos_token_id, words, characters)


def model_context(model: str) -> int | None:
    """The context that the model's `config.json` states, if there is one."""
    path = Path(model) / "config.json"
    if not path.is_file():
        return None
    value = json.loads(path.read_text(encoding="utf-8")).get("max_position_embeddings")
    return value if isinstance(value, int) else None


def _is_whole(backend: Any, token_id: int) -> bool:
    text = backend.decode([token_id], skip_special_tokens=False)
    return bool(text) and "�" not in text and (text.isprintable() or text == "\n")


def describe(
    config: EngineConfig, options: FakeOptions, vocabulary: Vocabulary, capacity: int
) -> EngineInfo:
    """The started engine, without its proposers."""
    context = options.max_model_len or model_context(config.model)
    return EngineInfo(
        engine="fake",
        version="1",
        model=config.model,
        tokenizer=config.model,
        max_model_len=context or _DEFAULT_CONTEXT,
        max_num_seqs=options.max_num_seqs,
        vocab_size=vocabulary.size,
        max_logprobs=options.max_logprobs,
        max_speculative_tokens=capacity,
        proposers=(),
        tool_call_parser=_choice(config.tool_call_parser),
        reasoning_parser=_choice(config.reasoning_parser),
        has_thinking_budget=config.reasoning_parser is not None,
        media=media_support(config, options),
    )


def _choice(parser: str | None) -> ParserChoice:
    return NO_PARSER if parser is None else ParserChoice(parser, "scripted texts have this form")

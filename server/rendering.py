"""Text and chat messages -> prompt token ids, and back.

The tokenizer is the target's own, loaded by transformers. This module does not import torch;
transformers may, if torch is installed.
"""

import asyncio
import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from jinja2 import TemplateError

from server.errors import InvalidField
from server.text import cut, is_unicode

LONG_TEXT_CHARS = 8_192
"""Longer text is tokenized in a thread, because it would delay every stream by milliseconds."""


@dataclass(frozen=True, slots=True)
class TextLimit:
    """How much text is tokenized: more than the longest tokens of a context have is not.

    Attributes:
        tokens: the most tokens that can be used.
        keeps: the end of a longer text that is tokenized all the same, because its tokens are
            truncated afterwards; `None` refuses a longer text.
    """

    tokens: int
    keeps: Literal["start", "end"] | None = None


class Renderer:
    """The target's tokenizer and chat template."""

    def __init__(self, tokenizer: Any, chat_template: str | None = None) -> None:
        self._tokenizer = tokenizer
        self._chat_template = chat_template
        self._longest_token = max(map(len, tokenizer.get_vocab()), default=1)
        # Parameters of `apply_chat_template` cannot be variables of the template.
        taken = inspect.signature(tokenizer.apply_chat_template).parameters
        self._reserved = frozenset({"messages", *taken})

    @classmethod
    def load(
        cls,
        tokenizer: str,
        *,
        chat_template: str | None = None,
        revision: str | None = None,
        trust_remote_code: bool = False,
    ) -> "Renderer":
        """Reads the tokenizer from a folder or the hub, and the template from its file.

        Blocks for seconds. Raises `OSError` or `ValueError` if either cannot be read.
        """
        # Imported in the loading thread: the import takes seconds, and the port must open first.
        from transformers import AutoTokenizer

        template = Path(chat_template).read_text("utf-8") if chat_template is not None else None
        loaded = AutoTokenizer.from_pretrained(
            tokenizer, revision=revision or "main", trust_remote_code=trust_remote_code
        )
        return cls(loaded, template)

    @property
    def has_chat_template(self) -> bool:
        """Whether chats can be rendered."""
        return self._chat_template is not None or bool(self._tokenizer.chat_template)

    async def encode(
        self,
        text: str,
        *,
        add_special_tokens: bool = True,
        param: str = "prompt",
        limit: TextLimit | None = None,
    ) -> tuple[int, ...]:
        """The token ids of a text. Raises as `encode_all`."""
        (token_ids,) = await self.encode_all(
            (text,), add_special_tokens=add_special_tokens, param=param, limit=limit
        )
        return token_ids

    async def encode_all(
        self,
        texts: Sequence[str],
        *,
        add_special_tokens: bool,
        param: str,
        limit: TextLimit | None,
    ) -> list[tuple[int, ...]]:
        """The token ids of each text; the limit is of each one.

        Raises `InvalidField`, naming `param`, for a lone surrogate and for text above the limit.
        """
        if limit is not None:
            texts = [self._within(text, limit, param) for text in texts]
        if not all(map(is_unicode, texts)):
            raise InvalidField(param, f"{param} contains a lone surrogate.")
        if sum(map(len, texts)) > LONG_TEXT_CHARS:
            return await asyncio.to_thread(self._encode, texts, add_special_tokens)
        return self._encode(texts, add_special_tokens)

    async def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        add_special_tokens: bool = False,
        variables: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        limit: TextLimit | None = None,
    ) -> tuple[int, ...]:
        """The token ids of a chat, as the template renders it.

        `variables` are the template's own, such as `enable_thinking`; `tools` are in OpenAI's
        format. Raises `InvalidField` if the model has no template, the template rejects the
        messages, or their text is above the limit.
        """
        self._check_variables(variables or {})
        text = self._render(
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            # Templates tell "no tools" by null, and some take an empty list for tools.
            tools=list(tools) or None,
            **(variables or {}),
        )
        return await self.encode(
            text, add_special_tokens=add_special_tokens, param="messages", limit=limit
        )

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of token ids, special tokens included."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=False))

    def tokens(self, token_ids: Sequence[int]) -> list[str]:
        """Each token as it is written in the vocabulary."""
        return [str(token) for token in self._tokenizer.convert_ids_to_tokens(list(token_ids))]

    def mentions(self, *names: str) -> bool:
        """Whether the chat template has one of these names, of variables."""
        template = self._chat_template or str(self._tokenizer.chat_template or "")
        return any(re.search(rf"\b{re.escape(name)}\b", template) for name in names)

    def _within(self, text: str, limit: TextLimit, param: str) -> str:
        """The part of a text that is tokenized. Raises `InvalidField` for one above the limit."""
        most = limit.tokens * self._longest_token
        if limit.keeps is None and len(text) > most:
            message = (
                f"This model's maximum context length is {limit.tokens} tokens; {param} has "
                f"{len(text)} characters, and the context has room for {most} at most."
            )
            raise InvalidField(param, message, "context_length_exceeded")
        # The cut may change tokens beside it, so it is far from those that are kept.
        return text[: 2 * most] if limit.keeps == "start" else text[-2 * most :]

    def _encode(self, texts: Sequence[str], special: bool) -> list[tuple[int, ...]]:
        return [tuple(self._tokenizer.encode(text, add_special_tokens=special)) for text in texts]

    def _check_variables(self, variables: Mapping[str, Any]) -> None:
        for name in variables:
            if name in self._reserved:
                param = f"chat_template_kwargs.{name}"
                raise InvalidField(param, f"{param} is not a variable of the template.")

    def _render(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        if not self.has_chat_template:
            message = "The model has no chat template; set one with --chat-template."
            raise InvalidField("messages", message, "no_chat_template")
        try:
            text = self._tokenizer.apply_chat_template(
                list(messages), chat_template=self._chat_template, tokenize=False, **options
            )
        except (TemplateError, TypeError, ValueError, RecursionError) as error:
            message = f"The chat template rejects these messages: {cut(str(error))}"
            raise InvalidField("messages", message) from error
        return str(text)

"""Text and chat messages -> prompt token ids, and back.

The tokenizer is the target's own, loaded by transformers. This module does not import torch;
transformers may, if torch is installed.
"""

import asyncio
import inspect
import re
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from engine_adapter.text import cut
from server.errors import InvalidField
from server.schema.json_values import is_larger
from server.text import is_unicode

LONG_TEXT_CHARS = 8_192
"""Longer text is tokenized in a thread, because it would delay every stream by milliseconds."""

LONG_CHAT_VALUES = 256
"""Chats of more JSON values, or of longer texts together, are rendered in a thread.

A message of text has three values; tool calls and the schemas of tools have many.
"""

LONG_LIST_TOKENS = 4_096
"""More token ids become text in a thread, for the same reason."""


def check_chars(chars: int, most: int, param: str) -> None:
    """Raises `InvalidField`, naming `param`, for more than `most` characters of text."""
    if chars > most:
        message = (
            f"{param} has {chars} characters; with this model's maximum context length, at most "
            f"{most} can be tokenized here."
        )
        raise InvalidField(param, message, "context_length_exceeded")


class Renderer:
    """The target's tokenizer and chat template."""

    def __init__(self, tokenizer: Any, chat_template: str | None = None) -> None:
        self._tokenizer = tokenizer
        self._chat_template = chat_template
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
        made = cls(loaded, template)
        _ = made.longest_token
        return made

    @cached_property
    def longest_token(self) -> int:
        """The characters of the longest token: no token stands for more of a text."""
        return max(map(len, self._tokenizer.get_vocab()), default=1)

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
        max_chars: int | None = None,
    ) -> tuple[int, ...]:
        """The token ids of a text.

        Raises `InvalidField`, naming `param`, for a lone surrogate, and for a text of more than
        `max_chars` characters: tokenizing it would take a thread for long.
        """
        if max_chars is not None:
            check_chars(len(text), max_chars, param)
        if not is_unicode(text):
            raise InvalidField(param, f"{param} contains a lone surrogate.")
        if len(text) > LONG_TEXT_CHARS:
            return await asyncio.to_thread(self._encode, text, add_special_tokens)
        return self._encode(text, add_special_tokens)

    async def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        add_special_tokens: bool = False,
        variables: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        max_chars: int | None = None,
    ) -> tuple[int, ...]:
        """The token ids of a chat, as the template renders it.

        `variables` are the template's own, such as `enable_thinking`; `tools` are in OpenAI's
        format. Raises `InvalidField` if the model has no template, the template rejects the
        messages, or the rendered chat has more than `max_chars` characters.
        """
        self._check_variables(variables or {})
        render = partial(
            self._render,
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            # Templates tell "no tools" by null, and some take an empty list for tools.
            tools=list(tools) or None,
            **(variables or {}),
        )
        given = (messages, tools, variables)
        is_long = is_larger(given, LONG_CHAT_VALUES, LONG_TEXT_CHARS)
        text = await asyncio.to_thread(render) if is_long else render()
        return await self.encode(
            text,
            add_special_tokens=add_special_tokens,
            param="messages",
            max_chars=max_chars,
        )

    async def decode(self, token_ids: Sequence[int]) -> str:
        """The text of token ids, special tokens included."""
        if len(token_ids) > LONG_LIST_TOKENS:
            return await asyncio.to_thread(self._decode, token_ids)
        return self._decode(token_ids)

    async def tokens(self, token_ids: Sequence[int]) -> list[str]:
        """Each token as it is written in the vocabulary."""
        if len(token_ids) > LONG_LIST_TOKENS:
            return await asyncio.to_thread(self._tokens, token_ids)
        return self._tokens(token_ids)

    def mentions(self, *names: str) -> bool:
        """Whether the chat template has one of these names, of variables."""
        template = self._chat_template or str(self._tokenizer.chat_template or "")
        return any(re.search(rf"\b{re.escape(name)}\b", template) for name in names)

    def _decode(self, token_ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=False))

    def _tokens(self, token_ids: Sequence[int]) -> list[str]:
        return [str(token) for token in self._tokenizer.convert_ids_to_tokens(list(token_ids))]

    def _encode(self, text: str, add_special_tokens: bool) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=add_special_tokens))

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

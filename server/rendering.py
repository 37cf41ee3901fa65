"""Text and chat messages -> prompt token ids, and back.

The tokenizer is the target's own, loaded by transformers. This module does not import torch;
transformers may, if torch is installed.
"""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from engine_adapter.seam.media import MediaSupport
from engine_adapter.seam.text import truncate
from server.errors import InvalidField
from server.fill_in import FillInTokens, find_fill_in_tokens
from server.media.placeholders import with_placeholders
from server.schema.json_values import is_larger
from server.special_tokens import HiddenValue
from server.text import is_unicode
from server.text_encoder import SpecialTokensNotTold, TextEncoder
from server.text_threads import LARGE_TEXT_CHARS, LONG_TEXT_CHARS, TextThreads

LONG_CHAT_VALUES = 256
"""Chats of more JSON values, or of longer texts together, are rendered in a thread.

A message of text has three values; tool calls and the schemas of tools have many.
"""

_PATHS = ("_file", "_path")
"""The ends of the names of a tokenizer's settings that are paths of this machine."""

LARGE_CHAT_VALUES = 4_096
"""Chats of more JSON values, or of large texts together, are rendered one at a time."""

TOKEN_CHARS = 2
"""As many characters the work on a token counts, where ids become text."""


def check_chars(chars: int, max_chars: int, param: str) -> None:
    """Raises `InvalidField`, naming `param`, for more than `max_chars` characters of text."""
    if chars > max_chars:
        message = (
            f"{param} has {chars} characters; with this model's maximum context length, at most "
            f"{max_chars} can be tokenized here."
        )
        raise InvalidField(param, message, "context_length_exceeded")


class Renderer:
    """The target's tokenizer and chat template.

    Args:
        special_tokens_as_text: whether the text of a special token in a chat or a prediction is
            text. If not, it is the token.
        media: what media the target takes; `None` if it takes text only.
    """

    def __init__(
        self,
        tokenizer: Any,
        chat_template: str | None = None,
        *,
        special_tokens_as_text: bool = True,
        media: MediaSupport | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._media = media
        self._chat_template = chat_template
        self._as_text = special_tokens_as_text
        self._encoder = TextEncoder(tokenizer)
        self._threads = TextThreads()
        # Parameters of `apply_chat_template` cannot be variables of the template.
        parameters = inspect.signature(tokenizer.apply_chat_template).parameters
        self._reserved = frozenset({"messages", *parameters})

    @classmethod
    def load(
        cls,
        tokenizer: str,
        *,
        chat_template: str | None = None,
        revision: str | None = None,
        trust_remote_code: bool = False,
        has_own_class: bool = True,
        special_tokens_as_text: bool = True,
        media: MediaSupport | None = None,
    ) -> "Renderer":
        """Reads the tokenizer from a folder or the hub, and the template from its file.

        Blocks for seconds. Raises `OSError` or `ValueError` if either cannot be read.

        Args:
            has_own_class: the tokenizer has the class of its model, as in vLLM. Otherwise it has
                transformers' general class, as in the fake engine, which is imported sooner.
        """
        template = Path(chat_template).read_text("utf-8") if chat_template is not None else None
        loaded = _load_tokenizer(tokenizer, revision or "main", trust_remote_code, has_own_class)
        renderer = cls(loaded, template, special_tokens_as_text=special_tokens_as_text, media=media)
        _ = renderer.longest_token, renderer.fill_in_tokens
        return renderer

    @cached_property
    def longest_token(self) -> int:
        """The characters of the longest token: no token stands for more of a text."""
        return max(map(len, self._tokenizer.get_vocab()), default=1)

    @cached_property
    def fill_in_tokens(self) -> FillInTokens | None:
        """The tokens with which the target fills in text; `None` if the tokenizer has none."""
        return find_fill_in_tokens(self._tokenizer.get_vocab())

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
        """The token ids of a raw prompt: a special token's text is that token.

        Raises `InvalidField`, naming `param`, for a lone surrogate, and for a text of more than
        `max_chars` characters: tokenizing it would take a thread for long.
        """
        encode = partial(self._encoder.encode, text, add_special_tokens)
        return await self._encoded(encode, text, param, max_chars)

    async def encode_text(
        self, text: str, *, param: str, max_chars: int | None = None
    ) -> tuple[int, ...]:
        """The token ids of a text that is no prompt, such as a prediction; raises as `encode`."""
        if not self._as_text:
            return await self.encode(
                text, add_special_tokens=False, param=param, max_chars=max_chars
            )
        encode = partial(self._encoder.encode_as_text, text, False)
        is_slow = self._encoder.special_tokens.occur_in(text)
        return await self._encoded(encode, text, param, max_chars, is_slow=is_slow)

    async def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        add_special_tokens: bool = False,
        variables: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        documents: Sequence[Mapping[str, str]] = (),
        template: str | None = None,
        param: str = "messages",
        max_chars: int | None = None,
    ) -> tuple[int, ...]:
        """The token ids of a chat, as the template renders it, with a placeholder for each item
        of its media.

        `variables` are the template's own, such as `enable_thinking`; `tools` are in OpenAI's
        format; `template` is used instead of the server's. Raises `InvalidField`, mostly naming
        `param`, if there is no template, the template rejects the messages, or the rendered chat
        has more than `max_chars` characters.
        """
        self._check_variables(variables or {})
        # Templates tell "no tools" by null, and some take an empty list for tools.
        chat = {
            "messages": list(messages),
            "variables": variables or {},
            "tools": list(tools) or None,
            # Not every tokenizer's own code takes documents.
            "documents": {"documents": list(documents)} if documents else {},
        }
        render = partial(
            self._render,
            chat,
            param,
            template,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
        )
        text, hidden_value = await self._threads.run(render, _size(tuple(chat.values())))
        encode = partial(self._encoder.encode_rendered, text, hidden_value, add_special_tokens)
        is_slow = hidden_value.has_tokens or bool(hidden_value.originals)
        return await self._encoded(encode, text, param, max_chars, is_slow=is_slow)

    async def decode(self, token_ids: Sequence[int]) -> str:
        """The text of token ids, special tokens included."""
        decode = partial(self._decode, token_ids)
        return await self._threads.run(decode, TOKEN_CHARS * len(token_ids))

    async def tokens(self, token_ids: Sequence[int]) -> list[str]:
        """Each token as it is written in the vocabulary."""
        name = partial(self._tokens, token_ids)
        return await self._threads.run(name, TOKEN_CHARS * len(token_ids))

    def tokenizer_config(self) -> dict[str, Any]:
        """What `tokenizer_config.json` has, with the template that renders chats; without paths."""
        config = {
            name: _plain(value)
            for name, value in (getattr(self._tokenizer, "init_kwargs", None) or {}).items()
            if not name.endswith(_PATHS)
        }
        config["tokenizer_class"] = type(self._tokenizer).__name__
        if self.has_chat_template:
            config["chat_template"] = self._chat_template or self._tokenizer.chat_template
        return config

    def mentions(self, *names: str, template: str | None = None) -> bool:
        """Whether the chat template, or `template`, has one of these names, of variables."""
        template = template or self._chat_template or str(self._tokenizer.chat_template or "")
        return any(re.search(rf"\b{re.escape(name)}\b", template) for name in names)

    def _decode(self, token_ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=False))

    def _tokens(self, token_ids: Sequence[int]) -> list[str]:
        return [str(token) for token in self._tokenizer.convert_ids_to_tokens(list(token_ids))]

    async def _encoded(
        self,
        encode: Callable[[], tuple[int, ...]],
        text: str,
        param: str,
        max_chars: int | None,
        *,
        is_slow: bool = False,
    ) -> tuple[int, ...]:
        """Checks a text and encodes it, in a thread if it is long or `is_slow`."""
        if max_chars is not None:
            check_chars(len(text), max_chars, param)
        if not is_unicode(text):
            raise InvalidField(param, f"{param} contains a lone surrogate.")
        size = max(len(text), LONG_TEXT_CHARS + 1) if is_slow else len(text)
        try:
            return await self._threads.run(encode, size)
        except SpecialTokensNotTold as error:
            message = (
                f"{param} contains the text of a special token, which cannot be told apart from "
                "the token with this model's tokenizer. Leave it out, or start the server with "
                "--special-tokens-in-chats as-tokens."
            )
            raise InvalidField(param, message) from error

    def _check_variables(self, variables: Mapping[str, Any]) -> None:
        for name in variables:
            if name in self._reserved:
                param = f"chat_template_kwargs.{name}"
                raise InvalidField(param, f"{param} is not a variable of the template.")

    def _render(
        self, chat: Mapping[str, Any], param: str, template: str | None, **options: Any
    ) -> tuple[str, HiddenValue]:
        if template is None and not self.has_chat_template:
            message = "The model has no chat template; set one with --chat-template."
            raise InvalidField(param, message, "no_chat_template")
        try:
            hidden_value = HiddenValue(chat, False, {})
            if self._as_text:
                hidden_value = self._encoder.special_tokens.hide(chat)
            messages = hidden_value.value["messages"]
            if self._media is not None:
                # Placeholders are special tokens: those of the client are hidden before.
                messages = with_placeholders(messages, self._media)
            apply = partial(
                self._tokenizer.apply_chat_template,
                **hidden_value.value["documents"],
                chat_template=template or self._chat_template,
                tokenize=False,
                **hidden_value.value["variables"],
                **options,
            )
            tools = hidden_value.value["tools"]
            try:
                text = apply(messages, tools=tools)
            except TypeError:  # some templates, such as gpt-oss's, take no null for a text
                text = apply(*_without_nulls(messages, tools))
        except (TemplateError, TypeError, ValueError, RecursionError) as error:
            message = f"The chat template rejects these messages: {truncate(str(error))}"
            raise InvalidField(param, message) from error
        return str(text), hidden_value


def _load_tokenizer(
    tokenizer: str, revision: str, trust_remote_code: bool, has_own_class: bool
) -> Any:
    # Imported in the loading thread: the import takes seconds, and the port must open first.
    import transformers

    kind = transformers.AutoTokenizer if has_own_class else transformers.PreTrainedTokenizerFast
    return kind.from_pretrained(tokenizer, revision=revision, trust_remote_code=trust_remote_code)


def _without_nulls(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
    """The chat with an empty text for a content and a tool's description that is null."""
    filled_messages = [{**message, "content": message.get("content") or ""} for message in messages]
    if tools is None:
        return filled_messages, None
    functions = [tool["function"] for tool in tools]
    filled_tools = [
        {**tool, "function": {**function, "description": function.get("description") or ""}}
        for tool, function in zip(tools, functions, strict=True)
    ]
    return filled_messages, filled_tools


def _plain(value: Any) -> Any:
    """A value of a tokenizer's configuration as JSON has it."""
    if hasattr(value, "content"):  # an added token
        return value.content
    if isinstance(value, dict):
        return {str(name): _plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return value if value is None or isinstance(value, str | int | float) else str(value)


def _size(chat: Any) -> int:
    """The characters that the rendering of a chat counts in the text threads."""
    if not is_larger(chat, LONG_CHAT_VALUES, LONG_TEXT_CHARS):
        return 0
    is_large = is_larger(chat, LARGE_CHAT_VALUES, LARGE_TEXT_CHARS)
    return (LARGE_TEXT_CHARS if is_large else LONG_TEXT_CHARS) + 1

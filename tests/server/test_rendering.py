"""Chats and texts as token ids, with the demo's own tokenizer."""

import threading
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from server.errors import InvalidField
from server.rendering import TOKEN_CHARS, Renderer
from server.settings import Settings
from server.text_threads import LONG_TEXT_CHARS

TARGET = Settings(engine="fake").model
USER = {"role": "user", "content": "hi"}


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer.load(TARGET)


async def test_template_writes_its_special_tokens_once(renderer: Renderer) -> None:
    ids = await renderer.encode_chat([USER])
    assert await renderer.decode(ids) == "<|bos|><|user|>hi<|assistant|>"
    assert await renderer.decode(await renderer.encode("hi")) == "<|bos|>hi"


async def test_long_text_has_the_same_tokens(renderer: Renderer) -> None:
    text = "x = 1\n" * LONG_TEXT_CHARS
    ids = await renderer.encode(text)
    assert await renderer.decode(ids) == "<|bos|>" + text


class Recorder:
    """A tokenizer that notes in which threads it works."""

    chat_template = "{{ messages }}"
    all_special_tokens = ()

    def __init__(self) -> None:
        self.threads: set[threading.Thread] = set()
        self.names: set[str] = set()

    def get_vocab(self) -> dict[str, int]:
        return {"a": 0}

    def apply_chat_template(self, messages: Any, **_: Any) -> str:
        self.threads.add(threading.current_thread())
        self.names.add(threading.current_thread().name)
        return "a"

    def encode(self, text: str, **_: Any) -> list[int]:
        return [0]

    def decode(self, token_ids: list[int], **_: Any) -> str:
        self.threads.add(threading.current_thread())
        return "a"

    def worked_beside_the_loop(self) -> bool:
        """Whether all of its work was done in other threads than this one."""
        return bool(self.threads) and threading.current_thread() not in self.threads


CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {}}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"enum": ["x"] * 1000}}}


@pytest.mark.parametrize(
    ("chat", "in_thread"),
    [
        ({"messages": [USER]}, False),
        ({"messages": [USER] * 64}, False),
        ({"messages": [USER] * 1000}, True),
        ({"messages": [{"role": "user", "content": "x" * 10_000}]}, True),
        ({"messages": [{"role": "assistant", "tool_calls": [CALL] * 1000}]}, True),
        ({"messages": [USER], "tools": [TOOL]}, True),
        ({"messages": [USER], "tools": [{"x" * 10_000: 1}]}, True),
        ({"messages": [USER], "variables": {"documents": [1] * 1000}}, True),
    ],
)
async def test_a_chat_that_takes_long_to_render_is_rendered_in_a_thread(
    chat: dict[str, Any], in_thread: bool
) -> None:
    tokenizer = Recorder()
    await Renderer(tokenizer).encode_chat(**chat)
    assert tokenizer.worked_beside_the_loop() == in_thread


async def test_a_large_chat_is_rendered_where_large_texts_are_worked_on() -> None:
    for count, threads in ((20_000, "long-texts"), (200_000, "large-texts")):
        tokenizer = Recorder()
        await Renderer(tokenizer).encode_chat([{"role": "user", "content": "x" * count}])
        [name] = tokenizer.names
        assert name.startswith(threads)


async def test_many_token_ids_become_text_in_a_thread() -> None:
    most = LONG_TEXT_CHARS // TOKEN_CHARS
    for count, in_thread in ((most, False), (most + 1, True)):
        tokenizer = Recorder()
        assert await Renderer(tokenizer).decode([0] * count) == "a"
        assert tokenizer.worked_beside_the_loop() == in_thread


async def test_template_file_replaces_the_models(tmp_path: Path) -> None:
    path = tmp_path / "template.jinja"
    path.write_text("{% for m in messages %}[{{ m.content }}]{{ mood }}{% endfor %}")
    renderer = Renderer.load(TARGET, chat_template=str(path))
    ids = await renderer.encode_chat([USER], variables={"mood": "!"})
    assert await renderer.decode(ids) == "[hi]!"


async def test_template_that_refuses_is_a_400(tmp_path: Path) -> None:
    path = tmp_path / "template.jinja"
    path.write_text("{{ raise_exception('roles must alternate') }}")
    renderer = Renderer.load(TARGET, chat_template=str(path))
    with pytest.raises(InvalidField, match="roles must alternate") as caught:
        await renderer.encode_chat([USER])
    assert (caught.value.status, caught.value.param) == (400, "messages")


async def test_a_template_that_takes_no_null_gets_an_empty_text(tmp_path: Path) -> None:
    path = tmp_path / "template.jinja"
    path.write_text(
        "{% for t in tools %}{{ '//' + t.function.description }}{% endfor %}"
        "{% for m in messages %}{% if 'x' in m.content %}x{% endif %}[{{ m.content }}]{% endfor %}"
    )
    renderer = Renderer.load(TARGET, chat_template=str(path))
    tool = {"type": "function", "function": {"name": "f", "description": None}}
    assistant = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    ids = await renderer.encode_chat([USER, assistant], tools=[tool])
    assert await renderer.decode(ids) == "//[hi][]"
    plain = tmp_path / "plain.jinja"
    plain.write_text("{% for m in messages %}{% if m.content is none %}null{% endif %}{% endfor %}")
    renderer = Renderer.load(TARGET, chat_template=str(plain))
    assert await renderer.decode(await renderer.encode_chat([USER, assistant])) == "null"


async def test_no_template_is_a_clear_400() -> None:
    tokenizer = AutoTokenizer.from_pretrained(TARGET)
    tokenizer.chat_template = None
    renderer = Renderer(tokenizer)
    assert not renderer.has_chat_template
    with pytest.raises(InvalidField, match="--chat-template") as caught:
        await renderer.encode_chat([USER])
    assert caught.value.code == "no_chat_template"


async def test_a_lone_surrogate_is_a_400_that_names_the_field(renderer: Renderer) -> None:
    with pytest.raises(InvalidField) as caught:
        await renderer.encode("\ud800", param="prompt")
    assert caught.value.param == "prompt"
    with pytest.raises(InvalidField) as caught:
        await renderer.encode_chat([{"role": "user", "content": "\ud800"}])
    assert caught.value.param == "messages"

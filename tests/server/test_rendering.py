"""Chats and texts as token ids, with the demo's own tokenizer."""

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from server.errors import InvalidField
from server.rendering import LONG_TEXT_CHARS, Renderer
from server.settings import Settings

TARGET = Settings(engine="fake").model
USER = {"role": "user", "content": "hi"}


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer.load(TARGET)


async def test_template_writes_its_special_tokens_once(renderer: Renderer) -> None:
    ids = await renderer.encode_chat([USER])
    assert renderer.decode(ids) == "<|bos|><|user|>hi<|assistant|>"
    assert renderer.decode(await renderer.encode("hi")) == "<|bos|>hi"


async def test_long_text_has_the_same_tokens(renderer: Renderer) -> None:
    text = "x = 1\n" * LONG_TEXT_CHARS
    ids = await renderer.encode(text)
    assert renderer.decode(ids) == "<|bos|>" + text


async def test_template_file_replaces_the_models(tmp_path: Path) -> None:
    path = tmp_path / "template.jinja"
    path.write_text("{% for m in messages %}[{{ m.content }}]{{ mood }}{% endfor %}")
    renderer = Renderer.load(TARGET, chat_template=str(path))
    ids = await renderer.encode_chat([USER], variables={"mood": "!"})
    assert renderer.decode(ids) == "[hi]!"


async def test_template_that_refuses_is_a_400(tmp_path: Path) -> None:
    path = tmp_path / "template.jinja"
    path.write_text("{{ raise_exception('roles must alternate') }}")
    renderer = Renderer.load(TARGET, chat_template=str(path))
    with pytest.raises(InvalidField, match="roles must alternate") as caught:
        await renderer.encode_chat([USER])
    assert (caught.value.status, caught.value.param) == (400, "messages")


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

"""The shipped folders: size limit, loading, one tokenizer."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from demo import HEADS, MODELS, model_path
from demo.prompts import load_prompts
from demo.tokenizer import (
    ASSISTANT,
    BOS,
    CHAT_TEMPLATE,
    EOS,
    SYSTEM,
    USER,
    VOCAB_SIZE,
    train_tokenizer,
)
from demo.training.architecture import SHAPES, llama_config

MAX_BYTES = 24 * 2**20


def test_all_folders_together_stay_below_24_mib() -> None:
    folders = [model_path(name) for name in MODELS + HEADS]
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < MAX_BYTES


def test_unknown_model_is_refused_with_the_known_names() -> None:
    with pytest.raises(ValueError, match="draft-small"):
        model_path("huge")


def test_tokenizer_files_are_equal_in_all_folders() -> None:
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert len({(model_path(name) / file).read_bytes() for name in MODELS}) == 1


@pytest.mark.parametrize("name", MODELS)
def test_model_loads_and_has_the_described_shape(name: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(model_path(name), dtype=torch.float32)
    config, shape = model.config, SHAPES[name]
    assert (config.hidden_size, config.num_hidden_layers) == (shape.hidden, shape.layers)
    assert shape.heads * shape.head_dim == shape.hidden
    assert config.vocab_size == VOCAB_SIZE
    assert config.max_position_embeddings == llama_config(name).max_position_embeddings == 2048
    assert model.generation_config.eos_token_id == 2
    logits = model(input_ids=torch.tensor([[1, 4, 300, 5]])).logits
    assert logits.shape == (1, 4, VOCAB_SIZE)
    assert bool(torch.isfinite(logits).all())


@pytest.mark.parametrize("name", MODELS)
def test_weights_are_stored_in_bf16(name: str) -> None:
    config = json.loads((model_path(name) / "config.json").read_text())
    assert config["dtype"] == "bfloat16"


@pytest.mark.parametrize(
    "text", ["def f(x):\n\treturn x  # naïve\n", "日本語 🙂", "", "  spaces   kept  "]
)
def test_tokenizer_round_trip(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids) == text


def test_completion_prompts_begin_with_bos(tokenizer: PreTrainedTokenizerFast) -> None:
    assert tokenizer("def f")["input_ids"][0] == tokenizer.bos_token_id == 1


def test_chat_template_renders_roles_and_opens_the_answer() -> None:
    loaded = AutoTokenizer.from_pretrained(model_path("draft"))
    messages = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "U"},
        {"role": "assistant", "content": "A"},
        {"role": "user", "content": "V"},
    ]
    text = loaded.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == f"{BOS}{SYSTEM}S{USER}U{ASSISTANT}A{EOS}{USER}V{ASSISTANT}"
    ids = loaded(text, add_special_tokens=False)["input_ids"]
    assert [token for token in ids if token < 6] == [1, 3, 4, 5, 2, 4, 5]


TRAINED_TEMPLATE = (
    "{{- bos_token }}{%- for message in messages %}{%- if message['role'] == 'assistant' %}"
    "{{- '<|assistant|>' + (message['content'] or '') + eos_token }}"
    "{%- elif message['role'] in ('system', 'developer') %}"
    "{{- '<|system|>' + (message['content'] or '') }}"
    "{%- else %}{{- '<|user|>' + (message['content'] or '') }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}"
)
"""The template of the demo's training."""


@pytest.mark.parametrize("model", ["target", "draft", "draft-small"])
def test_chats_without_tools_are_rendered_as_in_training(model: str) -> None:
    loaded = AutoTokenizer.from_pretrained(model_path(model))
    assert loaded.chat_template == CHAT_TEMPLATE
    chats: list[Any] = [prompt.messages for prompt in load_prompts()]
    chats += [
        [{"role": "developer", "content": ""}, {"role": "assistant", "content": None}],
        [{"role": role, "content": f"a {role} {{{{ x }}}}\n"} for role in ("user", "assistant")],
    ]
    for chat in chats:
        for opens in (False, True):
            texts = [
                loaded.apply_chat_template(
                    chat, chat_template=template, tokenize=False, add_generation_prompt=opens
                )
                for template in (None, TRAINED_TEMPLATE)
            ]
            assert texts[0] == texts[1]


def test_training_the_tokenizer_twice_gives_the_same_one() -> None:
    texts = [f"def function_{i}(value): return value + {i}" for i in range(300)]
    first, again = train_tokenizer(texts), train_tokenizer(texts)
    assert first.get_vocab() == again.get_vocab()
    assert [first.convert_tokens_to_ids(t) for t in (BOS, EOS, SYSTEM)] == [1, 2, 3]

"""Model folders for tests of what is refused before anything is loaded."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from tests.engine_adapter.vllm_engine.gateway.model_folders import LLAMA, WORDS, MakeModel


@pytest.fixture(autouse=True)
def on_v2(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets the variable that `prepare_environment` sets before the gateway makes configurations."""
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")


@pytest.fixture
def make_model(tmp_path: Path) -> MakeModel:
    """Writes a model folder without weights."""

    def make(
        name: str, config: dict[str, Any] | None = None, words: Sequence[str] | None = WORDS
    ) -> str:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(LLAMA if config is None else config))
        if words is not None:
            vocabulary = {word: i for i, word in enumerate(("<unk>", *words))}
            tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
            tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
            tokenizer.save(str(folder / "tokenizer.json"))
            settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>"}
            (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        return str(folder)

    return make

"""Files of prompts."""

from pathlib import Path

import pytest

from benchmarks.load import prompt_files
from benchmarks.load.prompt_files import PromptFileError, read_prompts


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "prompts.jsonl"


def test_chats_completions_and_spec_bench_can_be_mixed(path: Path) -> None:
    path.write_text(
        '{"messages": [{"role": "user", "content": "Hi"}], "label": "chat", "max_tokens": 7}\n'
        "\n"
        '{"prompt": "def f(", "id": "code"}\n'
        '{"prompt": [1, 2, 3]}\n'
        '{"question_id": 81, "category": "writing", "turns": ["First", "Then"], "reference": []}\n',
        encoding="utf-8",
    )
    hi, code, ids, question = read_prompts(path)
    assert (hi.label, hi.max_tokens, hi.path) == ("chat", 7, "/v1/chat/completions")
    assert (code.id, code.label, code.path) == ("code", "prompt", "/v1/completions")
    assert ids.content == {"prompt": [1, 2, 3]}
    assert (question.id, question.label) == ("81", "writing")
    assert question.content == {"messages": [{"role": "user", "content": "First"}]}


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "is not valid JSON"),
        ("[" * 100_000, "is not valid JSON"),
        ("[]", "must be a JSON object"),
        ("{}", "needs one of messages, prompt and turns"),
        ('{"prompt": ""}', "prompt must be a text or a list of token ids"),
        ('{"prompt": [true]}', "prompt must be a text or a list of token ids"),
        ('{"prompt": ["a"]}', "prompt must be a text or a list of token ids"),
        ('{"messages": []}', "messages must be a list of objects with a role"),
        ('{"messages": [{"content": "a"}]}', "messages must be a list of objects with a role"),
        ('{"turns": [1]}', "turns must be a list of texts"),
        ('{"prompt": "a", "label": 3}', "label must be a text"),
        ('{"prompt": "a", "max_tokens": 0}', "max_tokens must be an integer of at least 1"),
        ('{"prompt": "a", "max_tokens": true}', "max_tokens must be an integer of at least 1"),
        ('{"prompt": "a", "id": "1"}', "id '1' is used twice"),
    ],
)
def test_a_wrong_line_is_named(path: Path, line: str, complaint: str) -> None:
    path.write_text(f'{{"prompt": "good"}}\n{line}\n')
    with pytest.raises(PromptFileError, match=rf"prompts\.jsonl:2: {complaint}"):
        read_prompts(path)


def test_an_empty_file_is_refused(path: Path) -> None:
    path.write_text("\n\n")
    with pytest.raises(PromptFileError, match="no prompts"):
        read_prompts(path)


def test_length_and_number_of_lines_are_bounded(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_text('{"prompt": "a"}\n' * 1 + '{"prompt": "b"}\n')
    monkeypatch.setattr(prompt_files, "MAX_LINES", 1)
    with pytest.raises(PromptFileError, match=":2: at most 1 lines"):
        read_prompts(path)
    monkeypatch.setattr(prompt_files, "MAX_LINE_CHARS", 8)
    with pytest.raises(PromptFileError, match=r":1: at most .* 8 characters"):
        read_prompts(path)

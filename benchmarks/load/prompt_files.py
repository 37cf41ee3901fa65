"""Prompts from files of JSON lines: chats, completions, and Spec-Bench's questions."""

import json
from pathlib import Path
from typing import Any

from benchmarks.load.prompts import Prompt

MAX_LINES = 100_000
MAX_LINE_CHARS = 4 << 20


class PromptFileError(ValueError):
    """A line cannot be used; the message names file, line and field."""


def read_prompts(path: Path) -> list[Prompt]:
    """The prompts of a file, one a line; empty lines are skipped.

    A line is an object with `messages` (a chat) or `prompt` (a completion: a text or token ids),
    and optionally `label`, `id` and `max_tokens`. Or it is a question of Spec-Bench with `turns`:
    its first turn is the prompt, because the later ones need the answers to the earlier ones; its
    `category` is the label.

    Raises:
        PromptFileError: a line is not such an object, or the file has none or too many.
        OSError: the file cannot be read.
    """
    prompts: list[Prompt] = []
    seen: set[str] = set()
    with path.open(encoding="utf-8") as file:
        number = 0
        while text := file.readline(MAX_LINE_CHARS):
            number += 1
            place = f"{path}:{number}"
            if number > MAX_LINES or (len(text) == MAX_LINE_CHARS and text[-1] != "\n"):
                raise PromptFileError(
                    f"{place}: at most {MAX_LINES} lines of {MAX_LINE_CHARS} characters are read"
                )
            if text.strip():
                prompt = _prompt(text, place, str(number))
                if prompt.id in seen:
                    raise PromptFileError(f"{place}: id {prompt.id!r} is used twice")
                seen.add(prompt.id)
                prompts.append(prompt)
    if not prompts:
        raise PromptFileError(f"{path}: the file has no prompts")
    return prompts


def _prompt(text: str, place: str, number: str) -> Prompt:
    try:
        line = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PromptFileError(f"{place}: is not valid JSON ({error})") from None
    if not isinstance(line, dict):
        raise PromptFileError(f"{place}: must be a JSON object")
    label = line.get("label", line.get("category", "prompt"))
    if not isinstance(label, str) or not label.strip():
        raise PromptFileError(f"{place}: label must be a text that is not empty")
    limit = line.get("max_tokens")
    if limit is not None and (type(limit) is not int or limit < 1):
        raise PromptFileError(f"{place}: max_tokens must be an integer of at least 1")
    prompt_id = str(line.get("id", line.get("question_id", number)))
    return Prompt(prompt_id, label.strip(), _content(line, place), limit)


def _content(line: dict[str, Any], place: str) -> dict[str, Any]:
    if "messages" in line:
        messages = line["messages"]
        if not _is_list_of(messages, dict) or not all("role" in m for m in messages):
            raise PromptFileError(f"{place}: messages must be a list of objects with a role")
        return {"messages": messages}
    if "prompt" in line:
        prompt = line["prompt"]
        if not (isinstance(prompt, str) and prompt) and not _is_list_of(prompt, int):
            raise PromptFileError(f"{place}: prompt must be a text or a list of token ids")
        return {"prompt": prompt}
    if "turns" in line:
        if not _is_list_of(line["turns"], str):
            raise PromptFileError(f"{place}: turns must be a list of texts")
        return {"messages": [{"role": "user", "content": line["turns"][0]}]}
    raise PromptFileError(f"{place}: needs one of messages, prompt and turns")


def _is_list_of(value: object, kind: type) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is kind for item in value)

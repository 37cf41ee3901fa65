"""Chats that ask for an edited copy of code: the answer repeats most of the prompt.

They are made from the code in the demo's measured prompts, so no other data is needed. The
edit renames a definition, which every model that can edit code can do. The question has the words
of the demo's own training chats, so that the demo's target copies the code.
"""

import re
from collections.abc import Mapping, Sequence

from benchmarks.load.prompts import Prompt, Split, chat
from demo.prompts import Prompt as MeasuredPrompt

LABEL = "edit"
_CODE = re.compile(r"^(?:@.*\n|[ \t]*#.*\n)*(?:async )?(?:def|class) (\w+)", re.MULTILINE)
_FORMS = (
    "Rename `{old}` to `{new}` and repeat the whole code.",
    "Repeat the code of `{old}` with the name `{new}`.",
    "Show me the source of `{old}`, but call it `{new}`.",
)


def code_edits(measured: Sequence[MeasuredPrompt], halves: Mapping[str, Split]) -> list[Prompt]:
    """One chat for each different answer that is code, in the order of the prompts.

    Args:
        measured: the prompts whose answers are used.
        halves: corpus group -> half of its chats.
    """
    edits: list[Prompt] = []
    seen: set[str] = set()
    for prompt in measured:
        match = _CODE.search(prompt.reference)
        if match is None or (code := prompt.reference[match.start() :]) in seen:
            continue
        seen.add(code)
        old = match[1]
        form = _FORMS[len(edits) % len(_FORMS)]
        question = form.format(old=old, new=_renamed(old))
        content = f"{code}\n\n{question}"
        message = {"role": "user", "content": content}
        edits.append(chat(f"edit-{prompt.id}", LABEL, [message], halves[prompt.group]))
    return edits


def _renamed(name: str) -> str:
    """A new name in the style of the old one."""
    stem = name.strip("_")
    if stem[:1].isupper():
        return name.replace(stem, f"New{stem}", 1)
    return name.replace(stem, f"new_{stem}", 1) if stem else "renamed"

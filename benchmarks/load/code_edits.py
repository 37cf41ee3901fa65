"""Chats that ask for an edited copy of code: the answer repeats most of the prompt.

They are made from the code in the demo's measured prompts, so nothing else must be shipped. The
edit is the renaming of a definition, of which every model that can edit code is capable. The
question is phrased like the demo's own training chats, so that its target copies the code.
"""

import re
from collections.abc import Sequence

from benchmarks.load.prompts import Prompt, chat
from demo.prompts import Prompt as MeasuredPrompt

LABEL = "edit"
_CODE = re.compile(r"^(?:@.*\n|[ \t]*#.*\n)*(?:async )?(?:def|class) (\w+)", re.MULTILINE)
_FORMS = (
    "Rename `{old}` to `{new}` and repeat the whole code.",
    "Repeat the code of `{old}` with the name `{new}`.",
    "Show me the source of `{old}`, but call it `{new}`.",
)


def code_edits(measured: Sequence[MeasuredPrompt]) -> list[Prompt]:
    """One chat for each answer that is code, in the order of the prompts."""
    edits: list[Prompt] = []
    for prompt in measured:
        code = prompt.reference
        found = _CODE.search(code)
        if found is None:
            continue
        old = found[1]
        form = _FORMS[len(edits) % len(_FORMS)]
        question = form.format(old=old, new=_renamed(old))
        content = f"{code[found.start() :]}\n\n{question}"
        edits.append(chat(f"edit-{prompt.id}", LABEL, [{"role": "user", "content": content}]))
    return edits


def _renamed(name: str) -> str:
    """A new name in the style of the old one."""
    stem = name.strip("_")
    if stem[:1].isupper():
        return name.replace(stem, f"New{stem}", 1)
    return name.replace(stem, f"new_{stem}", 1) if stem else "renamed"

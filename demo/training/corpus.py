"""The corpus: short pieces of the Python standard library's sources.

Every machine with Python has this text, so the recipe needs no download. A piece is a function, a
method, the beginning of a class, a docstring or a paragraph of documentation. Pieces belong to
groups (a top-level definition of a module). A whole group is either trained on or held out, so
that a held-out method does not appear inside a trained class.
"""

from __future__ import annotations

import ast
import hashlib
import sysconfig
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

SPLIT_SEED = 2026
HELD_OUT_PERCENT = 3
MIN_CHARS = 70
MAX_CHARS = 1000

# Tests, code-page tables and generated parsers make poor training text.
_SKIPPED_PARTS = frozenset(
    {
        "test",
        "tests",
        "idle_test",
        "site-packages",
        "dist-packages",
        "encodings",
        "__pycache__",
        "lib2to3",
        "config",
        "__phello__",
        "_vendor",
    }
)
_SKIPPED_PREFIXES = ("_sysconfigdata", "_pydecimal_tables", "config-")

Kind = Literal["function", "method", "class", "doc", "text", "code"]


@dataclass(frozen=True, slots=True)
class Piece:
    """One short text of the corpus.

    Attributes:
        kind: `text` and `code` are fragments without a name.
        group: `module:top-level name`, the unit of the held-out split.
        name: of the definition; empty for fragments.
        owner: name of the enclosing class, or empty.
        signature: argument list without the parentheses (functions and methods).
        summary: first sentence of the docstring, or empty.
        text: dedented, without trailing newline.
    """

    kind: Kind
    group: str
    name: str
    owner: str
    signature: str
    summary: str
    text: str


def is_held_out(group: str, seed: int = SPLIT_SEED) -> bool:
    """True if the group belongs to the held-out split; a pure function of its name and seed."""
    digest = hashlib.sha256(f"{seed}:{group}".encode()).digest()
    return int.from_bytes(digest[:4], "big") % 100 < HELD_OUT_PERCENT


def source_files(root: Path | None = None) -> list[Path]:
    """The standard library's Python files under `root`, sorted, without tests and tables."""
    base = root or Path(sysconfig.get_paths()["stdlib"])
    return [path for path in sorted(base.rglob("*.py")) if _is_wanted(path.relative_to(base))]


def _is_wanted(relative: Path) -> bool:
    if any(part in _SKIPPED_PARTS for part in relative.parts):
        return False
    return not any(part.startswith(_SKIPPED_PREFIXES) for part in relative.parts)


def load_pieces(root: Path | None = None) -> list[Piece]:
    """All pieces in a deterministic order, without repeated texts.

    Args:
        root: a folder of Python sources; the running interpreter's standard library by default.
    """
    base = root or Path(sysconfig.get_paths()["stdlib"])
    seen: set[str] = set()
    pieces: list[Piece] = []
    for path in source_files(base):
        relative = path.relative_to(base).with_suffix("")
        module = ".".join(relative.parts).removesuffix(".__init__")
        try:
            source = path.read_text(encoding="utf-8")
            tree = ast.parse(source)
        except (SyntaxError, UnicodeDecodeError):
            continue
        for piece in _module_pieces(module, source, tree):
            if piece.text not in seen:
                seen.add(piece.text)
                pieces.append(piece)
    return pieces


def _module_pieces(module: str, source: str, tree: ast.Module) -> Iterator[Piece]:
    lines = source.splitlines()
    head = ast.get_docstring(tree)
    if head:
        yield from _paragraph_pieces(f"{module}:__doc__", head)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _function_pieces(f"{module}:{node.name}", "", node, lines)
        elif isinstance(node, ast.ClassDef):
            yield from _class_pieces(f"{module}:{node.name}", node, lines)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            yield from _topic_pieces(module, node.value)


def _topic_pieces(module: str, table: ast.Dict) -> Iterator[Piece]:
    """Long strings of a dictionary literal: pydoc's topics, a short language reference."""
    for key, value in zip(table.keys, table.values, strict=True):
        if not (isinstance(key, ast.Constant) and isinstance(value, ast.Constant)):
            continue
        topic, text = key.value, value.value
        if isinstance(topic, str) and isinstance(text, str) and len(text) > 400:
            yield from _paragraph_pieces(f"{module}:{topic}", text)


def _class_pieces(group: str, node: ast.ClassDef, lines: list[str]) -> Iterator[Piece]:
    doc = ast.get_docstring(node)
    text = _source_of(node, lines)
    if len(text) > MAX_CHARS:
        text = _cut(text.splitlines(), MAX_CHARS).rstrip()
    if len(text) >= MIN_CHARS:
        summary = _first_sentence(doc)
        yield Piece("class", group, node.name, "", "", summary, text)
    if doc:
        yield from _doc_pieces(group, node.name, "", "", doc)
    for member in node.body:
        if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _function_pieces(group, node.name, member, lines)


def _function_pieces(
    group: str, owner: str, node: ast.FunctionDef | ast.AsyncFunctionDef, lines: list[str]
) -> Iterator[Piece]:
    doc = ast.get_docstring(node)
    signature = ast.unparse(node.args)
    text = _source_of(node, lines)
    kind: Kind = "method" if owner else "function"
    if MIN_CHARS <= len(text) <= MAX_CHARS:
        yield Piece(kind, group, node.name, owner, signature, _first_sentence(doc), text)
    elif len(text) > MAX_CHARS:
        for part in _parts(text.splitlines(), MAX_CHARS):
            yield Piece("code", group, "", owner, "", "", part)
    if doc:
        yield from _doc_pieces(group, node.name, owner, signature, doc)


def _doc_pieces(group: str, name: str, owner: str, signature: str, doc: str) -> Iterator[Piece]:
    parts = _parts(doc.splitlines(), MAX_CHARS)
    for index, part in enumerate(parts):
        if len(part) < MIN_CHARS:
            continue
        kind: Kind = "doc" if index == 0 else "text"
        title = name if index == 0 else ""
        yield Piece(kind, group, title, owner, signature, _first_sentence(doc), part)


def _paragraph_pieces(group: str, text: str) -> Iterator[Piece]:
    for part in _parts(text.strip().splitlines(), MAX_CHARS):
        if len(part) >= MIN_CHARS:
            yield Piece("text", group, "", "", "", "", part)


def _source_of(
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, lines: list[str]
) -> str:
    start = min([node.lineno, *(item.lineno for item in node.decorator_list)])
    body = "\n".join(line.rstrip() for line in lines[start - 1 : node.end_lineno])
    return textwrap.dedent(body.expandtabs(8)).strip("\n")


def _parts(lines: list[str], limit: int) -> list[str]:
    """Split lines into parts of at most `limit` characters, at blank lines if possible."""
    parts: list[str] = []
    tail = lines
    while tail:
        part = _cut(tail, limit)
        num_lines = max(1, part.count("\n") + 1) if part else 1
        if part.strip():
            parts.append(textwrap.dedent(part).strip("\n")[:limit])
        tail = tail[num_lines:]
    return parts


def _cut(lines: list[str], limit: int) -> str:
    """The longest prefix of `lines` within `limit` characters, up to a blank line if possible."""
    size, end, blank = 0, 0, 0
    for index, line in enumerate(lines):
        size += len(line) + 1
        if size > limit:
            break
        end = index + 1
        if not line.strip():
            blank = end
    if end == len(lines) or not blank or blank < end // 3:
        return "\n".join(lines[: max(end, 1)])
    return "\n".join(lines[:blank])


def _first_sentence(doc: str | None) -> str:
    if not doc:
        return ""
    paragraph = " ".join(doc.strip().split("\n\n")[0].split())
    sentence = paragraph.split(". ")[0].rstrip(".").strip()
    return sentence if 8 <= len(sentence) <= 160 else ""

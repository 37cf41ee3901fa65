"""Checks of the documentation: each takes texts and what must hold, and returns its findings."""

import ast
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

HOSTS = frozenset(
    {
        *("127.0.0.1", "github.com", "arxiv.org", "keepachangelog.com", "semver.org"),
        # A Service of deploy/kubernetes.
        "specgate-replicas",
    }
)
"""Every host that the documentation may name."""

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PATH = re.compile(
    r"`((?:server|engine_adapter|demo|benchmarks|tests|docs|\.ci)/[\w./-]*|\w+\.(?:md|toml|txt))(?::(\w+))?`"
)
_CODE_AT = {"InvalidField": 2, "SelectionError": 2, "Unavailable": 1, "ProposerRefused": 0}


def read(root: Path) -> dict[str, str]:
    """Path -> text of every page."""
    pages = [*root.glob("*.md"), *root.glob("docs/**/*.md"), root / "demo/README.md"]
    return {page.relative_to(root).as_posix(): page.read_text("utf-8") for page in pages}


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of a language, as they stand."""
    return [body for name, body in _FENCE.findall(text) if name == language]


def rows(text: str) -> list[list[str]]:
    """The cells of every table row."""
    lines = [line.strip() for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def section(text: str, heading: str) -> str:
    """From a heading of level two to the next one."""
    _, found, rest = text.partition(f"\n## {heading}\n")
    return rest.partition("\n## ")[0] if found else ""


def slugs(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def missing(text: str, words: Iterable[str]) -> list[str]:
    """Words that the text never has in backticks, alone or in a list."""
    return [word for word in words if not re.search(rf"`{re.escape(word)}`", text)]


def broken_links(root: Path, pages: Mapping[str, str]) -> list[str]:
    """Relative links that lead nowhere, anchors included."""
    findings = []
    for page, text in pages.items():
        for target in re.findall(r"\]\(([^)]+)\)", text):
            if "://" in target:
                continue
            path, _, anchor = target.partition("#")
            file = (root / page).parent / path if path else root / page
            if not file.exists() or (anchor and anchor not in slugs(file.read_text("utf-8"))):
                findings.append(f"{page}: {target}")
    return findings


def wrong_paths(root: Path, pages: Mapping[str, str]) -> list[str]:
    """Paths in backticks that do not exist, and names behind a colon that are not defined there."""
    findings = []
    for page, text in pages.items():
        for path, name in _PATH.findall(text):
            places = [root / path, (root / page).parent / path]
            file = next((place for place in places if place.exists()), None)
            if file is None:
                findings.append(f"{page}: {path}")
            elif name and name not in _defined(file):
                findings.append(f"{page}: {path}:{name}")
    return findings


def _defined(file: Path) -> set[str]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, kinds)}


def untested_promises(root: Path, text: str) -> list[str]:
    """Rows of the table of threats whose last cell names no test file that exists."""
    header, _, *promises = rows(section(text, "Threats, and what is done"))
    assert header == ["threat", "what is done", "test"]
    findings = []
    for cells in promises:
        named = re.findall(r"`(tests/(?:\w+/)*test_\w+\.py)`", cells[-1])
        if len(cells) != 3 or not named or not all((root / path).is_file() for path in named):
            findings.append(cells[0])
    return findings


def private_places(pages: Mapping[str, str]) -> list[str]:
    """Paths of one machine, and hosts that are not in `HOSTS`."""
    findings = []
    for page, text in pages.items():
        paths = re.findall(r"(?<![\w.])/(?:work|tmp|root|home|mnt|opt|srv)/[\w./-]*", text)
        hosts = re.findall(r"https?://([^/\s)\"'`:,]+)", text)
        bare = re.findall(r"\b[\w-]+(?:\.[\w-]+)*\.(?:org|com|net|io|dev|internal|local)\b", text)
        findings += [f"{page}: {found}" for found in paths]
        findings += [f"{page}: {found}" for found in {*hosts, *bare} - HOSTS]
    return findings


def unreadable_blocks(pages: Mapping[str, str]) -> list[str]:
    """JSON and Python in fences that do not parse."""
    findings = []
    for page, text in pages.items():
        for language, parse in (("json", json.loads), ("python", ast.parse)):
            for block in blocks(text, language):
                try:
                    parse(block)
                except (ValueError, SyntaxError) as error:
                    findings.append(f"{page}: {language}: {error}")
    return findings


def unknown_metrics(pages: Mapping[str, str], names: Iterable[str]) -> list[str]:
    """Metrics that the pages name and the code does not write; a star matches any ending.

    A recorded rule has its metric between colons; `tests/deploy/prometheus` checks rules.
    """
    known = {f"{name}{suffix}" for name in names for suffix in ("", "_bucket", "_sum", "_count")}
    findings = []
    for page, text in pages.items():
        found = re.findall(r"(?<![\w/.:-])(?:vllm:|specgate_)[a-z0-9_]+\*?", text)
        for name in sorted(set(found)):
            stem = name.rstrip("*")
            held = any(k.startswith(stem) for k in known) if name != stem else stem in known
            if not held and stem != "specgate_switch":
                findings.append(f"{page}: {name}")
    return findings


def unknown_flags(pages: Mapping[str, str], flags: Iterable[str]) -> list[str]:
    """Flags of `specgate serve` and `SPECGATE_*` variables that no setting has."""
    known = set(flags)
    findings = []
    for page, text in pages.items():
        commands = re.findall(r"specgate serve(?:[^\n`]*\\\n)*[^\n`]*", text)
        words = [word for command in commands for word in re.findall(r"(--[a-z][\w-]+)", command)]
        words += re.findall(r"`(--[a-z][\w-]+)[^`]*`", text)
        variables = re.findall(r"\bSPECGATE_([A-Z][A-Z_]+)\b", text)
        words += [f"--{name.lower().replace('_', '-')}" for name in variables]
        findings += [f"{page}: {word}" for word in sorted(set(words) - known)]
    return findings


def undocumented_options(text: str, methods: Iterable[Any]) -> list[str]:
    """Options of proposers that no table has with their default, and rows without an option.

    Default ks are in the table of all methods, a method's own options in its section, and options
    that several methods have in a section of theirs.
    """
    default_ks = _defaults(text, "Which one to use")
    shared = _defaults(text, "Options of models and heads")
    findings = []
    for method in methods:
        table = _defaults(text, f"`{method.name}`")
        want = {f"`{name}`": f"`{value}`" for name, value in method.options.items()}
        default_k = f"`{method.default_k}`"
        if method.capabilities.members:
            which = "largest" if method.default_k is max else "sum"
            want["`members`"], default_k = "required", f"its members' {which}"
        if default_ks.get(f"`{method.name}`") != default_k:
            findings.append(f"{method.name}: k")
        findings += [
            f"{method.name}: {name}"
            for name in sorted({*want, *table})
            if want.get(name) != table.get(name, shared.get(name))
        ]
    return findings


def _defaults(text: str, heading: str) -> dict[str, str]:
    """The first two cells of each row of a section's tables."""
    return {cells[0]: cells[1] for cells in rows(section(text, heading))[2:]}


def error_codes(sources: Iterable[str]) -> Iterator[str]:
    """The codes of every error that the sources build."""
    for source in sources:
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                at = _CODE_AT.get(node.func.id)
                given = [k.value for k in node.keywords if k.arg == "code"]
                given += node.args[at : at + 1] if at is not None else []
                yield from (
                    a.value
                    for a in given
                    if isinstance(a, ast.Constant) and isinstance(a.value, str)
                )

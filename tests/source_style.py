"""Checks on a source tree: names, docstrings and sizes; returned as in `tests.architecture`."""

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

from tests.source_imports import FunctionNode, is_in, parse, sources

MAX_FILE_LINES = 400
SOFT_FUNCTION, HARD_FUNCTION = 40, 60
VAGUE_NAMES = frozenset({"utils", "util", "helpers", "helper", "common", "misc"})
BARE_NAMES = frozenset(
    {
        *("asked", "begun", "came", "chosen", "drawn", "due", "ended", "found", "given", "gone"),
        *("held", "kept", "known", "left", "lost", "made", "meant", "put", "read", "said"),
        *("sent", "shown", "taken", "told", "used", "wanted", "went", "written"),
        *("did", "does", "has", "have"),
        *("after", "alone", "at", "before", "by", "first", "full", "into", "last", "later"),
        *("least", "most", "now", "of", "open", "single", "to", "whole"),
        *("both", "every", "many", "mine", "one", "others", "own", "rest", "same", "some"),
    }
)
"""Words that do not name a value: a participle or preposition has neither type nor role."""

FORCED_NAMES: frozenset[str] = frozenset()
"""Names of arguments that an overridden method of vLLM's forces on ours: `module.name`."""


def vague_names(root: Path) -> list[str]:
    """Modules and packages whose names name no concern."""
    return [module for module, _ in sources(root) if module.rpartition(".")[2] in VAGUE_NAMES]


def bare_names(root: Path) -> list[str]:
    """Locals and arguments of functions that say nothing of what they are, outside the tests."""
    return [
        f"{module}:{line} is called {name}"
        for module, path in sources(root)
        if is_in(module, "server", "engine_adapter", "benchmarks", "demo", "deploy")
        for line, name in sorted(set(_local_names(parse(path))))
        if name in BARE_NAMES and f"{module}.{name}" not in FORCED_NAMES
    ]


def _local_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The locals and arguments of all functions, each with its line."""
    for function in ast.walk(tree):
        if not isinstance(function, FunctionNode | ast.Lambda):
            continue
        for node in ast.walk(function):
            match node:
                case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
                    yield node.lineno, name
                case ast.MatchAs(name=str(name)) | ast.ExceptHandler(name=str(name)):
                    yield node.lineno, name


def missing_docstrings(root: Path) -> list[str]:
    """Modules, and public classes, functions and methods, that say nothing.

    An empty `__init__.py` has nothing to say.
    """
    missing = []
    for module, path in sources(root):
        tree = parse(path)
        if tree.body and not ast.get_docstring(tree):
            missing.append(module)
        missing += [f"{module}.{name}" for name in _undocumented(tree, "")]
    return missing


def _undocumented(node: ast.Module | ast.ClassDef, prefix: str) -> Iterator[str]:
    for child in node.body:
        if not isinstance(child, ast.ClassDef | FunctionNode) or child.name.startswith("_"):
            continue
        if not ast.get_docstring(child):
            yield prefix + child.name
        if isinstance(child, ast.ClassDef):
            yield from _undocumented(child, f"{prefix}{child.name}.")


def long_files(root: Path) -> list[str]:
    """Files over the limit."""
    counts = ((module, len(path.read_text().splitlines())) for module, path in sources(root))
    return [f"{module}: {count} lines" for module, count in counts if count > MAX_FILE_LINES]


def long_functions(root: Path) -> list[str]:
    """Functions over the hard limit, or over the soft one without a reason in their docstring.

    A docstring does not count as lines.
    """
    return [
        f"{module}.{node.name}: {_length(node)} lines"
        for module, path in sources(root)
        for node in ast.walk(parse(path))
        if isinstance(node, FunctionNode)
        and _length(node) > (HARD_FUNCTION if _gives_reason(node) else SOFT_FUNCTION)
    ]


def processes_that_import_from_their_folder(root: Path) -> list[str]:
    """Processes of Python that are started without `-P`.

    The folder in which a user runs a command may have a `server` of its own, or a `numpy.py`.
    """
    return [
        f"{module}:{node.lineno} starts Python without -P"
        for module, path in sources(root)
        if "sys.executable" in path.read_text()
        for node in ast.walk(parse(path))
        if isinstance(node, ast.expr)
        for word, following in itertools.pairwise([*_words(node), ""])
        if word == "sys.executable" and following != "'-P'"
    ]


def _words(node: ast.expr) -> list[str]:
    """The elements of a list or tuple, or the arguments of a call, as source."""
    if isinstance(node, ast.List | ast.Tuple):
        return [ast.unparse(element) for element in node.elts]
    return [ast.unparse(argument) for argument in node.args] if isinstance(node, ast.Call) else []


def wall_clock_durations(root: Path) -> list[str]:
    """Calculations with, and comparisons of, the time of day: it jumps when the clock is set.

    It is known as what `time.time`, `time.time_ns` or `datetime.now` return, and as a local name
    of that.
    """
    return [
        f"{module}:{line} calculates with the time of day"
        for module, path in sources(root)
        if _WALL_CLOCK.search(path.read_text())
        for scope in ast.walk(parse(path))
        if isinstance(scope, FunctionNode)
        for line in _calculations(scope)
    ]


_WALL_CLOCK = re.compile(r"\btime\.time|\bfrom time import|datetime\.now")


def _calculations(scope: FunctionNode) -> Iterator[int]:
    """The lines of a function that calculate with the time of day."""
    names = {name for node in ast.walk(scope) for name in _names_of_now(node)}
    for node in ast.walk(scope):
        if isinstance(node, ast.BinOp | ast.Compare):
            operands = list(ast.iter_child_nodes(node))
            named = {operand.id for operand in operands if isinstance(operand, ast.Name)}
            if names & named or any(map(_is_now, operands)):
                yield node.lineno


def _names_of_now(node: ast.AST) -> Iterator[str]:
    """The names that an assignment gives to the time of day."""
    if isinstance(node, ast.Assign):
        target, value = node.targets[0], node.value
        pairs: list[tuple[ast.expr, ast.expr]] = [(target, value)]
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            pairs = list(zip(target.elts, value.elts, strict=True))
        yield from (t.id for t, v in pairs if isinstance(t, ast.Name) and _is_now(v))


def _is_now(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    called = ast.unparse(node.func)
    return called in {"time.time", "time.time_ns", "time", "datetime.now", "datetime.datetime.now"}


def _gives_reason(node: FunctionNode) -> bool:
    """A sentence of the docstring begins with "Long because"."""
    return bool(re.search(r"(?:^|[.:]\s+|\n\s*)Long because \w", ast.get_docstring(node) or ""))


def _length(node: FunctionNode) -> int:
    lines = (node.end_lineno or node.lineno) - node.lineno + 1
    first = node.body[0]
    if ast.get_docstring(node) and isinstance(first, ast.Expr):
        lines -= (first.end_lineno or first.lineno) - first.lineno + 1
    return lines

"""The modules of a source tree, and every import of them.

Imports are parsed, never executed; those inside functions count too.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PACKAGES = ("server", "engine_adapter", "demo", "benchmarks", "deploy")

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Import:
    """One imported name.

    Attributes:
        importer: the module that imports.
        target: dotted: the module, and the name taken from it if there is one.
        line: where.
        at_import: it runs when the importer is imported.
    """

    importer: str
    target: str
    line: int
    at_import: bool

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.target}"


def sources(root: Path) -> Iterator[tuple[str, Path]]:
    """Every module of the tree: its dotted name and its file."""
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def parse(path: Path) -> ast.Module:
    """The file's syntax tree."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@cache
def imports(root: Path) -> list[Import]:
    """Every import of the tree, as it is when it is first asked for."""
    return [
        found
        for module, path in sources(root)
        for found in _imports_of(module, path.name == "__init__.py", parse(path), True)
    ]


def _imports_of(module: str, is_package: bool, node: ast.AST, at_import: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(module, alias.name, child.lineno, at_import)
        elif isinstance(child, ast.ImportFrom):
            base = _base(module, is_package, child)
            for alias in child.names:
                target = base if alias.name == "*" else f"{base}.{alias.name}"
                yield Import(module, target, child.lineno, at_import)
        else:
            later = isinstance(child, FunctionNode | ast.Lambda) or _is_for_types(child)
            yield from _imports_of(module, is_package, child, at_import and not later)


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _base(module: str, is_package: bool, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    package = parts[: len(parts) - node.level + is_package]
    return ".".join([*package, node.module] if node.module else package)


def is_in(name: str, *parents: str) -> bool:
    """Whether a dotted name is one of the parents or below one."""
    return any(name == p or name.startswith(f"{p}.") for p in parents)


def import_graph(edges: list[Import], root: Path) -> dict[str, set[str]]:
    """Module -> the modules of the tree that it imports."""
    graph: dict[str, set[str]] = {module: set() for module, _ in sources(root)}
    for found in edges:
        target = found.target if found.target in graph else found.target.rpartition(".")[0]
        if target in graph and target != found.importer:
            graph[found.importer].add(target)
    return graph

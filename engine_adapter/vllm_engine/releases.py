"""What a release of vLLM changes of all that Specgate depends on, from the sources of two of them.

    python -m engine_adapter.vllm_engine.releases OLD NEW

OLD and NEW are folders that hold a `vllm` package, such as site-packages or an unpacked sdist.
Neither is imported. The report is what docs/upgrading-vllm.md asks to read; docstrings, comments
and formatting do not count as changes.
"""

import argparse
import ast
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

from engine_adapter.vllm_engine.compat import NAMES
from engine_adapter.vllm_engine.defects import DEFECTS
from engine_adapter.vllm_engine.internals import (
    CONFIGURATIONS,
    HOOKS,
    MESSAGES,
    PATCHED_CODE,
)

ADAPTER = Path(__file__).parents[1]
ENVIRONMENT = (NAMES["envs"].removesuffix(":"), "environment_variables")
_VARIABLE = re.compile(r"VLLM_[A-Z0-9_]+")
_CALLERS_IN = ("v1", "config")
"""Folders of vLLM whose code calls hooked methods."""

Row = tuple[str, str | None, str | None]
"""What it is, and its code in either release."""

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Sources:
    """The sources of one release.

    Args:
        folder: holds the package `vllm`.

    Raises:
        FileNotFoundError: it does not.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        if not (folder / "vllm" / "__init__.py").is_file():
            raise FileNotFoundError(f"{folder} holds no package vllm")
        self.tree = cache(self._tree)
        self.callers = cache(self._callers)

    def _tree(self, module: str) -> ast.Module:
        """A module's code, empty if there is none."""
        path = self._folder / module.replace(".", "/")
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        return ast.parse(path.read_text(encoding="utf-8") if path.is_file() else "")

    def code(self, module: str, name: str) -> str | None:
        """The code of a definition, a field or an attribute that methods set; `None` if missing.

        Args:
            module: dotted; names that it imports from vLLM are followed.
            name: "function", "Class", "Class.method" or "Class.field"; bases are searched too.
        """
        outer, _, inner = name.partition(".")
        node: ast.AST | None = _named(self.tree(module).body, outer)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vllm"):
            original = next(a.name for a in node.names if (a.asname or a.name) == outer)
            return self.code(str(node.module), f"{original}.{inner}" if inner else original)
        if node is None or not inner:
            return None if node is None else _text(node)
        assert isinstance(node, ast.ClassDef), f"{module}:{name}"
        if (member := _named(node.body, inner) or _assigned(node, inner)) is not None:
            return _text(member)
        bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
        inherited = (self.code(module, f"{base}.{inner}") for base in bases)
        return next((code for code in inherited if code is not None), None)

    def _callers(self) -> dict[str, dict[str, str]]:
        """Hook -> the functions that call a method of that name, each with its code."""
        hooks = {hook for names in HOOKS.values() for hook in names}
        sources: dict[str, dict[str, str]] = {hook: {} for hook in hooks}
        package = self._folder / "vllm"
        for path in sorted(p for part in _CALLERS_IN for p in (package / part).rglob("*.py")):
            place = path.relative_to(package).as_posix()
            for name, function in _functions(ast.parse(path.read_text(encoding="utf-8")).body):
                for hook in hooks & _called_in(function):
                    sources[hook][f"{place}: {name}"] = _text(function)
        return sources

    def variable(self, name: str) -> str | None:
        """How vLLM reads an environment variable; `None` if it does not."""
        node = _named(self.tree(ENVIRONMENT[0]).body, ENVIRONMENT[1])
        table = getattr(node, "value", None)
        pairs = zip(table.keys, table.values, strict=True) if isinstance(table, ast.Dict) else ()
        return next(
            (_text(v) for k, v in pairs if isinstance(k, ast.Constant) and k.value == name), None
        )

    def says(self, module: str, message: str) -> str | None:
        """The message, if the module has it."""
        texts = (n.value for n in ast.walk(self.tree(module)) if isinstance(n, ast.Constant))
        return message if any(isinstance(t, str) and message in t for t in texts) else None


def report(old: Sources, new: Sources) -> Iterator[str]:
    """The lines of the report: a title for each kind, and below it what has changed."""

    def row(name: str, extract: Callable[..., str | None], *place: str) -> Row:
        return name, extract(old, *place), extract(new, *place)

    code = Sources.code
    kinds = {
        "Hooked methods": [
            row(f"{name}.{hook}", code, *_place(name, hook))
            for name, hooks in HOOKS.items()
            for hook in hooks
        ],
        "Patched code": [row(place, code, *place.split(":")) for place in PATCHED_CODE],
        "Code with defects": [
            row(f"{name} ({defect.repair}): {place}", code, *place.split(":"))
            for name, defect in DEFECTS.items()
            for place in defect.code
        ],
        "Configuration fields": [
            row(f"{config}.{field}", code, *_configuration(config, field))
            for config, field in sorted(configuration_fields())
            if old.code(*_configuration(config, field)) is not None
        ],
        "Environment variables": [
            row(name, Sources.variable, name) for name in sorted(variables())
        ],
        "Messages that are read": [
            row(repr(text), Sources.says, module, text) for text, module in MESSAGES.items()
        ],
        "Callers of hooked methods": [
            (f"{hook}() in {place}", old.callers()[hook].get(place), new.callers()[hook].get(place))
            for hook in sorted(old.callers())
            for place in sorted(old.callers()[hook].keys() | new.callers()[hook].keys())
        ],
    }
    for title, rows in kinds.items():
        yield from _section(title, rows)


def _section(title: str, rows: Iterable[Row]) -> Iterator[str]:
    changes = []
    for name, old_code, new_code in rows:
        if new_code is None:
            changes.append(f"- gone: {name}")
        elif old_code is None:
            changes.append(f"- new: {name}")
        elif old_code != new_code:
            changes.append(f"- changed: {name}")
    yield f"## {title}: {len(changes)}"
    yield from dict.fromkeys(changes)


def configuration_fields() -> set[tuple[str, str]]:
    """The fields of vLLM's configurations that the adapter reads, each with its configuration."""
    fields = set()
    for path in (ADAPTER / "vllm_engine").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute):
                owner = getattr(node.value, "attr", None) or getattr(node.value, "id", None)
                if owner in CONFIGURATIONS:
                    fields.add((owner, node.attr))
    return fields


def variables() -> set[str]:
    """vLLM's environment variables that the adapter names."""
    files = (ADAPTER / "vllm_engine").rglob("*.py")
    return {
        node.value
        for path in files
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and _VARIABLE.fullmatch(node.value)
    }


def _place(name: str, inner: str) -> tuple[str, str]:
    """The module and the dotted name of a member of a name of `compat.NAMES`."""
    module, _, original = NAMES[name].partition(":")
    return module, f"{original or name}.{inner}"


def _configuration(config: str, field: str) -> tuple[str, str]:
    module, _, kind = CONFIGURATIONS[config].partition(":")
    return module, f"{kind}.{field}"


def _named(body: Iterable[ast.stmt], name: str) -> ast.stmt | None:
    """The last statement of a body that defines or imports a name; branches are searched too."""
    definition = None
    for node in body:
        if isinstance(node, Definition):
            names = {node.name}
        elif isinstance(node, ast.ImportFrom):
            names = {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = {each.id for each in targets if isinstance(each, ast.Name)}
        elif isinstance(node, ast.If | ast.Try):
            definition = _named([*node.body, *node.orelse], name) or definition
            continue
        else:
            continue
        definition = node if name in names else definition
    return definition


def _assigned(kind: ast.ClassDef, name: str) -> ast.AST | None:
    """The first assignment to `self.name` in the methods of a class."""
    for node in ast.walk(kind):
        if isinstance(node, ast.Attribute) and node.attr == name:
            is_own = isinstance(node.value, ast.Name) and node.value.id == "self"
            if is_own and isinstance(node.ctx, ast.Store):
                return node
    return None


def _functions(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, Definition]]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _functions(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name, node


def _called_in(function: ast.AST) -> set[str]:
    calls = (node.func for node in ast.walk(function) if isinstance(node, ast.Call))
    return {call.attr for call in calls if isinstance(call, ast.Attribute)}


def _text(node: ast.AST) -> str:
    """The code without docstrings, comments and formatting."""
    copy = ast.parse(ast.unparse(node))
    for inner in ast.walk(copy):
        if isinstance(inner, Definition) and ast.get_docstring(inner, clean=False) is not None:
            inner.body = inner.body[1:] or [ast.Pass()]
    return ast.unparse(copy)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    arguments = parser.parse_args()
    print(*report(Sources(arguments.old), Sources(arguments.new)), sep="\n")

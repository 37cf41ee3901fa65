"""Specgate's subclasses of vLLM's classes, found in the source, and what vLLM has under a name."""

import ast
import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Subclass:
    """A class over one or more names of `compat`, its mixins included.

    Attributes:
        name: its own name.
        upstream: the names of `compat` that it inherits from.
        methods: every method of the class and its mixins; dunder methods are left out.
        set_on_self: attributes that are assigned on `self`, or in the class.
        taken_from_self: attributes that are read or assigned on `self`.
    """

    name: str
    upstream: frozenset[str]
    methods: dict[str, Function]
    set_on_self: frozenset[str]
    taken_from_self: frozenset[str]


def subclasses(sources: Iterable[str]) -> list[Subclass]:
    """Every class of the sources that has an attribute of `compat` among its bases."""
    trees = [ast.parse(source) for source in sources]
    classes = {
        node.name: node
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    found = []
    for node in classes.values():
        if upstream := frozenset(name for base in node.bases for name in _from_compat(base)):
            mixins = [classes[b.id] for b in node.bases if isinstance(b, ast.Name)]
            found.append(_subclass(node.name, upstream, [*mixins, node]))
    return found


def _from_compat(base: ast.expr) -> Iterator[str]:
    for node in ast.walk(base):
        if isinstance(node, ast.Attribute) and _is_name(node.value, "compat"):
            yield node.attr


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _subclass(name: str, upstream: frozenset[str], parts: list[ast.ClassDef]) -> Subclass:
    body = [statement for part in parts for statement in part.body]
    methods = {node.name: node for node in body if isinstance(node, Function)}
    on_self = [
        node
        for part in parts
        for node in ast.walk(part)
        if isinstance(node, ast.Attribute) and _is_name(node.value, "self")
    ]
    assigned = {node.attr for node in on_self if isinstance(node.ctx, ast.Store)}
    return Subclass(
        name,
        upstream,
        {name: node for name, node in methods.items() if not name.startswith("__")},
        frozenset(assigned | set(_class_variables(body))),
        frozenset(node.attr for node in on_self) | set(_class_variables(body)),
    )


def _class_variables(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign):
            targets = [node.target]
        yield from (target.id for target in targets if isinstance(target, ast.Name))


def calls_super(method: Function) -> bool:
    """Whether an override calls the method that it overrides."""
    return any(
        isinstance(node, ast.Attribute)
        and node.attr == method.name
        and isinstance(node.value, ast.Call)
        and _is_name(node.value.func, "super")
        for node in ast.walk(method)
    )


def wrong_parameters(method: Function, upstream: Any) -> str | None:
    """How the parameters of an override differ from those of vLLM's method, or `None`.

    Those that the override names are vLLM's first ones, in order and under the same names. All are
    named, unless it takes `*args` and `**kwargs`.
    """
    theirs = [p for p in inspect.signature(upstream).parameters if p != "self"]
    arguments = method.args
    ours = [a.arg for a in [*arguments.posonlyargs, *arguments.args]]
    if not any(_is_name(each, "staticmethod") for each in method.decorator_list):
        ours = ours[1:]
    takes_rest = arguments.vararg is not None and arguments.kwarg is not None
    expected = theirs[: len(ours)] if takes_rest else theirs
    if ours + [a.arg for a in arguments.kwonlyargs] == expected:
        return None
    return f"{method.name}({', '.join(ours)}) overrides {method.name}({', '.join(theirs)})"


def has_attribute(owner: Any, name: str) -> bool:
    """Whether vLLM's class or module has an attribute, or sets it on its instances."""
    if hasattr(owner, name):
        return True
    if not inspect.isclass(owner):
        return False
    declared = {field for kind in owner.__mro__ for field in vars(kind).get("__annotations__", {})}
    return name in declared or any(name in _assigned_on_self(kind) for kind in owner.__mro__)


@cache
def _assigned_on_self(kind: type) -> set[str]:
    if kind is object or not inspect.getsourcefile(kind):
        return set()
    tree = ast.parse(inspect.cleandoc("\n" + inspect.getsource(kind)))
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and _is_name(node.value, "self")
    }


def is_called(owner: type, name: str) -> bool:
    """Whether vLLM calls a method of a class.

    An internal method is called on `self` in a module of the class or of a base, or on the class,
    if it is static. Any other may be called anywhere in the package of vLLM's engine, also through
    an actor of Ray.
    """
    modules = [sys.modules[kind.__module__] for kind in owner.__mro__ if kind is not object]
    on_self = re.compile(rf"\b(self(\.\w+)*|{owner.__name__})\.{name}\(")
    if any(on_self.search(inspect.getsource(module)) for module in modules):
        return True
    calls = (f".{name}(", f".{name}.remote(")
    return not name.startswith("_") and any(call in _engine_source() for call in calls)


@cache
def _engine_source() -> str:
    (folder,) = sys.modules["vllm.v1"].__path__
    return "\n".join(path.read_text(encoding="utf-8") for path in Path(folder).rglob("*.py"))

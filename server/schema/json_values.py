"""What JSON values of a body can hold besides what their types say."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from server.text import is_unicode


def is_nested_deeper(value: Any, levels: int) -> bool:
    """Whether objects and lists are nested in more than `levels` levels."""
    level = [value]
    for _ in range(levels):
        inner = [child for node in level for child in _children(node)]
        level = [child for child in inner if isinstance(child, dict | list)]
        if not level:
            return False
    return True


def is_larger(value: Any, values: int, chars: int) -> bool:
    """Whether there are more than `values` values, or more than `chars` characters in texts.

    Objects and lists count as values, names of fields as texts. No more than these are looked at.
    """
    nodes = [value]
    while nodes:
        node = nodes.pop()
        values -= 1
        if isinstance(node, str):
            chars -= len(node)
        elif isinstance(node, Mapping):
            chars -= sum(map(len, node))
            nodes.extend(node.values())
        elif isinstance(node, list | tuple):
            nodes.extend(node)
        if chars < 0 or len(nodes) > values:
            return True
    return False


def surrogate_path(value: Any) -> str | None:
    """The dotted path of a text with a lone surrogate; for a key, that of its object."""
    nodes: list[tuple[tuple[str, ...], Any]] = [((), value)]
    while nodes:
        path, node = nodes.pop()
        if isinstance(node, str):
            if not is_unicode(node):
                return ".".join(path)
            continue
        entries = list(_entries(node))
        if not all(is_unicode(key) for key, _ in entries):
            return ".".join(path)
        nodes.extend(((*path, key), child) for key, child in reversed(entries))
    return None


def _entries(node: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(node, BaseModel):
        yield from vars(node).items()
        yield from (node.model_extra or {}).items()
    elif isinstance(node, Mapping):
        yield from node.items()
    elif isinstance(node, list):
        yield from ((str(i), child) for i, child in enumerate(node))


def _children(node: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return node.values() if isinstance(node, dict) else node

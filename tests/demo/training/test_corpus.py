"""The corpus is deterministic, and its split keeps groups together."""

from __future__ import annotations

from pathlib import Path

from demo.training.corpus import MAX_CHARS, Piece, is_held_out, load_pieces, source_files


def test_pieces_are_the_same_each_time(library: Path, pieces: list[Piece]) -> None:
    assert load_pieces(library) == pieces


def test_test_folders_are_left_out(library: Path, pieces: list[Piece]) -> None:
    assert [path.name for path in source_files(library)] == [
        "module0.py",
        "module1.py",
        "module2.py",
    ]
    assert not any("area_999" in piece.text for piece in pieces)


def test_functions_methods_classes_and_docstrings_become_pieces(pieces: list[Piece]) -> None:
    kinds = {piece.kind for piece in pieces if piece.group == "module0:Shape3"}
    assert kinds == {"class", "method"}
    function = next(p for p in pieces if p.name == "area_3" and p.kind == "function")
    assert function.text.startswith('def area_3(width, height=2):\n    """Return')
    assert function.signature == "width, height=2"
    assert function.summary == "Return the area of a rectangle number 3"
    assert any(p.kind == "doc" and p.name == "area_3" for p in pieces)


def test_texts_are_unique_and_within_the_limit(pieces: list[Piece]) -> None:
    texts = [piece.text for piece in pieces]
    assert len(set(texts)) == len(texts)
    assert max(map(len, texts)) <= MAX_CHARS


def test_split_keeps_a_class_together_with_its_methods(pieces: list[Piece]) -> None:
    splits: dict[str, set[bool]] = {}
    for piece in pieces:
        splits.setdefault(piece.group, set()).add(is_held_out(piece.group))
    assert all(len(split) == 1 for split in splits.values())


def test_split_holds_out_about_three_percent_and_depends_on_the_seed() -> None:
    groups = [f"module:name{i}" for i in range(10_000)]
    held_out = {group for group in groups if is_held_out(group)}
    assert 200 < len(held_out) < 400
    assert held_out != {group for group in groups if is_held_out(group, seed=1)}


def test_long_functions_are_cut_into_unnamed_code(tmp_path: Path) -> None:
    body = "\n".join(f"    value_{i} = compute(value_{i - 1}, {i})" for i in range(1, 90))
    (tmp_path / "long.py").write_text(f"def walk(value_0):\n{body}\n    return value_89\n")
    parts = load_pieces(tmp_path)
    assert len(parts) > 2
    assert {part.kind for part in parts} == {"code"}
    assert "".join("".join(p.text.split()) for p in parts) == "".join(
        (tmp_path / "long.py").read_text().split()
    )

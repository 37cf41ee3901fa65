"""A small library as the source of a corpus, and the shipped tokenizer."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from demo import model_path
from demo.tokenizer import load_tokenizer
from demo.training.corpus import Piece, load_pieces

FUNCTION = '''
def area_{i}(width, height=2):
    """Return the area of a rectangle number {i}. Sizes are in metres.

    The second size is optional, and two metres if nobody gives it.
    """
    return width * height * {i}
'''
CLASS = '''
class Shape{i}:
    """A shape that knows how to draw itself on the canvas number {i}."""

    def draw(self, canvas):
        """Draw the outline of the shape on the given canvas."""
        canvas.line(self.points, colour={i})
        return canvas
'''


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of three modules and a test folder that the corpus must ignore."""
    root = tmp_path_factory.mktemp("library")
    for number in range(3):
        names = range(number * 20, number * 20 + 20)
        source = "".join(FUNCTION.format(i=i) + CLASS.format(i=i) for i in names)
        (root / f"module{number}.py").write_text(f'"""Shapes, part {number}."""\n{source}')
    (root / "test").mkdir()
    (root / "test" / "test_module.py").write_text(FUNCTION.format(i=999))
    return root


@pytest.fixture(scope="session")
def pieces(library: Path) -> list[Piece]:
    """The library's pieces."""
    return load_pieces(library)


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    """The shipped tokenizer."""
    return load_tokenizer(model_path("target"))

"""The README as the page of the package: without links into the repository. See pyproject.toml."""

import re
from pathlib import Path

from setuptools import setup

README = Path(__file__).with_name("README.md").read_text("utf-8")

# A link to another file of the repository becomes its text, which names the file.
setup(
    long_description=re.sub(r"\[([^]]+)\]\((?!https?://|#)[^)]+\)", r"\1", README),
    long_description_content_type="text/markdown",
)

"""The rules of the source tree, and that each check finds what breaks it.

Soft limits: a file of about 300 lines, a function of about 40. Beyond them a docstring gives the
reason, and the test warns; beyond the hard limits (350, 60) it fails. Beyond the soft ones today:
`engine_adapter.interface`, because the seam is read in one piece.
"""

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import architecture

ROOT = Path(__file__).resolve().parent.parent

Check = Callable[[Path], list[str]]

RULES: list[tuple[Check, str]] = [
    (
        architecture.engine_imports_server,
        "Engines know nothing of the gateway: pass what is needed through engine_adapter.interface",
    ),
    (
        architecture.engine_imports_web,
        "No web framework in engine_adapter: use frozen dataclasses, raise engine_adapter.errors",
    ),
    (
        architecture.plain_parts_import_engine_libraries,
        "No torch and no vLLM here: put it into engine_adapter/vllm_engine or a proposer",
    ),
    (
        architecture.routes_import_too_much,
        "Routes are thin: reach the engine and the settings through server.state",
    ),
    (
        architecture.engines_imported_past_the_factory,
        "Create engines with engine_adapter.factory.create_engine; use the Engine protocol",
    ),
    (
        architecture.private_vllm_outside_compat,
        "Import the name in engine_adapter/vllm_engine/compat.py and take it from there",
    ),
    (
        architecture.vllm_changed_outside_patches,
        "Make it a function in engine_adapter/vllm_engine/patches and list it in compat.PATCHES",
    ),
    (architecture.cycles, "Move what both need into a module below them"),
    (architecture.vague_names, "Name the file after its concern"),
    (architecture.missing_docstrings, "Say in a docstring what it is for"),
]


@pytest.mark.parametrize(("check", "remedy"), RULES, ids=[check.__name__ for check, _ in RULES])
def test_the_tree_keeps_the_rule(check: Check, remedy: str) -> None:
    findings = check(ROOT)
    assert not findings, f"{remedy}:\n" + "\n".join(findings)


def test_files_and_functions_are_short() -> None:
    too_long = architecture.long_files(ROOT, architecture.HARD_FILE)
    too_long += architecture.long_functions(ROOT, architecture.HARD_FUNCTION)
    assert not too_long, "Split it where its concerns part:\n" + "\n".join(too_long)
    longish = architecture.long_files(ROOT, architecture.SOFT_FILE)
    longish += architecture.long_functions(ROOT, architecture.SOFT_FUNCTION)
    for finding in longish:
        warnings.warn(f"{finding}: does its docstring say why?", stacklevel=1)


def test_there_is_something_to_check() -> None:
    modules = {module for module, _ in architecture.sources(ROOT)}
    assert set(architecture.PACKAGES) < modules
    assert {"engine_adapter.interface", "engine_adapter.fake.engine"} < modules


def tree(root: Path, files: dict[str, str]) -> Path:
    """Writes a source tree."""
    for name, source in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return root


BAD_TREES: list[tuple[Check, dict[str, str], str]] = [
    (
        architecture.engine_imports_server,
        {"engine_adapter/a.py": "def f():\n    from server.app import x"},
        "engine_adapter.a:2 imports server.app.x",
    ),
    (
        architecture.engine_imports_web,
        {"engine_adapter/fake/a.py": "import pydantic"},
        "engine_adapter.fake.a:1 imports pydantic",
    ),
    (
        architecture.plain_parts_import_engine_libraries,
        {"server/a.py": "import torch.nn", "engine_adapter/vllm_engine/b.py": "import torch"},
        "server.a:1 imports torch.nn",
    ),
    (
        architecture.plain_parts_import_engine_libraries,
        {"engine_adapter/policies/load.py": "if x:\n    from vllm import LLM"},
        "engine_adapter.policies.load:2 imports vllm.LLM",
    ),
    (
        architecture.routes_import_too_much,
        {
            "server/routes/a.py": "from ..settings import S\nfrom ..schema.b import C",
            "server/routes/b.py": "import fastapi",
        },
        "server.routes.a:1 imports server.settings.S",
    ),
    (
        architecture.engines_imported_past_the_factory,
        {
            "server/a.py": "from engine_adapter import fake",
            "engine_adapter/factory.py": "from engine_adapter.fake import engine",
        },
        "server.a:1 imports engine_adapter.fake",
    ),
    (
        architecture.private_vllm_outside_compat,
        {
            "engine_adapter/vllm_engine/a.py": "from vllm import SamplingParams\nimport vllm.v1",
            "engine_adapter/vllm_engine/compat.py": "from vllm.v1 import core",
        },
        "engine_adapter.vllm_engine.a:2 imports vllm.v1",
    ),
    (
        architecture.private_vllm_outside_compat,
        {"engine_adapter/vllm_engine/a.py": "x = load('vllm.v1.core:Scheduler')"},
        "engine_adapter.vllm_engine.a:1 imports vllm.v1.core:Scheduler",
    ),
    *(
        (
            architecture.vllm_changed_outside_patches,
            {
                "engine_adapter/vllm_engine/a.py": f"x = compat.A.b\n{change}",
                "engine_adapter/vllm_engine/patches/b.py": change,
                "engine_adapter/vllm_engine/c.py": "self.d = compat.D.e\nsetattr(self, 'f', 1)",
            },
            "engine_adapter.vllm_engine.a:2 changes an object of vLLM's",
        )
        for change in (
            "compat.A.b = 1",
            "compat.A = 1",
            "x.c, y = 1, 2",
            "del compat.A.b",
            "setattr(compat.A, 'b', 1)",
            "delattr(x, 'c')",
            "logger.addFilter(f)",
        )
    ),
    (
        architecture.cycles,
        {
            "server/__init__.py": "",
            "server/a.py": "from server import b",
            "server/b.py": "from .c import x",
            "server/c.py": "from server.a import y",
            "server/d.py": "def f():\n    import server.e",
            "server/e.py": "import server.d",
        },
        "server.a -> server.b -> server.c -> server.a",
    ),
    (architecture.vague_names, {"demo/utils.py": "", "demo/corpus.py": ""}, "demo.utils"),
    (
        architecture.missing_docstrings,
        {
            "demo/__init__.py": "",
            "demo/a.py": '"""A."""\nclass B:\n "B."\n def c(self): ...\n def _d(self): ...',
        },
        "demo.a.B.c",
    ),
]


@pytest.mark.parametrize(
    ("check", "files", "finding"), BAD_TREES, ids=[check.__name__ for check, *_ in BAD_TREES]
)
def test_a_tree_that_breaks_the_rule_is_found(
    tmp_path: Path, check: Check, files: dict[str, str], finding: str
) -> None:
    assert check(tree(tmp_path, files)) == [finding]


def test_long_files_and_functions_are_found(tmp_path: Path) -> None:
    body = "    x = 1\n" * 60
    root = tree(tmp_path, {"demo/a.py": f'def f():\n    """Doc.\n\n    More.\n    """\n{body}'})
    assert architecture.long_functions(root, 60) == ["demo.a.f: 61 lines"]
    assert architecture.long_functions(root, 61) == []
    assert architecture.long_files(root, 64) == ["demo.a: 65 lines"]

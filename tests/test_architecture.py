"""The rules of the source tree, and that each check finds what breaks it.

A file has at most 400 lines, a function at most 40, and 60 with a sentence in its docstring that
begins with "Long because".
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests import architecture, source_imports, source_style

ROOT = Path(__file__).resolve().parent.parent

Check = Callable[[Path], list[str]]

RULES: list[tuple[Check, str]] = [
    (
        architecture.engine_imports_server,
        "Engines know nothing of the gateway: pass what they need through engine_adapter.seam",
    ),
    (
        architecture.loose_modules,
        "Put it into the folder of its concern: in engine_adapter seam/ or registries/, or a room",
    ),
    (
        architecture.engine_imports_web,
        "No web framework in engine_adapter: use frozen dataclasses, raise the seam's errors",
    ),
    (
        architecture.plain_parts_import_engine_libraries,
        "No torch and no vLLM here: put it into engine_adapter/vllm_engine or a proposer",
    ),
    (
        architecture.gateway_loads_engine_libraries,
        "The gateway's process answers before vLLM is imported: import inside the function",
    ),
    (
        architecture.processes_import_each_other,
        "What crosses processes belongs in vllm_engine/wire.py, a patch of vLLM in patches/",
    ),
    (
        architecture.server_imports_benchmarks,
        "Measurements use the gateway: move what both need below it",
    ),
    (
        architecture.wheel_imports_workshop,
        "The wheel has no such module: move what both need out of the workshop",
    ),
    (
        architecture.schema_imports_control,
        "A body class needs no slots and no switcher: move the constant to server/control/types.py",
    ),
    (
        architecture.routes_import_too_much,
        "Routes are thin: reach the engine and the settings through server.state",
    ),
    (
        architecture.engines_imported_past_the_factory,
        "Create engines with engine_adapter.seam.factory.create_engine; use the Engine protocol",
    ),
    (
        architecture.private_vllm_outside_compat,
        "Import the name in engine_adapter/vllm_engine/compat.py and take it from there",
    ),
    (
        architecture.vllm_changed_outside_patches,
        "Make it a function in engine_adapter/vllm_engine/patches and list it in internals.PATCHES",
    ),
    (
        architecture.opentelemetry_imported_early,
        "A server without traces must not load it: import server.telemetry.tracing in a function",
    ),
    (architecture.cycles, "Move what both need into a module below them"),
    (source_style.vague_names, "Name the file after its concern"),
    (source_style.bare_names, "Call it by a noun with its type or role"),
    (source_style.missing_docstrings, "Say in a docstring what it is for"),
    (
        source_style.wall_clock_durations,
        "Measure with time.monotonic or time.perf_counter; time.time is for timestamps",
    ),
    (
        source_style.processes_that_import_from_their_folder,
        "Start it with sys.executable, '-P', '-m' and the module's name",
    ),
    (source_style.long_files, "Split it by concern"),
    (
        source_style.long_functions,
        'Split it, or begin a sentence of its docstring with "Long because"',
    ),
]


@pytest.mark.parametrize(("check", "remedy"), RULES, ids=[check.__name__ for check, _ in RULES])
def test_the_tree_keeps_the_rule(check: Check, remedy: str) -> None:
    findings = check(ROOT)
    assert not findings, f"{remedy}:\n" + "\n".join(findings)


def test_there_is_something_to_check() -> None:
    modules = {module for module, _ in source_imports.sources(ROOT)}
    assert set(source_imports.PACKAGES) < modules
    assert {"engine_adapter.seam.interface", "engine_adapter.fake.engine"} < modules


def test_the_parts_that_the_rules_name_exist() -> None:
    modules = {module for module, _ in source_imports.sources(ROOT)}
    named = {
        *architecture.PLAIN_PARTS,
        *architecture.SCHEMA_MAY_IMPORT,
        *architecture.PROCESSES,
        *architecture.IN_ALL_PROCESSES,
        *architecture.ENGINES,
        *architecture.ROUTES_MAY_IMPORT,
        *architecture.TRACING,
        *architecture.WORKSHOP,
        architecture.HANDS_OVER,
    }
    assert named - modules == {"server.__version__"}


def tree(root: Path, files: dict[str, str]) -> Path:
    """Writes a source tree."""
    for name, source in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return root


BAD_TREES: list[tuple[Check, dict[str, str], str]] = [
    (
        source_style.wall_clock_durations,
        {"server/a.py": "def f(x):\n    return time.time() - x"},
        "server.a:2 calculates with the time of day",
    ),
    (
        source_style.wall_clock_durations,
        {"server/a.py": "def f(x):\n    a, b = time.time(), 0\n    while a < x: pass"},
        "server.a:3 calculates with the time of day",
    ),
    (
        architecture.engine_imports_server,
        {"engine_adapter/a.py": "def f():\n    from server.app import x"},
        "engine_adapter.a:2 imports server.app.x",
    ),
    (
        architecture.loose_modules,
        {
            "engine_adapter/__init__.py": "",
            "engine_adapter/seam/types.py": "",
            "server/control/records.py": "",
            "server/control/slots.py": "",
        },
        "server.control.slots is in no folder",
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
        architecture.gateway_loads_engine_libraries,
        {
            "engine_adapter/vllm_engine/wire.py": "from engine_adapter.vllm_engine import b",
            "engine_adapter/vllm_engine/b.py": "import torch",
            "engine_adapter/vllm_engine/gateway/c.py": "def f():\n    import vllm",
            "engine_adapter/vllm_engine/worker/d.py": "import torch",
        },
        "engine_adapter.vllm_engine.b:1 imports torch",
    ),
    (
        architecture.processes_import_each_other,
        {
            "engine_adapter/vllm_engine/gateway/a.py": "from .. import wire",
            "engine_adapter/vllm_engine/core/b.py": "def f():\n    from ..gateway.a import x",
            "engine_adapter/vllm_engine/worker/c.py": "from ..worker import d",
        },
        "engine_adapter.vllm_engine.core.b:2 imports engine_adapter.vllm_engine.gateway.a.x",
    ),
    (
        architecture.processes_import_each_other,
        {"engine_adapter/vllm_engine/wire.py": "from .core import a"},
        "engine_adapter.vllm_engine.wire:1 imports engine_adapter.vllm_engine.core.a",
    ),
    (
        architecture.server_imports_benchmarks,
        {
            "server/a.py": "def f():\n    from benchmarks.load import run",
            "server/commands/bench.py": "from benchmarks.commands import run_command",
        },
        "server.a:2 imports benchmarks.load.run",
    ),
    (
        architecture.wheel_imports_workshop,
        {
            "benchmarks/a.py": "from benchmarks.step import cost",
            "benchmarks/plan/b.py": "from benchmarks.step import cost",
        },
        "benchmarks.a:1 imports benchmarks.step.cost",
    ),
    (
        architecture.schema_imports_control,
        {
            "server/schema/a.py": "from server.control.admission.slots import Slots",
            "server/schema/b.py": "from server.control.types import DRAIN_TIMEOUT_S",
        },
        "server.schema.a:1 imports server.control.admission.slots.Slots",
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
            "engine_adapter/seam/factory.py": "from engine_adapter.fake import engine",
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
        architecture.opentelemetry_imported_early,
        {
            "server/a.py": "def f():\n    from server.telemetry.tracing import Tracing",
            "server/b.py": "def f():\n    from opentelemetry import trace",
            "server/telemetry/tracing.py": "import opentelemetry",
        },
        "server.b:2 imports opentelemetry.trace",
    ),
    (
        architecture.opentelemetry_imported_early,
        {"server/a.py": "from server.telemetry import spans"},
        "server.a:1 imports server.telemetry.spans",
    ),
    (
        architecture.cycles,
        {
            "server/__init__.py": "",
            "server/a.py": "from server import b",
            "server/b.py": "from .c import x",
            "server/c.py": "from server.a import y",
        },
        "server.a -> server.b -> server.c -> server.a",
    ),
    (
        architecture.cycles,
        {
            "engine_adapter/d.py": "def f():\n    import engine_adapter.e",
            "engine_adapter/e.py": "import engine_adapter.d",
        },
        "engine_adapter.d -> engine_adapter.e -> engine_adapter.d",
    ),
    (
        source_style.processes_that_import_from_their_folder,
        {
            "server/a.py": "run([sys.executable, '-m', 'x'])",
            "server/b.py": "run([sys.executable, '-P', '-m', 'x'])",
        },
        "server.a:1 starts Python without -P",
    ),
    (source_style.vague_names, {"demo/utils.py": "", "demo/training/corpus.py": ""}, "demo.utils"),
    *(
        (
            source_style.bare_names,
            {"server/a.py": f"{source}\nclass B:\n    to: int", "tests/b.py": source},
            f"server.a:{line} is called {name}",
        )
        for source, line, name in (
            ("def f(x):\n    known = x", 2, "known"),
            ("def f(x,\n      before): ...", 2, "before"),
            ("f = (\n    lambda one: one)", 2, "one"),
            ("def f(x):\n    return [last for last in x]", 2, "last"),
            ("def f(x):\n    match x, 1:\n        case to, _: pass", 3, "to"),
        )
    ),
    (
        source_style.missing_docstrings,
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


def test_a_file_is_too_long_above_the_limit(tmp_path: Path) -> None:
    limit = source_style.MAX_FILE_LINES
    sources = {"demo/a.py": "x = 1\n" * limit, "demo/b.py": "x = 1\n" * (limit + 1)}
    assert source_style.long_files(tree(tmp_path, sources)) == ["demo.b: 401 lines"]


def test_a_reason_is_needed_for_a_long_function_and_does_not_lift_the_hard_limit(
    tmp_path: Path,
) -> None:
    def is_refused(lines: int, reason: str = "") -> bool:
        source = f'def f():\n    """Doc.{reason}"""\n' + "    x = 1\n" * (lines - 1)
        return bool(source_style.long_functions(tree(tmp_path, {"demo/a.py": source})))

    assert not is_refused(40)
    assert is_refused(41)
    assert is_refused(41, " It is long because it is.")
    assert not is_refused(60, " Long because the table is read in one piece.")
    assert is_refused(61, " Long because the table is read in one piece.")

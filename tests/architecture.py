"""Checks on a source tree: which module imports which, and where vLLM is named and changed.

Each check takes the tree's root and returns its findings, one line each; a correct tree has none.
An import inside a function counts too, unless a check says otherwise.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.source_imports import PACKAGES, Import, import_graph, imports, is_in, parse, sources

WEB = frozenset({"fastapi", "pydantic", "pydantic_settings", "starlette", "uvicorn"})
ENGINE_LIBRARIES = frozenset({"torch", "vllm"})
PLAIN_PARTS = (
    "engine_adapter.seam",
    "engine_adapter.registries",
    "engine_adapter.data_parallel",
    "engine_adapter.policies",
    "engine_adapter.proposers.contract",
    "server",
)
ROUTES_MAY_IMPORT = (
    "server.__version__",
    "server.console.pages",
    "server.contract.answers",
    "server.http.headers",
    "server.http.auth",
    "server.control",
    "server.fleet",
    "server.state",
    "server.errors",
    "server.telemetry.rolling_stats",
    "server.routes",
    "server.schema",
    "server.anthropic",
    "server.batches",
    "server.openai",
    "server.http.event_stream",
    "server.http.exchange",
    "engine_adapter.policies.parameters",
    "engine_adapter.seam.errors",
    "engine_adapter.seam.interface",
    "engine_adapter.seam.types",
)
SCHEMA_MAY_IMPORT = (
    "server.control.records",
    "server.control.method_names",
    "server.control.types",
)
LOOSE = ("server.control.method_names", "server.control.records", "server.control.types")
"""What all rooms of `server.control` share."""

WORKSHOP = (
    "benchmarks.fleet",
    "benchmarks.gateway",
    "benchmarks.plan",
    "benchmarks.simulation",
    "benchmarks.step",
    "demo.training",
)
"""What only developers run, from a checkout: pyproject.toml leaves it out of the wheel."""

HANDS_OVER = "server.commands.bench"
VLLM_ENGINE = "engine_adapter.vllm_engine"
PROCESSES = tuple(f"{VLLM_ENGINE}.{part}" for part in ("gateway", "core", "worker"))
IN_ALL_PROCESSES = tuple(
    f"{VLLM_ENGINE}.{name}"
    for name in (
        "compat",
        "defects",
        "grammars",
        "internals",
        "load_progress",
        "parent_watch",
        "patches",
        "state_layers",
        "wire",
    )
)
IN_THE_GATEWAY = (
    f"{VLLM_ENGINE}.gateway",
    *(module for module in IN_ALL_PROCESSES if module != f"{VLLM_ENGINE}.patches"),
)
ENGINES = ("engine_adapter.vllm_engine", "engine_adapter.fake")
MAY_IMPORT_ENGINES = (
    "engine_adapter.seam.factory",
    # It steps vLLM's own engine with Specgate's arguments: the seam has no step to call.
    "benchmarks.step.cost",
    "benchmarks.step.times",
    "benchmarks.step.draft_kv",
    "benchmarks.step.own_python",
    "benchmarks.simulation.record",
    # Stock vLLM has other methods in each release.
    "benchmarks.sides",
    # They replay with the fake engine's clock and deltas, before other servers than Specgate's.
    "benchmarks.gateway.bare_app",
    "benchmarks.gateway.stub_core",
)
COMPAT = f"{VLLM_ENGINE}.compat"
LISTS = (f"{VLLM_ENGINE}.defects", f"{VLLM_ENGINE}.internals")
PATCHES = f"{VLLM_ENGINE}.patches"
PUBLIC_VLLM = frozenset(
    {
        "vllm.AsyncEngineArgs",
        "vllm.AsyncLLMEngine",
        "vllm.LLMEngine",
        "vllm.SamplingParams",
        "vllm.__version__",
        "vllm.entrypoints.openai.api_server",
    }
)

TRACING = ("server.telemetry.spans", "server.telemetry.tracing")


def engine_imports_server(root: Path) -> list[str]:
    """`engine_adapter` knows nothing of the gateway."""
    return [
        str(i)
        for i in imports(root)
        if is_in(i.importer, "engine_adapter") and is_in(i.target, "server")
    ]


def loose_modules(root: Path) -> list[str]:
    """Each module of `engine_adapter` and of `server.control` is in the folder of its concern."""
    return [
        f"{module} is in no folder"
        for module, path in sources(root)
        if path.name != "__init__.py"
        and module.rpartition(".")[0] in ("engine_adapter", "server.control")
        and module not in LOOSE
    ]


def engine_imports_web(root: Path) -> list[str]:
    """No web framework and no pydantic in `engine_adapter`."""
    return [
        str(i)
        for i in imports(root)
        if is_in(i.importer, "engine_adapter") and is_in(i.target, *WEB)
    ]


def plain_parts_import_engine_libraries(root: Path) -> list[str]:
    """Neither torch nor vLLM in the seam, the policies and the gateway."""
    return [
        str(i)
        for i in imports(root)
        if is_in(i.importer, *PLAIN_PARTS) and is_in(i.target, *ENGINE_LIBRARIES)
    ]


def gateway_loads_engine_libraries(root: Path) -> list[str]:
    """Importing the gateway's part of the vLLM engine imports neither torch nor vLLM.

    A module that such a module imports counts too; an import inside a function does not.
    """
    graph = import_graph([i for i in imports(root) if i.at_import], root)
    loaded = {module for module in graph if is_in(module, *IN_THE_GATEWAY)}
    todo = list(loaded)
    while todo:
        found = graph[todo.pop()] - loaded
        loaded |= found
        todo += found
    return [
        str(i)
        for i in imports(root)
        if i.at_import and i.importer in loaded and is_in(i.target, *ENGINE_LIBRARIES)
    ]


def processes_import_each_other(root: Path) -> list[str]:
    """Of `gateway`, `core` and `worker` none imports another; what all may import, imports none."""
    return [
        str(i)
        for i in imports(root)
        for process in PROCESSES
        if is_in(i.importer, *PROCESSES, *IN_ALL_PROCESSES)
        and is_in(i.target, process)
        and not is_in(i.importer, process)
    ]


def server_imports_benchmarks(root: Path) -> list[str]:
    """The gateway knows no measurement: one module hands over to them."""
    return [
        str(i)
        for i in imports(root)
        if is_in(i.importer, "server")
        and is_in(i.target, "benchmarks")
        and i.importer != HANDS_OVER
    ]


def wheel_imports_workshop(root: Path) -> list[str]:
    """What the wheel has imports nothing that it leaves out."""
    return [
        str(i)
        for i in imports(root)
        if is_in(i.target, *WORKSHOP) and not is_in(i.importer, *WORKSHOP)
    ]


def schema_imports_control(root: Path) -> list[str]:
    """A body class imports the constants and records of `server.control`, not its actions."""
    return [
        str(i)
        for i in imports(root)
        if is_in(i.importer, "server.schema")
        and is_in(i.target, "server.control")
        and not is_in(i.target, *SCHEMA_MAY_IMPORT)
    ]


def routes_import_too_much(root: Path) -> list[str]:
    """Routes are thin: of our own, they import only the parts in `ROUTES_MAY_IMPORT`."""
    return [
        str(i)
        for i in imports(root)
        if is_in(i.importer, "server.routes")
        and is_in(i.target, *PACKAGES)
        and not is_in(i.target, *ROUTES_MAY_IMPORT)
    ]


def engines_imported_past_the_factory(root: Path) -> list[str]:
    """Only the modules in `MAY_IMPORT_ENGINES` import an engine."""
    return [
        str(i)
        for i in imports(root)
        for engine in ENGINES
        if is_in(i.target, engine)
        and not is_in(i.importer, engine)
        and i.importer not in MAY_IMPORT_ENGINES
    ]


def private_vllm_outside_compat(root: Path) -> list[str]:
    """vLLM's names beyond `PUBLIC_VLLM` are only in compat.py, as strings in `LISTS`, too."""
    named = [i for i in imports(root) if is_in(i.target, "vllm")]
    named += [
        Import(module, node.value, node.lineno, False)
        for module, path in sources(root)
        if module not in LISTS
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.fullmatch(r"vllm(\.\w+)+(:\w+)?", node.value)
    ]
    return [str(i) for i in named if i.importer != COMPAT and i.target not in PUBLIC_VLLM]


def vllm_changed_outside_patches(root: Path) -> list[str]:
    """vLLM's objects get attributes, and its loggers filters, in `patches` only."""
    return [
        f"{module}:{line} changes an object of vLLM's"
        for module, path in sources(root)
        if is_in(module, "engine_adapter") and not is_in(module, COMPAT, PATCHES)
        for line in _changes_of_compat(parse(path))
    ]


def _changes_of_compat(tree: ast.Module) -> Iterator[int]:
    aliases = {"compat"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and _root(node.value) in aliases:
            aliases |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.expr):
            continue
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            changed = _root(node) in aliases
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            changed = node.func.id in ("setattr", "delattr") and _root(node.args[0]) in aliases
        else:
            changed = isinstance(node, ast.Attribute) and node.attr == "addFilter"
        if changed:
            yield node.lineno


def _root(node: ast.expr) -> str | None:
    """The name at the head of a chain of attributes."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def opentelemetry_imported_early(root: Path) -> list[str]:
    """OpenTelemetry is imported by the two modules of traces, and these only inside functions."""
    return [
        str(i)
        for i in imports(root)
        if (is_in(i.target, "opentelemetry") and i.importer not in TRACING)
        or (is_in(i.target, *TRACING) and i.at_import and i.importer not in TRACING)
    ]


def cycles(root: Path) -> list[str]:
    """Modules that import each other, imports inside functions included."""
    graph = import_graph(imports(root), root)
    done: set[str] = set()
    found: list[str] = []

    def visit(module: str, trail: list[str]) -> None:
        if module in trail:
            found.append(" -> ".join([*trail[trail.index(module) :], module]))
        elif module not in done:
            for target in sorted(graph[module]):
                visit(target, [*trail, module])
            done.add(module)

    for module in graph:
        visit(module, [])
    return found

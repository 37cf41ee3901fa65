"""The table of vLLM's defects: what it names exists, and a repair that nothing needs is deleted."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine_adapter.vllm_engine import compat, defects, internals
from engine_adapter.vllm_engine.defects import DEFECTS, Defect

OURS = Path(defects.__file__).parent
TESTS = Path(__file__).parent

HOOKS_OF_OURS = {
    "admission.patch_constraint_check",
    "engine_core.patch_engine_core",
    "log_filters.silence_engine_death",
    "log_filters.silence_parser_lines",
    "log_filters.silence_rejected_tokens",
    "model_inspection.patch_model_inspection",
    "module_names.patch_cpu_runner",
    "module_names.patch_graph_manager",
    "async_on_cpu.patch_async_scheduling",
    "module_names.patch_mp_context",
    "module_names.patch_init_speculator",
    "module_names.patch_sampler",
    "module_names.patch_speculative_config",
    "module_names.patch_groups",
    "ray_on_cpu.patch_ray_worker",
    "recurrent_layers.patch_recurrent_layers",
    "triton_check.patch_triton_check",
    "v2_kernels.patch_v2_kernels",
    "v2_kernels.patch_v2_runner",
}
"""Patches that repair no defect, or several: Specgate's own ways into vLLM."""

every = pytest.mark.parametrize("defect", DEFECTS.values(), ids=DEFECTS)


def names_in(source: str) -> set[str]:
    """The functions, classes, methods and constants of a module."""
    return set(_names(ast.parse(source).body, ""))


def _names(body: list[ast.stmt], prefix: str) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield prefix + node.name
            if isinstance(node, ast.ClassDef):
                yield from _names(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (prefix + each.id for each in targets if isinstance(each, ast.Name))


@every
def test_the_repair_and_the_tests_exist(defect: Defect) -> None:
    file, name = defect.repair.split(":")
    assert name in names_in((OURS / file).read_text())
    for test in filter(None, (defect.test, defect.watch)):
        file, name = test.split("::")
        assert name in names_in((TESTS / file).read_text()), test


@pytest.mark.needs_vllm
@every
def test_the_code_of_vllm_exists(defect: Defect) -> None:
    import vllm

    (folder,) = vllm.__path__
    for code in defect.code:
        module, name = code.split(":")
        path = Path(folder).parent / module.replace(".", "/")
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        assert name in names_in(file.read_text()), code


@every
def test_a_repair_that_no_supported_release_needs_is_deleted(defect: Defect) -> None:
    if defect.mended_in:
        assert defect.mended_in in compat.SUPPORTED[1:], f"delete {defect.repair}"
        assert defect.watch, "what showed it?"


def test_a_repair_runs_only_before_the_release_that_mends_its_defect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compat, "installed_version", lambda: "0.32.9+cpu")
    assert all(map(compat.has_defect, DEFECTS))
    monkeypatch.setattr(compat, "installed_version", lambda: "0.33.0")
    mended = {name for name, defect in DEFECTS.items() if defect.mended_in == "0.33"}
    assert {name for name in DEFECTS if not compat.has_defect(name)} == mended
    monkeypatch.setattr(compat, "installed_version", lambda: "0.100.0")
    assert not compat.has_defect("lora_without_adapter")


def test_every_patch_repairs_a_defect_or_is_a_hook_of_ours() -> None:
    parts = [defect.repair.removeprefix("patches/").split(":") for defect in DEFECTS.values()]
    repairs = {f"{file.removesuffix('.py')}.{name}" for file, name in parts}
    assert set(internals.PATCHES) - repairs == HOOKS_OF_OURS


def test_only_patches_and_comparisons_ask_for_the_release() -> None:
    askers = {
        path.relative_to(OURS).as_posix()
        for path in OURS.rglob("*.py")
        if path.name != "compat.py"
        for call in ("compat.is_before(", "compat.has_defect(")
        if call in path.read_text()
    }
    assert askers
    assert all(path.startswith("patches/") for path in askers)

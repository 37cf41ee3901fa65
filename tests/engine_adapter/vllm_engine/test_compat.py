"""The lists of vLLM's internals: each entry exists and is used, and no other internal is."""

import ast
import subprocess
import sys
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import pytest

from engine_adapter.vllm_engine import compat, internals
from tests.engine_adapter.vllm_engine.support.overrides import (
    Function,
    Subclass,
    calls_super,
    has_attribute,
    is_called,
    subclasses,
    wrong_parameters,
)

ROOT = Path(__file__).parents[3]
ADAPTER = ROOT / "engine_adapter"

SUBCLASSES = subclasses(path.read_text() for path in (ADAPTER / "vllm_engine").rglob("*.py"))
OVER = [(each, name) for each in SUBCLASSES for name in sorted(each.upstream)]
"""Each of our classes with each name of `compat` that it inherits from."""

NEED_RAY = ("RayExecutorV2", "RayWorkerProc", "ray_executor_v2")
"""Names whose module cannot be imported without Ray."""


def upstream_of(name: str) -> Any:
    """A name of `compat`; skips the test if it needs Ray and Ray is not installed."""
    if name in NEED_RAY:
        pytest.importorskip("ray", reason="ray is not installed; make prove installs it")
    return getattr(compat, name)


over = pytest.mark.parametrize(
    ("ours", "name"), OVER, ids=lambda value: value if isinstance(value, str) else value.name
)


@pytest.mark.needs_vllm
@pytest.mark.parametrize("name", compat.NAMES)
def test_every_listed_name_exists(name: str) -> None:
    assert upstream_of(name) is not None


def test_a_module_is_found_even_if_nothing_imported_it_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "specgate_probe"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "inner.py").write_text("VALUE = 1")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(compat.NAMES, "inner", "specgate_probe.inner:")
    assert "specgate_probe" not in sys.modules
    assert compat.inner.VALUE == 1


def test_a_name_that_is_not_listed_is_an_error() -> None:
    with pytest.raises(AttributeError, match=r"'LLMEngine' is not listed in .*compat\.NAMES"):
        _ = compat.LLMEngine


def test_using_the_list_imports_nothing() -> None:
    program = (
        "import sys; from engine_adapter.vllm_engine import compat; compat.installed_version();"
        "assert not {'torch', 'vllm'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_every_listed_name_is_used() -> None:
    files = [*ADAPTER.rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]
    sources = [file.read_text() for file in files if file.name != "compat.py"]
    unused = {name for name in compat.NAMES if not any(f"compat.{name}" in s for s in sources)}
    assert not unused


@pytest.mark.parametrize("distribution", compat.DISTRIBUTIONS)
def test_either_distribution_has_the_version(
    monkeypatch: pytest.MonkeyPatch, distribution: str
) -> None:
    def version(name: str) -> str:
        if name != distribution:
            raise metadata.PackageNotFoundError(name)
        return "0.32.7"

    monkeypatch.setattr(metadata, "version", version)
    assert compat.installed_version() == "0.32.7"


def test_without_a_distribution_there_is_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    assert compat.installed_version() is None


# -- hooks -----------------------------------------------------------------------------------


def test_every_class_over_vllms_is_found() -> None:
    assert {name for _, name in OVER} >= set(internals.HOOKS)
    assert len(OVER) >= 10


@pytest.mark.needs_vllm
@over
def test_every_override_is_listed_and_every_listed_one_overrides(ours: Subclass, name: str) -> None:
    upstream = upstream_of(name)
    overrides = {method for method in ours.methods if hasattr(upstream, method)}
    assert overrides == set(internals.HOOKS.get(name, ()))


@pytest.mark.needs_vllm
@over
def test_every_override_has_vllms_parameters(ours: Subclass, name: str) -> None:
    upstream = upstream_of(name)
    wrong = [
        wrong_parameters(ours.methods[hook], getattr(upstream, hook))
        for hook in internals.HOOKS.get(name, ())
    ]
    assert [finding for finding in wrong if finding] == []


@pytest.mark.needs_vllm
@over
def test_vllm_calls_every_method_that_is_overridden(ours: Subclass, name: str) -> None:
    """One that it no longer calls is dead code, and nothing else would show it."""
    upstream = upstream_of(name)
    hooks = internals.HOOKS.get(name, ())
    assert [hook for hook in hooks if not is_called(upstream, hook)] == []


def test_overrides_that_replace_vllms_method_are_known() -> None:
    """vLLM's own code does not run: an upgrade compares each with what vLLM's does then."""
    replacing = {
        method
        for each, name in OVER
        for method in internals.HOOKS.get(name, ())
        if not calls_super(each.methods[method])
    }
    assert replacing == {
        "_get_actor_resource_kwargs",
        "_make_model_runner",
        "capture",
        "check_error",
        "compose_draft_hf_overrides",
        "get_attn_backend",
        "get_builder_cls",
        "get_kv_cache_spec",
        "get_node_and_physical_gpu_ids",
        "init_cudagraph_manager",
        "propose",
        "supports_batch_invariance",
        "take_draft_token_ids",
        "verify_equal_vocab_size_if_draft_model",
    }


@pytest.mark.needs_vllm
def test_a_hook_that_vllm_lost_is_an_error_at_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(internals.HOOKS, "Scheduler", ("schedule", "gone"))
    monkeypatch.delitem(vars(compat), "Scheduler", raising=False)
    with pytest.raises(ImportError, match=r"no Scheduler\.gone, which Specgate .*internals\.HOOKS"):
        _ = compat.Scheduler


class Upstream:
    """A class such as vLLM's."""

    limit: int

    def __init__(self) -> None:
        self.size, self.model = 1, object()

    def run(self, batch: Any, width: int = 0) -> None:
        self._step(batch)

    def _step(self, batch: Any) -> None: ...

    def _dead(self, batch: Any) -> None: ...


OURS = """
class Mixin:
    flag = True
    def run(self, batch, *args, **kwargs):
        self.mine = self.size
        super().run(batch)
class Ours(Mixin, wrapped(compat.Upstream)):
    def _step(self, wrong): ...
    def added(self): ...
class Other(Mixin): ...
"""


def test_a_class_is_read_with_its_mixins() -> None:
    (ours,) = subclasses([OURS])
    assert (ours.name, ours.upstream) == ("Ours", {"Upstream"})
    assert set(ours.methods) == {"run", "_step", "added"}
    assert ours.set_on_self == {"flag", "mine"}
    assert ours.taken_from_self == {"flag", "mine", "size"}
    assert calls_super(ours.methods["run"])
    assert not calls_super(ours.methods["_step"])


@pytest.mark.parametrize(
    ("source", "right"),
    [
        ("def run(self, batch, width): ...", True),
        ("def run(self, batch, *args, **kwargs): ...", True),
        ("def run(self, *args, **kwargs): ...", True),
        ("def run(self, batch, *, width): ...", True),
        ("def run(self, batch): ...", False),
        ("def run(self, rows, width): ...", False),
        ("def run(self, rows, *args, **kwargs): ...", False),
        ("def run(self, batch, width, more): ...", False),
        ("@staticmethod\ndef run(batch, width): ...", True),
        ("@staticmethod\ndef run(width): ...", False),
    ],
)
def test_parameters_that_differ_from_vllms_are_found(source: str, right: bool) -> None:
    (method,) = ast.parse(source).body
    assert isinstance(method, Function)
    assert (wrong_parameters(method, Upstream.run) is None) is right


@pytest.mark.needs_vllm
def test_methods_that_are_not_called_are_found() -> None:
    import_module("vllm.v1.engine")
    assert is_called(Upstream, "_step")
    assert not is_called(Upstream, "_dead")
    assert not is_called(Upstream, "no_such_method")


# -- attributes ------------------------------------------------------------------------------


def owner_of(key: str) -> Any:
    """The class or module of a key of `ATTRIBUTES`."""
    module, colon, name = key.partition(":")
    return getattr(import_module(module), name) if colon else upstream_of(key)


@pytest.mark.needs_vllm
@pytest.mark.parametrize(
    "key",
    [key for key in internals.ATTRIBUTES if not compat.is_before(internals.SINCE.get(key, "0"))],
)
def test_every_listed_attribute_exists(key: str) -> None:
    owner = owner_of(key)
    assert [name for name in internals.ATTRIBUTES[key] if not has_attribute(owner, name)] == []


@pytest.mark.needs_vllm
@over
def test_every_attribute_that_is_vllms_is_listed(ours: Subclass, name: str) -> None:
    upstream = upstream_of(name)
    taken = {a for a in ours.taken_from_self if a not in ours.methods and not a.startswith("__")}
    of_vllm = {a for a in taken if a not in ours.set_on_self or has_attribute(upstream, a)}
    listed = set(internals.ATTRIBUTES.get(name, ())) | set(internals.HOOKS.get(name, ()))
    assert of_vllm - listed == set()


def test_attributes_of_a_class_its_instances_and_its_annotations_are_found() -> None:
    assert all(has_attribute(Upstream, name) for name in ("run", "size", "model", "limit"))
    assert not has_attribute(Upstream, "width")
    assert has_attribute(sys, "path")
    assert not has_attribute(sys, "size")


# -- patches ---------------------------------------------------------------------------------


def test_every_patch_is_listed_and_every_listed_one_exists() -> None:
    functions = {
        f"{path.stem}.{node.name}"
        for path in (ADAPTER / "vllm_engine" / "patches").glob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, Function) and node.name.startswith(("patch_", "silence_"))
    }
    assert functions == set(internals.PATCHES)

"""The report of what a release of vLLM changes, on two small packages and on the installed one."""

from pathlib import Path

import pytest

from engine_adapter.vllm_engine import internals, releases
from engine_adapter.vllm_engine.releases import Sources, report

OLD = {
    "__init__": "",
    "envs": "environment_variables = {'VLLM_LOGGING_LEVEL': lambda: 'INFO'}",
    "config": "class Config:\n    size: int = 1\n    gone: int = 1",
    "v1/base": "class Base:\n    def run(self):\n        self.step()\n    def step(self): ...",
    "v1/engine": "from vllm.v1.base import Base\nclass Engine(Base):\n"
    "    def load(self):\n        'Old text.'\n        return 1  # old\n"
    "    def ask(self):\n        raise ValueError('No size')",
}
NEW = OLD | {
    "envs": "environment_variables = {'VLLM_LOGGING_LEVEL': lambda: 'DEBUG'}",
    "config": "class Config:\n    size: int = 2",
    "v1/base": "class Base:\n    def run(self):\n        if self:\n            self.step()\n"
    "    def step(self): ...",
    "v1/engine": "from vllm.v1.base import Base\nclass Engine(Base):\n"
    "    def load(self):\n        'New text.'\n        return (\n            1\n        )\n"
    "    def ask(self):\n        raise ValueError('No block size')",
}


def written(folder: Path, files: dict[str, str]) -> Sources:
    for name, source in files.items():
        path = folder / "vllm" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return Sources(folder)


@pytest.fixture
def lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Specgate would depend on in the small package."""
    values = {
        "NAMES": {"Engine": "vllm.v1.engine"},
        "HOOKS": {"Engine": ("load", "run", "step", "ask", "never_there")},
        "DEFECTS": {},
        "PATCHED_CODE": ("vllm.v1.engine:Engine.ask",),
        "CONFIGURATIONS": {"engine_config": "vllm.config:Config"},
        "MESSAGES": {"No size": "vllm.v1.engine"},
        "configuration_fields": lambda: {("engine_config", "size"), ("engine_config", "gone")},
        "variables": lambda: {"VLLM_LOGGING_LEVEL"},
    }
    for name, value in values.items():
        monkeypatch.setattr(releases, name, value)


@pytest.mark.usefixtures("lists")
def test_every_kind_of_change_is_reported_and_texts_are_not(tmp_path: Path) -> None:
    lines = list(report(written(tmp_path / "old", OLD), written(tmp_path / "new", NEW)))
    assert lines == [
        "## Hooked methods: 3",
        "- changed: Engine.run",
        "- changed: Engine.ask",
        "- gone: Engine.never_there",
        "## Patched code: 1",
        "- changed: vllm.v1.engine:Engine.ask",
        "## Code with defects: 0",
        "## Configuration fields: 2",
        "- gone: engine_config.gone",
        "- changed: engine_config.size",
        "## Environment variables: 1",
        "- changed: VLLM_LOGGING_LEVEL",
        "## Messages that are read: 1",
        "- gone: 'No size'",
        "## Callers of hooked methods: 1",
        "- changed: step() in v1/base.py: Base.run",
    ]


def test_a_folder_without_vllm_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="holds no package vllm"):
        Sources(tmp_path)


@pytest.mark.needs_vllm
def test_all_that_is_listed_is_found_in_the_installed_release() -> None:
    import vllm

    (folder,) = vllm.__path__
    installed = Sources(Path(folder).parent)
    gone = {line for line in report(installed, installed) if line.startswith("- ")}
    # vLLM 0.33 has no second executor for Ray.
    assert gone <= {"- gone: VLLM_USE_RAY_V2_EXECUTOR_BACKEND"}


def test_messages_are_those_that_the_code_compares() -> None:
    folder = Path(internals.__file__).parent
    files = [path for path in folder.rglob("*.py") if path.name != "internals.py"]
    code = "\n".join(path.read_text() for path in files)
    assert [text for text in internals.MESSAGES if f'"{text}"' not in code] == []

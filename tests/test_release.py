"""The workflows, the templates and the site: what a release needs and what no run here can show."""

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parent.parent
GITHUB = ROOT / ".github"
WORKFLOWS = sorted(GITHUB.glob("workflows/*.yml"))

SCHEMAS = [
    *((path, "vendor.github-workflows") for path in WORKFLOWS),
    (GITHUB / "dependabot.yml", "vendor.dependabot"),
    (GITHUB / "ISSUE_TEMPLATE/bug.yml", "vendor.github-issue-forms"),
    (GITHUB / "ISSUE_TEMPLATE/wish.yml", "vendor.github-issue-forms"),
    (GITHUB / "ISSUE_TEMPLATE/config.yml", "vendor.github-issue-config"),
]


def workflow(name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((GITHUB / "workflows" / f"{name}.yml").read_text())
    return content


def problems(path: Path, schema: str) -> str:
    """What the schema finds in a file; nothing in a valid one."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.parametrize(("path", "schema"), SCHEMAS, ids=lambda value: Path(value).name)
def test_a_file_fits_its_schema(path: Path, schema: str) -> None:
    assert problems(path, schema) == ""


def test_a_mistake_in_a_workflow_is_found(tmp_path: Path) -> None:
    path = tmp_path / "test.yml"
    path.write_text(WORKFLOWS[0].read_text().replace("runs-on", "run-on"))
    assert "run-on" in problems(path, "vendor.github-workflows")


def test_the_tests_run_on_every_python_that_the_package_names() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    versions = workflow("test")["jobs"]["test"]["strategy"]["matrix"]["python-version"]
    prefix = "Programming Language :: Python :: 3."
    named = [c.removeprefix(prefix) for c in project["classifiers"] if c.startswith(prefix)]
    assert versions == [f"3.{minor}" for minor in named]
    supported = SpecifierSet(project["requires-python"])
    assert [minor for minor in range(8, 20) if supported.contains(f"3.{minor}.0")] == [
        int(minor) for minor in named
    ]


def test_the_steps_run_what_is_there() -> None:
    makefile = (ROOT / "Makefile").read_text()
    lines = [
        step["run"]
        for path in WORKFLOWS
        for job in yaml.safe_load(path.read_text())["jobs"].values()
        for step in job["steps"]
        if "run" in step
    ]
    targets = [line.split()[1] for line in lines if line.startswith("make ")]
    assert {"check", "docs", "dist"} <= set(targets)
    for target in targets:
        assert f"\n{target}: " in makefile
    assert ".ci/run" in lines
    assert (ROOT / ".ci/run").is_file()
    images = workflow("release")["jobs"]["images"]["strategy"]["matrix"]["include"]
    assert all((ROOT / image["file"]).is_file() for image in images)


def test_the_tag_of_a_release_is_the_version() -> None:
    (step,) = [
        step
        for step in workflow("release")["jobs"]["build"]["steps"]
        if "GITHUB_REF_NAME" in step.get("run", "")
    ]
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    for tag, status in ((f"v{version}", 0), ("v99.0.0", 1)):
        command = ["bash", "-c", step["run"]]
        environment = {"PATH": "/usr/bin:/bin", "GITHUB_REF_NAME": tag}
        done = subprocess.run(command, cwd=ROOT, env=environment, check=False)
        assert done.returncode == status


def build_site(folder: Path, configuration: Path = ROOT / "mkdocs.yml") -> str:
    """Builds the site; what mkdocs says if that fails."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file"]
    command += [str(configuration), "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_the_site_has_every_page_and_no_broken_link(tmp_path: Path) -> None:
    assert build_site(tmp_path / "site") == ""
    index = (tmp_path / "site" / "index.html").read_text()
    assert 'href="install/"' in index, "links of the README lead to pages of the site"
    assert (tmp_path / "site" / "search" / "search_index.json").is_file()


def test_a_link_that_leads_nowhere_fails_the_build(tmp_path: Path) -> None:
    text = (ROOT / "mkdocs.yml").read_text()
    text = text.replace("docs_dir: docs", f"docs_dir: {tmp_path / 'docs'}")
    text = text.replace("hooks: [docs/site_pages.py]", "").split("\nnav:")[0]
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text("[nothing](missing.md)\n")
    (tmp_path / "mkdocs.yml").write_text(text)
    assert "a link 'missing.md', but" in build_site(tmp_path / "site", tmp_path / "mkdocs.yml")

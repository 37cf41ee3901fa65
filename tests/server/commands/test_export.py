"""`specgate export`: a server that starts with its output is in the state of the first one."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from server.cli import main
from server.settings.sources import settings_in
from tests.server.commands.conftest import serving

RULE = {
    "name": "quotes",
    "match": {"temperature": {"max": 0.5}},
    "use": {"proposer": "ngram", "num_speculative_tokens": 3},
}


def change(url: str) -> None:
    """Loads a proposer, switches to it, and changes a policy and the rules."""
    sizes = {"num_speculative_tokens": 4, "prompt_lookup_min": 3, "prompt_lookup_max": 5}
    for method, path, body in (
        ("POST", "/v1/load_proposer", {"name": "long", "method": "ngram", **sizes}),
        ("POST", "/v1/unload_proposer", {"name": "suffix"}),
        ("POST", "/v1/switch_spec_method", {"speculative_model": "long"}),
        ("PUT", "/v1/spec_policy", {"policies": {"auto": {"min_gain": 0.05}}, "rules": [RULE]}),
    ):
        response = httpx.request(method, url + path, json=body)
        assert response.status_code == 200, response.text


def exported(url: str, path: Path) -> dict[str, Any]:
    """The settings that the command writes to a file."""
    assert main(["export", "--url", url, "--out", str(path)]) == 0
    settings: dict[str, Any] = yaml.safe_load(path.read_text("utf-8"))
    return settings


def state(url: str) -> dict[str, Any]:
    """What a server has that `export` writes."""
    policy = httpx.get(f"{url}/v1/spec_policy").json()
    return {
        "method": httpx.get(f"{url}/v1/spec_method").json()["spec_method"],
        "proposers": [
            (info["settings"], info["roles"])
            for info in httpx.get(f"{url}/v1/proposers").json()["data"]
        ],
        "policies": [(info["name"], info["parameters"]) for info in policy["policies"]],
        "rules": [(rule["name"], rule["match"], rule["use"]) for rule in policy["rules"]],
    }


def test_a_server_that_starts_with_the_output_is_in_the_same_state(tmp_path: Path) -> None:
    path = tmp_path / "state.yaml"
    with serving() as url:
        change(url)
        before = state(url)
        settings = exported(url, path)
    settings_in(settings, str(path), {})
    with serving(**settings) as url:
        assert state(url) == before
    assert before["method"] == "long"
    assert [info["name"] for info, _ in before["proposers"]][-1] == "long"


def test_defaults_are_left_out(url: str, tmp_path: Path) -> None:
    settings = exported(url, tmp_path / "state.yaml")
    assert "spec_policy" not in settings
    assert "routing_rules" not in settings
    first = settings["proposer"][0]
    assert first == {"name": "ngram", "method": "ngram", "num_speculative_tokens": 5}


def test_what_no_setting_says_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with serving() as url:
        body = {"speculative_model": "ngram", "num_speculative_tokens": 2}
        httpx.post(f"{url}/v1/switch_spec_method", json=body).raise_for_status()
        assert main(["export", "--url", url]) == 0
    assert "after the start: specgate switch ngram --k 2" in capsys.readouterr().err


def test_adapters_are_settings(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 8}))
    modules = {"sql": str(tmp_path)}
    with serving(enable_lora=True, lora_modules=modules) as url:
        settings = exported(url, tmp_path / "state.yaml")
    assert (settings["enable_lora"], settings["lora_modules"]) == (True, modules)


def test_a_file_that_cannot_be_written_is_an_error(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "missing" / "state.yaml"
    assert main(["export", "--url", url, "--out", str(path)]) == 1
    assert f"--out: cannot write {path}: No such file" in capsys.readouterr().err

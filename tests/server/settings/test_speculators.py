"""A MODEL that is a head and names its target."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from demo import model_path
from server.settings import Settings
from server.settings.sources import load_settings
from server.settings.types import SettingsError
from tests.engine_adapter.proposers.eagle_heads import speculators_eagle3

TARGET = str(model_path("target"))
NGRAM = '{"name": "ngram"}'


@pytest.fixture
def head(tmp_path: Path) -> str:
    """An EAGLE-3 head of the demo target in the format of `speculators`, with k 3."""
    config = json.loads((Path(TARGET) / "config.json").read_text())
    heads = speculators_eagle3(config, aux_layers=[1, 3, 5])
    heads.config["speculators_config"]["verifier"]["name_or_path"] = TARGET
    return heads.write(tmp_path / "head")


def proposers(settings: Settings) -> list[tuple[str, str, int, str | None]]:
    return [(s.name, s.method, s.num_speculative_tokens, s.model) for s in settings.proposer]


def test_the_target_is_served_with_the_head(head: str) -> None:
    settings = load_settings([head], {})
    assert settings.model == TARGET
    assert settings.served_model_name == (TARGET,)
    assert proposers(settings) == [("eagle3", "eagle3", 3, head)]


@pytest.mark.parametrize(
    ("flags", "variables"),
    [
        (["--proposer", NGRAM], {}),
        ([], {"SPECGATE_PROPOSER": NGRAM}),
        ([], {"SPECGATE_PROPOSER": f"[{NGRAM}]"}),
    ],
)
def test_other_proposers_stay(head: str, flags: list[str], variables: dict[str, str]) -> None:
    settings = load_settings([head, *flags], variables)
    assert [spec.name for spec in settings.proposer] == ["eagle3", "ngram"]


def test_the_files_proposers_and_model_are_read_too(head: str, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(f"model: {head}\nproposer:\n  - name: ngram\n")
    settings = load_settings(["--config", str(file)], {})
    assert (settings.model, settings.proposer_names) == (TARGET, ("eagle3", "ngram"))


def test_a_proposer_that_names_the_head_is_used_instead(head: str) -> None:
    own: dict[str, Any] = {"name": "mine", "method": "eagle3", "model": head}
    own |= {"num_speculative_tokens": 5, "draft_sampling": "probabilistic"}
    settings = load_settings([head, "--proposer", json.dumps(own)], {})
    assert proposers(settings) == [("mine", "eagle3", 5, head)]


def test_a_target_stays_what_it_is() -> None:
    settings = load_settings([TARGET], {})
    assert (settings.model, settings.proposer) == (TARGET, ())
    assert load_settings(["some/model"], {}).model == "some/model"


def test_a_head_without_a_usable_target_is_refused_as_the_model(head: str) -> None:
    path = Path(head) / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"speculators_model_type": "peagle"}))
    with pytest.raises(
        SettingsError,
        match=r"^MODEL: .*speculators_model_type must be dflash, dflash2, dspark or eagle3",
    ):
        load_settings([head], {})
    config["speculators_config"]["verifier"]["name_or_path"] = "/nowhere/at/all"
    path.write_text(json.dumps(config))
    with pytest.raises(SettingsError, match="the folder '/nowhere/at/all' does not exist"):
        load_settings([head], {})


def test_an_invalid_proposer_beside_a_head_is_refused_as_without(head: str) -> None:
    with pytest.raises(SettingsError, match=r"^--proposer: not valid JSON"):
        load_settings([head, "--proposer", "{ngram"], {})


def test_a_head_of_the_hub_is_read_by_its_id(
    head: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub.constants

    cache = tmp_path / "cache"
    repository = cache / "models--some--head"
    shutil.copytree(head, repository / "snapshots" / "abc")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    settings = load_settings(["some/head"], {})
    assert settings.model == TARGET
    assert proposers(settings) == [("eagle3", "eagle3", 3, "some/head")]
    assert load_settings(["other/head"], {}).model == "other/head"

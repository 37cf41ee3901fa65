"""Keys from settings and from a file: their names, their roles, and what is refused."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

from server.settings.access_settings import AccessSettings
from server.settings.keys import Key, KeySet, Role
from server.settings.types import SettingError, digest_of


def sha256(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def read(text: str | bytes, folder: Path, **settings: Any) -> KeySet:
    """The keys of a file with this text, and of other settings."""
    (file := folder / "keys").write_bytes(text if isinstance(text, bytes) else text.encode())
    return AccessSettings(key_file=str(file), **settings).read_keys()


def error_of(text: str | bytes, folder: Path, **settings: Any) -> str:
    with pytest.raises(SettingError) as caught:
        read(text, folder, **settings)
    assert caught.value.setting == "key_file"
    return str(caught.value)


def test_a_file_has_a_name_a_role_and_a_key_on_each_line(tmp_path: Path) -> None:
    keys = read(
        f"# who may do what\n\nteam-a api sk-one\n  ops\tadmin  sha256:{sha256('sk-root')}  \r\n"
        "scraper metrics schlüssel",
        tmp_path,
    )
    assert len(keys) == 3
    for token, name, role in (
        ("sk-one", "team-a", Role.API),
        ("sk-root", "ops", Role.ADMIN),
        ("schlüssel", "scraper", Role.METRICS),
    ):
        assert keys.find(token.encode()) == Key(name, role, digest_of(token.encode()))
        assert keys.names(role) == {name}
    for token in ("", "team-a", "sk-on", f"sha256:{sha256('sk-root')}", sha256("sk-root")):
        assert keys.find(token.encode()) is None


def test_keys_that_follow_each_other_share_a_name(tmp_path: Path) -> None:
    keys = read("team api old\nteam api new\nteam api new\n", tmp_path)
    assert len(keys) == 2
    assert keys.names(Role.API) == {"team"}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("secret-key", "must have a name, a role and a key, but has 1 columns"),
        ("a api", "has 2 columns"),
        ("a api secret-key more", "has 4 columns"),
        ("a/b api secret-key", "the name must have 1 to 64"),
        (f"{'a' * 65} api secret-key", "the name must have 1 to 64"),
        ("a secret-key api", "the role must be one of api, admin, metrics"),
        ("a API secret-key", "the role must be one of api, admin, metrics"),
        ("a api sha256:secret-key", "sha256: must be followed by 64 hex digits"),
        (f"a api sha256:{sha256('')}", "this is the hash of an empty text"),
    ],
)
def test_a_wrong_line_is_named_and_no_key_is_repeated(
    line: str, reason: str, tmp_path: Path
) -> None:
    message = error_of(f"good api sk-good\n{line}\n", tmp_path)
    assert message.startswith(f"{tmp_path}/keys, line 2: ")
    assert reason in message
    assert "secret-key" not in message


@pytest.mark.parametrize("text", ["", "\n \n", "# a api k\n"])
def test_a_file_without_a_key_is_refused(text: str, tmp_path: Path) -> None:
    assert error_of(text, tmp_path) == f"{tmp_path}/keys has no key"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    assert "as text in UTF-8" in error_of(b"a api \xff\n", tmp_path)
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(SettingError, match=f"cannot read {path}: "):
            AccessSettings(key_file=str(path)).read_keys()


@pytest.mark.parametrize(
    ("settings", "setting"),
    [
        ({"api_key": "k", "admin_key": "k"}, "admin_key"),
        ({"api_key": "k", "metrics_key": "k"}, "metrics_key"),
        ({"admin_key": "k", "named_api_key": "team=k"}, "admin_key"),
        ({"named_api_key": "one=k,two=k"}, "named_api_key"),
    ],
)
def test_a_key_has_one_role_and_one_name(settings: dict[str, str], setting: str) -> None:
    with pytest.raises(SettingError, match=r"this key is the api key .* already") as caught:
        AccessSettings(**settings).read_keys()  # type: ignore[arg-type]
    assert caught.value.setting == setting


def test_a_key_of_the_file_has_no_other_role_in_the_settings(tmp_path: Path) -> None:
    message = error_of("ops admin k\n", tmp_path, api_key="k")
    assert message.endswith(f"line 1: this key is the api key {sha256('k')[:8]} already")
    message = error_of("team admin other\n", tmp_path, named_api_key="team=k")
    assert message.endswith("line 1: team is the name of an api key already")


def test_an_unnamed_key_is_called_by_the_begin_of_its_hash() -> None:
    key = AccessSettings(api_key="sk-one").read_keys().find(b"sk-one")
    assert key is not None
    assert key.name == sha256("sk-one")[:8]


def test_no_key_is_kept_as_text() -> None:
    settings = AccessSettings(api_key="sk-one", named_api_key="a=sk-two", admin_key=["sk-three"])
    keys = settings.read_keys()
    everything = repr([settings, settings.model_dump(), vars(keys), keys.find(b"sk-one")])
    assert "sk-" not in everything
    assert sha256("sk-one") not in everything


def test_a_copy_has_the_keys_that_it_is_given(tmp_path: Path) -> None:
    (file := tmp_path / "keys").write_text("team api sk-team\n")
    settings = AccessSettings(key_file=str(file), admin_key="root")
    assert len(settings.keys_at_start) == 2
    file.write_text("other api sk-other\n")
    same = settings.model_copy(update={"insecure": True})
    assert same.keys_at_start is settings.keys_at_start
    assert len(settings.model_copy(update={"admin_key": (), "key_file": None}).keys_at_start) == 0


@pytest.mark.parametrize("setting", ["api_key", "admin_key", "metrics_key", "named_api_key"])
@pytest.mark.parametrize("value", ["", " ", ",", "a=k,,b=k", ["a=k", ""], ["a=k,b=l"], [5]])
def test_a_key_that_is_empty_or_likely_a_mistake_is_refused(setting: str, value: Any) -> None:
    with pytest.raises(ValueError, match="must "):
        AccessSettings(**{setting: value})

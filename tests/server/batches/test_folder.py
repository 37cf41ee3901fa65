"""The folder on disk: ids, records, and what cannot be used."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.batches.folder import Folder, Kind, new_id


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    folder = Folder(str(tmp_path / "files"))
    yield folder
    folder.close()


@pytest.mark.parametrize(
    "name", ["../x", "file-1", "lock", "", "file-" + "0" * 33, "file-" + "g" * 32, "file-\n", "/x"]
)
def test_only_ids_of_its_own_are_a_part_of_a_path(folder: Folder, name: str) -> None:
    for use in (folder.content, folder.upload, lambda i: folder.remove(Kind.FILE, i)):
        with pytest.raises(ValueError, match="is not an id"):
            use(name)
    with pytest.raises(ValueError, match="is not an id"):
        folder.save(Kind.BATCH, name, {})


def test_a_record_is_replaced_as_a_whole(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_id = new_id(Kind.BATCH)
    folder.save(Kind.BATCH, record_id, {"a": 1})

    def broken(record: object, file: object) -> None:
        file.write("{half")  # type: ignore[attr-defined]
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(json, "dump", broken)
        with pytest.raises(OSError, match="No space"):
            folder.save(Kind.BATCH, record_id, {"a": 2})
    assert list(folder.records(Kind.BATCH)) == [{"a": 1, "id": record_id}]


def test_what_is_no_record_is_left_alone(folder: Folder, tmp_path: Path) -> None:
    batches = tmp_path / "files" / "batches"
    for name in ("other.json", "batch_1.json", f"{new_id(Kind.BATCH)}.json.new"):
        (batches / name).write_text("{}")
    (batches / f"{new_id(Kind.BATCH)}.json").write_text("[]")
    assert list(folder.records(Kind.BATCH)) == []
    assert len(list(batches.iterdir())) == 4


def test_only_the_servers_user_can_read_it(folder: Folder, tmp_path: Path) -> None:
    for path in (tmp_path / "files", *(tmp_path / "files").iterdir()):
        if path.is_dir():
            assert path.stat().st_mode & 0o077 == 0

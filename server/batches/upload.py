"""Reads a file from a form (RFC 7578) while it arrives, straight to the disk."""

import os
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from server.batches.files import INPUT, FileStore, FilesUnavailable, FileTooLarge, StoredFile
from server.batches.folder import Kind, new_id
from server.errors import InvalidField
from server.schema.batches import MAX_FILE_NAME, check_lifetime

MAX_FIELD_BYTES, MAX_HEADER_BYTES = 1024, 4096
"""The most bytes of a field besides the file, and of a header of a part."""

FIELDS = ("purpose", "expires_after[anchor]", "expires_after[seconds]")


class Form:
    """The parts of a form. The content of the file is taken out after each piece.

    Attributes:
        fields: name -> value.
        file_name: as the client calls it; `None` until the file begins.
        content: what has arrived of the file since it was last taken.
    """

    def __init__(self, content_type: str) -> None:
        kind, options = parse_options_header(content_type)
        boundary = options.get(b"boundary")
        if kind != b"multipart/form-data" or not boundary:
            raise _invalid("send the file as multipart/form-data, with a boundary")
        self.fields: dict[str, str] = {}
        self.file_name: str | None = None
        self.content: list[bytes] = []
        self._header = self._value = b""
        self._disposition = b""
        self._field: str | None = None
        self._data = b""
        self._is_complete = False
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._begin,
                    "on_header_field": self._header_name,
                    "on_header_value": self._header_value,
                    "on_header_end": self._header_end,
                    "on_headers_finished": self._headers_end,
                    "on_part_data": self._part_data,
                    "on_part_end": self._part_end,
                    "on_end": self._form_end,
                },
            )
        except FormParserError as error:
            raise _invalid(str(error)) from None

    def feed(self, piece: bytes) -> None:
        """Reads a piece of the body. Raises `InvalidField`."""
        try:
            self._parser.write(piece)
        except FormParserError as error:
            raise _invalid(str(error)) from None

    def end(self) -> None:
        """The body has ended. Raises `InvalidField` if the form has not."""
        if not self._is_complete:
            raise _invalid("its last boundary is missing")

    def _begin(self) -> None:
        self._disposition = self._header = self._value = self._data = b""

    def _header_name(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]
        self._check_header()

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]
        self._check_header()

    def _check_header(self) -> None:
        if len(self._header) + len(self._value) > MAX_HEADER_BYTES:
            raise _invalid(f"a header of a part is longer than {MAX_HEADER_BYTES} bytes")

    def _header_end(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = self._value
        self._header = self._value = b""

    def _headers_end(self) -> None:
        _, options = parse_options_header(self._disposition)
        name = _text(options.get(b"name", b""))
        self._field = None
        if name == "file":
            if self.file_name is not None:
                raise _invalid("send one file")
            if b"filename" not in options:
                raise InvalidField("file", "file: must be a file, with a filename.")
            self.file_name = _text(options[b"filename"])
        elif name in FIELDS and name not in self.fields:
            self._field = name
        else:
            raise InvalidField(
                name or None,
                f"the form may have file, {', '.join(FIELDS)}, each once.",
                "unknown_parameter",
            )

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        if self._field is None:
            self.content.append(data[start:end])
            return
        self._data += data[start:end]
        if len(self._data) > MAX_FIELD_BYTES:
            reason = f"{self._field}: is longer than {MAX_FIELD_BYTES} bytes."
            raise InvalidField(self._field, reason)

    def _part_end(self) -> None:
        if self._field is not None:
            self.fields[self._field] = _text(self._data)

    def _form_end(self) -> None:
        self._is_complete = True


async def receive_file(
    store: FileStore, owner: str, content_type: str, body: AsyncIterator[bytes]
) -> StoredFile:
    """Stores the file of a form. Nothing is left of it if it is refused or does not arrive.

    Raises:
        InvalidField: the form is not valid.
        FileTooLarge, QuotaExceeded: the file is too large, or the owner has too much.
        ConcurrencyLimit: the owner has too many transfers.
        FilesUnavailable: the disk is full, or fails.
    """
    form, file_id = Form(content_type), new_id(Kind.FILE)
    disk = store.disk
    upload_path, content = disk.folder.upload(file_id), disk.folder.content(file_id)
    upload = _Upload(store, owner)
    with store.transfer(owner), store.pending(owner, 1), ExitStack() as cleanup:
        try:
            cleanup.callback(upload_path.unlink, missing_ok=True)
            target = await disk.open(lambda: upload_path.open("xb"))
            cleanup.callback(upload.give_back)
            cleanup.enter_context(target)
            async for piece in body:
                form.feed(piece)
                await upload.write(form, target)
            form.end()
            seconds = check_form(form)
            await disk.run(lambda: _sync_and_close(target))
            name = form.file_name or ""
            file = store.new_file(file_id, owner, name, INPUT, upload.num_bytes, seconds)
            await disk.run(lambda: upload_path.rename(content))
            cleanup.callback(upload.discard, content)
            await store.add(file)
        except OSError as error:
            raise FilesUnavailable(error) from None
        upload.is_stored = True
    return file


def _sync_and_close(file: BinaryIO) -> None:
    """Closes a file whose content the disk then has, also after a loss of power."""
    file.flush()
    os.fsync(file.fileno())
    file.close()


class _Upload:
    """The bytes of an upload that count for its owner."""

    def __init__(self, store: FileStore, owner: str) -> None:
        self._store = store
        self._owner = owner
        self.num_bytes = 0
        self.is_stored = False

    async def write(self, form: Form, target: BinaryIO) -> None:
        """Writes what has arrived of the file."""
        content = b"".join(form.content)
        form.content.clear()
        if not content:
            return
        max_bytes = self._store.settings.max_file_bytes
        if self.num_bytes + len(content) > max_bytes:
            raise FileTooLarge(max_bytes)
        self._store.check_bytes(self._owner, len(content))
        self._store.count_bytes(self._owner, len(content))
        self.num_bytes += len(content)
        await self._store.disk.run(lambda: target.write(content))

    def give_back(self) -> None:
        """Counts the bytes no more, unless they are a file's."""
        if not self.is_stored:
            self._store.count_bytes(self._owner, -self.num_bytes)

    def discard(self, content: Path) -> None:
        """Deletes the content, unless it is a file's."""
        if not self.is_stored:
            content.unlink(missing_ok=True)


def check_form(form: Form) -> int | None:
    """The life of the file in seconds that the form asks for. Raises `InvalidField`."""
    if form.file_name is None:
        raise InvalidField("file", "file is required.", "missing_required_parameter")
    if len(form.file_name) > MAX_FILE_NAME:
        reason = f"file: the name is longer than {MAX_FILE_NAME} characters."
        raise InvalidField("file", reason)
    purpose = form.fields.get("purpose")
    if purpose is None:
        raise InvalidField("purpose", "purpose is required.", "missing_required_parameter")
    if purpose != INPUT:
        reason = f"purpose: must be {INPUT}; this server has no other use of files."
        raise InvalidField("purpose", reason, "unsupported_parameter")
    anchor, seconds = (form.fields.get(name) for name in FIELDS[1:])
    if anchor is None and seconds is None:
        return None
    if anchor != "created_at":
        raise InvalidField(FIELDS[1], f"{FIELDS[1]}: must be created_at.")
    if seconds is None or not seconds.isdecimal() or len(seconds) > 9:
        raise InvalidField(FIELDS[2], f"{FIELDS[2]}: must be a number of seconds.")
    return check_lifetime(int(seconds), FIELDS[2])


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _invalid(reason: str) -> InvalidField:
    return InvalidField(None, f"The form is not valid: {reason}.", "invalid_form")

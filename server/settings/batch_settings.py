"""The settings of files and batches."""

from typing import Annotated

from pydantic import BaseModel, ByteSize, Field

from server.settings.types import Count


class BatchSettings(BaseModel):
    """Where files and batches are kept, and how many a key may have."""

    files_dir: str | None = Field(
        None,
        min_length=1,
        description="folder in which the files and batches of clients are kept, for /v1/files and "
        "/v1/batches (default: neither is served)",
    )
    max_file_bytes: Annotated[ByteSize, Field(ge=1)] = Field(
        ByteSize(200 * 2**20), description="largest file that may be uploaded, or as 200MiB"
    )
    max_key_files: Count = Field(
        1000, description="most files of one API key, the results of its batches included"
    )
    max_key_file_bytes: Annotated[ByteSize, Field(ge=1)] = Field(
        ByteSize(4 * 2**30), description="most bytes of these files together, or as 4GiB"
    )
    file_lifetime_s: Count = Field(
        30 * 24 * 3600,
        description="seconds for which files and ended batches are kept; a client may set fewer",
    )
    max_batch_requests: Count = Field(50_000, description="most lines of a batch's file")
    max_key_batches: Count = Field(
        100, description="most batches of one API key that have not ended"
    )
    batch_reserved_sequences: int | None = Field(
        None,
        ge=0,
        description="sequences of --max-num-seqs that batches leave free for other requests (a "
        "quarter of --max-num-seqs, at least 1); 0 leaves none",
    )

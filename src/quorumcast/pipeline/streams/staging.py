"""The staging directory: holds the rows of a micro-batch between the tasks and the channel.

Spark may repeat a micro-batch with other partitions, in another order, or without rows that its
input no longer retains. Published rows cannot be taken back, so a micro-batch is decided once:

1. Each task writes its publications to a *part*, a file of its own.
2. When all tasks have ended, the driver names the parts in `batch.json`. The first driver to write
   that file decides, and others follow. Parts that it does not name are leftovers.
3. The driver publishes the named parts, creates the file `published`, and removes all parts.

`batch.json` is kept until a later micro-batch is published: from then on brokers refuse this one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from uuid import uuid4

import msgspec
import pyarrow as pa
from pyarrow import fs

from quorumcast.core.envelope import microseconds_of, time_of
from quorumcast.core.errors import UsageError

_BATCH, _PUBLISHED = "batch.json", "published"
#: In the metadata of a staged record batch: the time of the publication.
_TIME = b"published_us"
_PART = "part-"

#: A publication and its time; None: the time at which the micro-batch was decided.
Publication = tuple[pa.RecordBatch, datetime | None]


class StagedBatch(msgspec.Struct, frozen=True):
    """A decided micro-batch: the contents of `batch.json`."""

    #: The name and the epoch of the stream.
    name: str
    epoch: int
    #: The time of publications that have none of their own.
    decided_us: int
    rows: int
    #: Names of the parts, in the order of their partitions.
    parts: tuple[str, ...]


def directory_uri(path: str) -> str:
    """Return a directory as an absolute path or URI."""
    plain = re.sub("^file:/+", "/", path)  # as Java writes it, or as others do
    return plain if "://" in plain else str(Path(plain).absolute())


class Staging:
    """The folder of one micro-batch in a staging directory."""

    def __init__(self, directory: str, folder: str) -> None:
        self._directory = directory
        with self._reached():
            self._files, self._root = fs.FileSystem.from_uri(directory)
        self._local = isinstance(self._files, fs.LocalFileSystem)
        self._folder = f"{self._root}/{folder}"

    def make_directory(self) -> None:
        """Create the directory on the driver; a task on a machine without it then fails."""
        with self._reached():
            self._files.create_dir(self._root, recursive=True)

    # ------------------------------------------------------------------------ parts

    def write_part(self, partition: int, schema: pa.Schema, rows: Iterator[Publication]) -> str:
        """Write the publications of a task; returns the name of the part."""
        name = f"{_PART}{partition}-{uuid4().hex}.arrow"
        with self._reached():
            if self._files.get_file_info(self._root).type is not fs.FileType.Directory:
                raise FileNotFoundError("it is not on the machine of this task")
            self._files.create_dir(self._folder, recursive=True)
            out = self._files.open_output_stream(f"{self._folder}/{name}")
        with out, pa.ipc.new_stream(out, schema) as part:
            for batch, at in rows:
                stamp = {} if at is None else {_TIME: str(microseconds_of(at))}
                with self._reached():
                    part.write_batch(batch, custom_metadata=stamp)
        with self._reached():
            self._make_durable(f"{self._folder}/{name}")
        return name

    def publications(self, staged: StagedBatch) -> Iterator[Publication]:
        """Yield the publications of a micro-batch, in the order of partitions."""
        for name in staged.parts:
            with self._reached(), self._files.open_input_file(f"{self._folder}/{name}") as file:
                for batch, stamp in pa.ipc.open_stream(file).iter_batches_with_custom_metadata():
                    yield batch, time_of(int(stamp[_TIME])) if stamp else None

    # ----------------------------------------------------------------- the decision

    def batch(self) -> StagedBatch | None:
        """Return the micro-batch if it has been decided."""
        with self._reached():
            try:
                with self._files.open_input_stream(f"{self._folder}/{_BATCH}") as file:
                    return msgspec.json.decode(file.read(), type=StagedBatch)
            except FileNotFoundError:
                return None

    @property
    def published(self) -> bool:
        """Whether the whole micro-batch has been published."""
        with self._reached():
            found = self._files.get_file_info(f"{self._folder}/{_PUBLISHED}")
            return found.type is fs.FileType.File

    def decide(self, batch: StagedBatch) -> StagedBatch:
        """Decide the micro-batch, unless it has been decided; return the decision."""
        draft = f"{self._folder}/{_BATCH}.{uuid4().hex}"
        with self._reached():
            self._write(draft, msgspec.json.encode(batch))
            if self._local:
                # Of two concurrent drivers only one can create the link.
                with suppress(FileExistsError):
                    os.link(draft, f"{self._folder}/{_BATCH}")
                self._files.delete_file(draft)
                self._make_durable(self._folder)
                self._make_durable(self._root)
            elif self.batch() is None:
                self._files.move(draft, f"{self._folder}/{_BATCH}")
        return self.batch() or batch

    def finish(self) -> None:
        """Record that the micro-batch has been published, and remove its rows."""
        with self._reached():
            self._write(f"{self._folder}/{_PUBLISHED}", b"")
            found = self._files.get_file_info(fs.FileSelector(self._folder))
        self.remove_parts(file.base_name for file in found if file.base_name.startswith(_PART))

    # ---------------------------------------------------------------------- removing

    def remove_parts(self, names: Iterable[str]) -> None:
        """Remove parts."""
        with self._reached():
            for name in names:
                with suppress(FileNotFoundError):  # another driver removed it
                    self._files.delete_file(f"{self._folder}/{name}")

    def remove_before(self, epoch: int) -> None:
        """Remove the folders of earlier micro-batches: Spark runs none of them again."""
        with self._reached():
            for found in self._files.get_file_info(fs.FileSelector(self._root)):
                if found.base_name.isdecimal() and int(found.base_name) < epoch:
                    with suppress(FileNotFoundError):
                        self._files.delete_dir(found.path)

    def remove_directory(self) -> None:
        """Remove the staging directory with everything in it."""
        with self._reached(), suppress(FileNotFoundError):
            self._files.delete_dir(self._root)

    # -------------------------------------------------------------------------- files

    def _write(self, path: str, contents: bytes) -> None:
        with self._files.open_output_stream(path) as out:
            out.write(contents)
        self._make_durable(path)

    def _make_durable(self, path: str) -> None:
        """Sync a file or folder to disk, so that it survives a power failure."""
        if self._local:
            handle = os.open(path, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

    @contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError, pa.ArrowException, msgspec.MsgspecError) as error:
            raise UsageError(
                f"the staging directory {self._directory} cannot be used ({error}): give every "
                "machine of the query access to it, or name another with the option 'staging'"
            ) from None

"""What a row holds for a medium enters (bytes, a path, a data URI, a key of a media table), its bytes leave."""

from __future__ import annotations

import base64
import binascii
import errno
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from packloom.datasets.convert.media_table import MediaTable
from packloom.datasets.convert.sniff import sniff
from packloom.errors import SampleError, ShardError

#: A name too long, a loop of links: the name is at fault, not the disk.
_FAULTS_OF_NAMES = frozenset({errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL})
_DATA_URI = re.compile(r"data:[\w.+/;=-]*?(;base64)?,", re.IGNORECASE)


class MediaReader:
    """Finds the bytes of media, and names them by their true format."""

    def __init__(self, *, root: str | None, table: MediaTable | None) -> None:
        self._root = None if root is None else Path(root)
        self._table = table

    def expect(self, values: Iterator[Any]) -> None:
        """Fetch together what ``values`` name in the media table; ``read`` then finds it in memory."""
        if self._table is not None:
            self._table.fetch([key for value in values for key in table_keys(value)])

    def read(self, value: Any, where: str) -> tuple[bytes, str]:
        """(bytes, extension of the true format). Raises SampleError with a ``convert.*`` code."""
        data = self._bytes(value, where)
        if not data:
            raise SampleError(f"{where} has no bytes", code="convert.empty_media", hint="store the file anew")
        extension = sniff(data)
        if extension is None:
            reason = f"{where} is no known image, video or audio: it starts with {data[:16]!r}"
            raise SampleError(reason, code="convert.unknown_format")
        return data, extension

    def _bytes(self, value: Any, where: str) -> bytes:
        if isinstance(value, Mapping):
            if value.get("bytes") is None and value.get("path") is None:
                raise SampleError(f"{where} has neither bytes nor a path", code="convert.null_media")
            value = value["path"] if value.get("bytes") is None else value["bytes"]
        if isinstance(value, (bytes, bytearray, memoryview)):
            return bytes(value)
        if isinstance(value, str) and (match := _DATA_URI.match(value)):
            return _decode(value, match, where)
        if self._table is not None and isinstance(value, (str, int)):
            return self._table.get(value, where)
        if isinstance(value, str):
            return self._read_file(value, where)
        if value is None:
            raise SampleError(f"{where} is null", code="convert.null_media", hint="leave it out of the list")
        reason = f"{where} is {type(value).__name__} {value!r:.60}, neither bytes nor a path"
        raise SampleError(reason, code="convert.media_type")

    def _read_file(self, text: str, where: str) -> bytes:
        path = Path(text)
        if "://" in text:
            reason = f"{where} is the url {text!r:.120}, and urls are not fetched"
            raise SampleError(reason, code="convert.url", hint="fetch the files first, and name their paths")
        if path.is_absolute() or ".." in path.parts or "\\" in text or "\0" in text or not text:
            reason = f"{where} is the path {text!r:.120}, which may leave the folder of the media"
            hint = "use paths below the folder that --media-root names"
            raise SampleError(reason, code="convert.unsafe_path", hint=hint)
        if self._root is None:
            hint = "name the folder with --media-root"
            raise SampleError(
                f"{where} is the path {text!r:.120} below an unknown folder", code="convert.no_root", hint=hint
            )
        full = self._root / path
        try:
            if full.exists() and not full.is_file():  # a pipe would never end, a folder is none
                raise FileNotFoundError(errno.ENOENT, "no plain file")
            return full.read_bytes()
        except (FileNotFoundError, NotADirectoryError, UnicodeEncodeError) as error:  # half a surrogate pair is no name
            hint = "check --media-root"
            reason = f"{where}: there is no file {text!r:.120} in {self._root}"
            raise SampleError(reason, code="convert.missing_file", hint=hint) from error
        except OSError as error:
            if error.errno in _FAULTS_OF_NAMES:
                raise SampleError(f"{where}: {text!r:.120}: {error.strerror}", code="convert.missing_file") from error
            raise ShardError(f"{full} cannot be read: {error.strerror or error}") from error


def table_keys(value: Any) -> Iterator[str | int]:
    """The keys that a value may name."""
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, int) or (isinstance(item, str) and not _DATA_URI.match(item)):
            yield item


def _decode(text: str, match: re.Match[str], where: str) -> bytes:
    if not match[1]:
        raise SampleError(f"{where} is a data URI without base64", code="convert.data_uri")
    try:
        return base64.b64decode(text[match.end() :], validate=True)
    except (binascii.Error, ValueError) as error:
        raise SampleError(f"{where} is a data URI that is not base64: {error}", code="convert.data_uri") from error

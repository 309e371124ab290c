"""Columns find their fields by name and type; the user's choices come first; nothing is left out in silence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from packloom.datasets.convert.arrow_rows import arrow_columns
from packloom.datasets.convert.columns import ColumnMap, map_columns
from packloom.datasets.convert.settings import ConvertConfig
from packloom.datasets.convert.sniff import sniff
from packloom.datasets.convert.source import Column, ColumnType
from packloom.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Table:
    """As much of a source as the mapping looks at."""

    columns: tuple[Column, ...]
    keeps_unknown: bool = False


def mapped(table_columns: dict[str, ColumnType], /, *, json: bool = False, **config: Any) -> ColumnMap:
    table = Table(columns=tuple(Column(name=n, type=t) for n, t in table_columns.items()), keeps_unknown=json)
    found = map_columns(table, ConvertConfig(**config))
    assert found is not None
    return found


def test_names_and_types() -> None:
    columns: dict[str, ColumnType] = {"photo": "media", "messages": "nested", "uid": "text", "score": "number"}
    found = mapped(columns)
    assert found.fields == (("messages", "messages"), ("id", "uid"))
    assert found.media == (("image", "photo"),)  # the only column of bytes
    assert found.kept == ("score",)
    assert found.left_out == ()


def test_what_is_left_out_says_why_by_its_type() -> None:
    columns = (
        Column(name="messages", type="nested"),
        Column(name="a", type="media", stored="binary"),
        Column(name="b", type="media", stored="binary"),
        Column(name="when", type="other", stored="timestamp[us]"),
    )
    found = map_columns(Table(columns=columns), ConvertConfig())
    assert found is not None
    assert found.left_out == (
        ("a", "JSON cannot hold bytes: map it to images, videos or audios"),
        ("b", "JSON cannot hold bytes: map it to images, videos or audios"),
        ("when", "JSON cannot hold timestamp[us]: cast it to text or numbers first"),
    )


def test_a_dictionary_is_what_its_values_are() -> None:
    pa = pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'packloom[lance]'")

    def coded(kind: Any) -> Any:
        return pa.dictionary(pa.int32(), kind)

    types = {
        "image": coded(pa.binary()),
        "images": pa.list_(coded(pa.large_binary())),
        "pair": pa.struct([("bytes", coded(pa.binary())), ("path", coded(pa.string()))]),
        "text": coded(pa.string()),
        "texts": pa.list_(coded(pa.string())),
        "turns": pa.list_(pa.struct([("role", coded(pa.string())), ("content", pa.string())])),
        "number": coded(pa.int64()),
        "day": coded(pa.date32()),
    }
    wanted = ["media", "media", "media", "text", "texts", "nested", "number", "other"]
    found = arrow_columns(pa.schema(types))
    assert [column.type for column in found] == wanted
    assert found[-1].stored == "dictionary<values=date32[day], indices=int32, ordered=0>"


def test_one_conversation_only() -> None:
    found = mapped({"conversations": "nested", "messages": "nested", "question": "text", "answer": "text"})
    assert found.fields == (("messages", "messages"),)
    assert [name for name, _ in found.left_out] == ["conversations", "question", "answer"]
    assert mapped({"prompt": "text", "response": "text", "text": "text"}).fields == (
        ("question", "prompt"),
        ("answer", "response"),
    )


def test_choices_come_first() -> None:
    columns: dict[str, ColumnType] = {"messages": "nested", "chat": "nested", "a": "media", "b": "media", "n": "number"}
    pairs = (("messages", "chat"), ("images", "b"), ("images", "a"))
    found = mapped(columns, columns=pairs, drop=("n",))
    assert found.fields == (("messages", "chat"),)
    assert found.media == (("image", "b"), ("image", "a"))
    assert found.read == ["chat", "b", "a"]
    assert [name for name, _ in found.left_out] == ["messages", "n"]


def test_json_rows_may_have_media_that_the_first_ones_lack() -> None:
    assert mapped({"messages": "nested"}, json=True).media[:2] == (("image", "images"), ("image", "image"))
    found = mapped({"messages": "nested", "image": "text", "file_name": "text"}, json=True)
    assert ("image", "file_name") not in found.media
    assert found.kept == ("file_name",)
    assert mapped({"caption": "text", "file_name": "text"}, json=True).media[0] == ("image", "file_name")
    assert ("image", "image") not in mapped({"messages": "nested"}, json=True, drop=("image",)).media


def test_wrong_choices() -> None:
    def refuse(match: str, table_columns: dict[str, ColumnType], /, **config: Any) -> None:
        with pytest.raises(ConfigError, match=match):
            mapped(table_columns, **config)

    refuse("no column 'x'; it has messages", {"messages": "nested"}, columns=(("images", "x"),))
    refuse(
        "mapped and dropped at once", {"messages": "nested"}, columns=(("messages", "messages"),), drop=("messages",)
    )
    refuse("only media fields", {"a": "nested", "b": "nested"}, columns=(("messages", "a"), ("messages", "b")))
    refuse("'messages' is number, but messages needs text", {"messages": "number"})
    refuse(r"the source has image \(media\)", {"image": "media"})
    twice = Table(columns=(Column(name="messages", type="nested"),) * 2)
    with pytest.raises(ConfigError, match="the source has 2 columns named 'messages'"):
        map_columns(twice, ConvertConfig())


@pytest.mark.parametrize(
    ("data", "extension"),
    [
        (b"\xff\xd8\xff\xe0 JFIF", "jpg"),
        (b"RIFF\x10\0\0\0WEBPVP8 ", "webp"),
        (b"RIFF\x10\0\0\0WAVEfmt ", "wav"),
        (b"XXXX\x10\0\0\0WEBPVP8 ", None),
        (b"\0\0\0\x20ftypavif\0\0\0\0", "avif"),
        (b"\0\0\0\x20ftypisom\0\0\0\0", "mp4"),
        (b"\x1a\x45\xdf\xa3....webm", "webm"),
        (b"P6\n1 1\n255\n...", "ppm"),
        (b"Plain text", None),
        (b"<svg xmlns=''>", None),
        (b"", None),
    ],
)
def test_formats_by_their_bytes(data: bytes, extension: str | None) -> None:
    assert sniff(data) == extension

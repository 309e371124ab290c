"""The columns of a source and the user's choices enter, what each column becomes leaves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from packloom.datasets.convert.settings import FIELDS, ConvertConfig
from packloom.datasets.convert.source import Column, RowSource
from packloom.errors import ConfigError
from packloom.types import MediaKind

MEDIA_FIELDS: dict[str, MediaKind] = {"images": "image", "videos": "video", "audios": "audio"}
#: Names under which a field is looked for, the most telling first.
_ALIASES: dict[str, tuple[str, ...]] = {
    "messages": ("messages",),
    "conversations": ("conversations", "conversation", "dialog", "dialogue", "chat", "turns"),
    "question": ("question", "query", "prompt", "instruction"),
    "answer": ("answer", "response", "output"),
    "answers": ("answers",),
    "caption": ("caption", "text", "description"),
    "system": ("system", "system_prompt"),
    "tools": ("tools",),
    "id": ("id", "uid", "sample_id", "__key__", "key"),
    "images": ("images", "image", "img", "imgs", "image_path", "image_paths", "image_bytes", "file_name", "jpg", "png"),
    "videos": ("videos", "video", "video_path", "mp4"),
    "audios": ("audios", "audio", "audio_path", "wav"),
}
#: Every name that a reader of shards takes for a part of the conversation.
_MEANT = {*FIELDS, "image", "video", "audio", "txt"}
_TEXTUAL = ("text", "nested", "texts")


@dataclass(frozen=True, kw_only=True)
class ColumnMap:
    """What is read and what it becomes."""

    fields: tuple[tuple[str, str], ...]  # (field of the json part, column)
    media: tuple[tuple[MediaKind, str], ...]  # (kind, column), in the order in which their files are numbered
    kept: tuple[str, ...]  # columns that keep their name in the json part
    left_out: tuple[tuple[str, str], ...]  # (column, why)
    keeps_unknown: bool  # whether what a row has beside these is kept

    @property
    def read(self) -> list[str]:
        """The columns that are read."""
        names = [column for _, column in (*self.fields, *self.media)] + list(self.kept)
        return list(dict.fromkeys(names))


def map_columns(source: RowSource, config: ConvertConfig) -> ColumnMap | None:
    """Find a column for each field, the user's choices first; None for a source whose rows are samples already.

    Raises ConfigError for a column that is not there or of the wrong type, and where there is no conversation.
    """
    if source.columns is None:
        if config.columns or config.drop:
            raise ConfigError("the samples of tar shards pass as they are: leave column settings out")
        return None
    columns = {column.name: column for column in source.columns}
    _check_names(config, columns, source)
    free = {name: column for name, column in columns.items() if name not in config.drop}
    chosen = list(config.columns)
    taken = {column for _, column in chosen}
    for field, name in (*_find_conversation(free, chosen), *_find_others(free, chosen, source, config.drop)):
        if name not in taken:
            chosen.append((field, name))
            taken.add(name)
    fields = tuple((field, name) for field, name in chosen if field not in MEDIA_FIELDS)
    media = tuple((MEDIA_FIELDS[field], name) for field, name in chosen if field in MEDIA_FIELDS)
    _check_fields(fields, columns, source)
    kept, left_out = _sort_rest([column for column in columns.values() if column.name not in taken], config, fields)
    return ColumnMap(fields=fields, media=media, kept=kept, left_out=left_out, keeps_unknown=source.keeps_unknown)


def _check_names(config: ConvertConfig, columns: dict[str, Column], source: RowSource) -> None:
    doubled = Counter(column.name for column in source.columns or ()).most_common(1)
    if doubled and doubled[0][1] > 1:
        raise ConfigError(f"the source has {doubled[0][1]} columns named {doubled[0][0]!r}: rename all but one")
    names = [column for _, column in config.columns] + list(config.drop)
    missing = [name for name in names if name not in columns and not source.keeps_unknown]
    if missing:
        raise ConfigError(f"the source has no column {missing[0]!r}; it has {', '.join(columns)}")
    both = {column for _, column in config.columns} & set(config.drop)
    if both:
        raise ConfigError(f"column {min(both)!r} is mapped and dropped at once")
    single = [field for field, _ in config.columns if field not in MEDIA_FIELDS]
    if len(set(single)) < len(single):
        raise ConfigError(f"only media fields may have several columns, got {config.columns}")


def _find_conversation(free: dict[str, Column], chosen: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """The one layout that the conversation has."""
    have = {field for field, _ in chosen}
    if have & {"messages", "conversations", "caption"}:
        return
    if have & {"question", "answer", "answers"}:
        yield from _first(free, [field for field in ("question",) if field not in have])
        yield from _first(free, [] if have & {"answer", "answers"} else ["answer", "answers"], only_one=True)
        return
    for field in ("messages", "conversations"):
        found = list(_first(free, [field]))
        if found:
            yield from found
            return
    pair = [*_first(free, ["question"]), *_first(free, ["answer", "answers"], only_one=True)]
    if len(pair) == 2:
        yield from pair
        return
    yield from _first(free, ["caption"])


def _find_others(
    free: dict[str, Column], chosen: list[tuple[str, str]], source: RowSource, drop: Sequence[str]
) -> Iterator[tuple[str, str]]:
    have = {field for field, _ in chosen}
    yield from _first(free, [field for field in ("id", "system", "tools") if field not in have])
    for field in MEDIA_FIELDS:
        if field in have:
            continue
        found = [name for name in _ALIASES[field] if name in free and free[name].type != "number"]
        plain = [name for name in (field, field[:-1]) if name not in drop]
        if source.keeps_unknown and (not found or found[0] in plain):
            yield from ((field, name) for name in plain)  # a later row may have what the first ones lack
            continue
        if not found and field == "images":
            others = [name for name, column in free.items() if column.type == "media"]
            found = others if len(others) == 1 else []
        yield from ((field, name) for name in found[:1])


def _first(free: dict[str, Column], wanted: Sequence[str], *, only_one: bool = False) -> Iterator[tuple[str, str]]:
    for field in wanted:
        name = next((name for name in _ALIASES[field] if name in free), None)
        if name is not None:
            yield field, name
            if only_one:
                return


def _check_fields(fields: Sequence[tuple[str, str]], columns: dict[str, Column], source: RowSource) -> None:
    names = {field for field, _ in fields}
    pair = "question" in names and bool(names & {"answer", "answers"})
    if not (pair or names & {"messages", "conversations", "caption"}):
        found = ", ".join(f"{column.name} ({column.type})" for column in columns.values()) or "none"
        raise ConfigError(
            "no column looks like a conversation (messages, conversations, question with answer, caption); the source"
            f" has {found}. Name it, e.g. --map messages=COLUMN"
        )
    for field, name in fields if not source.keeps_unknown else ():  # else types differ from row to row
        column = columns.get(name)
        wrong = column is not None and field not in ("id", "answer", "answers") and column.type not in _TEXTUAL
        if column is not None and wrong:
            raise ConfigError(f"column {name!r} is {column.type}, but {field} needs text or nested values")


def _sort_rest(
    rest: Sequence[Column], config: ConvertConfig, fields: Sequence[tuple[str, str]]
) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    kept, left_out = [], []
    for column in rest:
        if column.name in config.drop:
            left_out.append((column.name, "dropped"))
        elif column.name in _MEANT or column.name in {field for field, _ in fields}:
            left_out.append((column.name, "would be read as part of the conversation: map it, or rename it"))
        elif column.type == "media":
            left_out.append((column.name, "JSON cannot hold bytes: map it to images, videos or audios"))
        elif column.type == "other":
            left_out.append(
                (column.name, f"JSON cannot hold {column.stored or 'it':.60}: cast it to text or numbers first")
            )
        else:
            kept.append(column.name)
    return tuple(kept), tuple(left_out)

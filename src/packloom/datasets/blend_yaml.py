"""A YAML file enters, the Blend that it describes leaves; nothing that it names is imported or run.

The grammar, of which every key but ``path`` may be absent::

    splits: {train: NODE, val: NODE}     # or a NODE at the top
    NODE:   a LEAF, or one of blend: [...], blend_epochized: [...], concat: [...] (with subset, subflavors)
    LEAF:   path, split_part, index_dir, name, subset: {range: [0%, 80%]}, subflavors: {...}, aux: {alias: path}
    items of blend also have a weight, those of blend_epochized repetitions

``path`` may name another such file. Files for Energon's MetadatasetV2 that keep to this subset are read as they are.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import yaml

from packloom.blend import Blend, BlendKind, Leaf
from packloom.datasets.energon_meta import DEFAULT_PART, energon_shard_names
from packloom.datasets.files import is_folder, read_file
from packloom.datasets.paths import is_url, normalise, split
from packloom.errors import ConfigError, ShardError

_KINDS: dict[str, BlendKind] = {"blend": "weighted", "blend_epochized": "epochized", "concat": "concat"}
_SHARES = {"weighted": "weight", "epochized": "repetitions"}
_COMMON = {"subset", "subflavors"}
_LEAF = {"path", "split_part", "index_dir", "name", "aux", *_COMMON}
#: How Energon's files begin. It is a mark of the format here; no other value is accepted, and neither is imported.
_ENERGON_MARK = {"__module__": "megatron.energon", "__class__": "MetadatasetV2"}
#: What names or configures code in Energon's files, beside all keys in double underscores.
_CODE = {
    "joiner",
    "cooker",
    "cookers",
    "task_encoder",
    "sample_loader",
    "part_filter",
    "dataset_config",
    "split_config",
}
_MAX_LEAVES = 2_000
_MAX_DEPTH = 32


def is_blend_file(path: object) -> bool:
    """Whether a dataset path names a blend."""
    return isinstance(path, str) and path.endswith((".yaml", ".yml"))


def load_blend(path: str, *, split_part: str | None = None) -> Blend:
    """Read a blend; ``split_part`` chooses among its ``splits`` (None: ``train``).

    Relative paths count from the folder of the file. Raises ConfigError, with the path of the key, for what is not of
    the grammar above and for whatever refers to code.
    """
    return _as_blend(_Reader().file(path, split_part, chain=()))


def expand_blend(blend: Blend, *, split_part: str | None = None) -> Blend:
    """The blend with each leaf that names a YAML file replaced by what is in it.

    ``split_part`` is read of files with ``splits`` where the leaf names none.
    """
    reader = _Reader()

    def expanded(node: Leaf | Blend, kind: BlendKind) -> Leaf | Blend:
        if isinstance(node, Blend):
            return replace(node, of=tuple(expanded(child, node.kind) for child in node.of))
        return (
            reader.nested(node, node.split_part or split_part, kind=kind, chain=())
            if is_blend_file(node.path)
            else node
        )

    return _as_blend(expanded(blend, blend.kind))


def _as_blend(node: Leaf | Blend) -> Blend:
    return node if isinstance(node, Blend) else Blend(kind="epochized", of=(node,))


class _Reader:
    """Reads one blend with all files that it includes."""

    def __init__(self) -> None:
        self._num_nodes = 0  # files that include one another can describe more leaves than fit in memory
        self._files: dict[str, Mapping[str, Any]] = {}

    def file(self, path: str, split_part: str | None, *, chain: tuple[str, ...]) -> Leaf | Blend:
        if path in chain or len(chain) > _MAX_DEPTH:
            raise ConfigError(f"{path} includes itself, or files include one another too deeply: {' > '.join(chain)}")
        part = split_part or DEFAULT_PART
        if path not in self._files:
            self._files[path] = _load(path)
        data, where = self._files[path], path
        for key, value in _ENERGON_MARK.items():
            if key in data and data[key] != value:
                raise _code_error(path, key, data[key])
        node: Any = {key: value for key, value in data.items() if key not in _ENERGON_MARK}
        if "splits" in node:
            _check_keys(node, {"splits"}, where)
            splits, where = _mapping(node["splits"], f"{path}: splits"), f"{path}: splits.{part}"
            if part not in splits:
                raise ConfigError(
                    f"{path}: splits has {', '.join(map(str, splits))}, but no {part!r}: name one as split_part"
                )
            node = splits[part]
        return self._node(node, _File(path=path, part=part, chain=(*chain, path)), where, parent=None, depth=0)

    def nested(self, leaf: Leaf, part: str | None, *, kind: BlendKind, chain: tuple[str, ...]) -> Blend:
        """What the file has that a leaf of a blend of this kind names, with what the leaf says of it."""
        if leaf.name or leaf.index_dir is not None or leaf.aux:
            raise ConfigError(f"{leaf.path}: name, index_dir and aux are those of a dataset: state them in that file")
        inner = self.file(str(leaf.path), part, chain=chain)
        return Blend(
            kind=inner.kind if isinstance(inner, Blend) else kind,
            of=(inner,),
            weight=leaf.weight,
            repetitions=leaf.repetitions,
            subset=leaf.subset,
            subflavors=leaf.subflavors,
        )

    def _node(self, data: Any, file: _File, where: str, *, parent: BlendKind | None, depth: int) -> Leaf | Blend:
        self._num_nodes += 1
        if self._num_nodes > _MAX_LEAVES or depth > _MAX_DEPTH:
            raise ConfigError(f"{where}: more than {_MAX_LEAVES} leaves or {_MAX_DEPTH} levels")
        node = _mapping(data, where)
        kinds = [key for key in _KINDS if key in node]
        if len(kinds) > 1 or (kinds and "path" in node):
            raise ConfigError(
                f"{where}: {' and '.join([*kinds, *(['path'] if 'path' in node else [])])} exclude each other"
            )
        share = None if parent is None else _SHARES.get(parent)
        allowed = ({kinds[0], *_COMMON} if kinds else _LEAF) | ({share} if share else set())
        _check_keys(node, allowed, where)
        fields: dict[str, Any] = {share: _number(node[share], f"{where}.{share}")} if share and share in node else {}
        if "subflavors" in node:
            fields["subflavors"] = _plain(_mapping(node["subflavors"], f"{where}.subflavors"), f"{where}.subflavors")
        if "subset" in node:
            fields["subset"] = _range(node["subset"], f"{where}.subset")
        if kinds:
            return self._blend(node[kinds[0]], _KINDS[kinds[0]], file, f"{where}.{kinds[0]}", depth, fields)
        return self._leaf(node, file, where, parent or "epochized", fields)

    def _blend(
        self, items: Any, kind: BlendKind, file: _File, where: str, depth: int, fields: Mapping[str, Any]
    ) -> Blend:
        if not isinstance(items, list):
            raise ConfigError(f"{where} must be a list, got {type(items).__name__}")
        children = [
            self._node(item, file, f"{where}[{place}]", parent=kind, depth=depth + 1)
            for place, item in enumerate(items)
        ]
        with _located(where):
            return Blend(kind=kind, of=tuple(children), **fields)

    def _leaf(
        self, node: Mapping[str, Any], file: _File, where: str, kind: BlendKind, fields: Mapping[str, Any]
    ) -> Leaf | Blend:
        if "path" not in node:
            raise ConfigError(f"{where} needs a path, or one of {', '.join(_KINDS)}")
        stated: dict[str, Any] = {
            key: _text(node[key], f"{where}.{key}") for key in ("split_part", "name", "index_dir") if key in node
        }
        if "index_dir" in stated:
            stated["index_dir"] = file.resolve(stated["index_dir"], f"{where}.index_dir")
        if "aux" in node:
            aux = _mapping(node["aux"], f"{where}.aux")
            aux = {_text(alias, f"{where}.aux: an alias"): _text(aux[alias], f"{where}.aux") for alias in aux}
            stated["aux"] = {alias: file.resolve(path, f"{where}.aux") for alias, path in aux.items()}
        paths = node["path"] if isinstance(node["path"], list) else [node["path"]]
        found = tuple(file.resolve(_text(item, f"{where}.path"), f"{where}.path") for item in paths)
        with _located(where):
            leaf = Leaf(path=found if isinstance(node["path"], list) else found[0], **stated, **fields)
        if is_blend_file(leaf.path):
            return self.nested(leaf, leaf.split_part or file.part, kind=kind, chain=file.chain)
        return leaf if leaf.split_part else replace(leaf, split_part=inherited_part(leaf.path, file.part))


class _File:
    """The file that is being read."""

    def __init__(self, *, path: str, part: str, chain: tuple[str, ...]) -> None:
        self.path = path
        self.part = part
        self.chain = chain

    def resolve(self, path: str, where: str) -> str:
        """A path of the file as seen from here."""
        try:
            plain = normalise(path)
        except ShardError as error:
            raise ConfigError(f"{where}: {error}") from error
        if is_url(plain) or plain.startswith("/"):
            return plain
        return normalise(f"{split(self.path)[0]}/{plain}")


def inherited_part(path: str | tuple[str, ...], part: str) -> str | None:
    """The split part for a dataset that does not state one: ``part`` where it knows split parts, else None."""
    if part == DEFAULT_PART or not isinstance(path, str) or not is_folder(path):
        return None
    return part if energon_shard_names(path) is not None else None


@contextmanager
def _located(where: str) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


class _StrictLoader(yaml.SafeLoader):
    """Plain YAML. A key that comes twice is an error, since of two weights the first would be lost in silence; so is an
    alias, by which a few lines can stand for more than fits in memory, or for a node within itself."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, "aliases are not read: write the node out", mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        if any(key.tag == "tag:yaml.org,2002:merge" for key, _ in node.value):
            raise yaml.constructor.ConstructorError(None, None, "merge keys (<<) are not read", node.start_mark)
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        doubled = [key for key in keys if keys.count(key) > 1]
        if doubled:
            raise yaml.constructor.ConstructorError(None, None, f"the key {doubled[0]!r} comes twice", node.start_mark)
        return super().construct_mapping(node, deep)


def _load(path: str) -> Mapping[str, Any]:
    try:
        data = yaml.load(read_file(path).decode("utf-8"), Loader=_StrictLoader)
    except OSError as error:
        raise ConfigError(f"the blend {path} cannot be read: {error.strerror or error}") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not plain YAML: {error}") from error
    return _mapping(data, path)


def _check_keys(node: Mapping[str, Any], allowed: set[str], where: str) -> None:
    for key, value in node.items():
        if key in allowed:
            continue
        if str(key).startswith("__") or key in _CODE:
            raise _code_error(where, str(key), value)
        raise ConfigError(f"{where}.{key}: unknown here; known: {', '.join(sorted(allowed))}")


def _code_error(where: str, key: str, value: object) -> ConfigError:
    return ConfigError(
        f"{where}.{key}: {value!r} refers to code, and a YAML file never runs any here: remove the key, and give"
        " cookers and encoders to build_loader in Python"
    )


def _mapping(data: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where} must be a mapping, got {data!r}")
    return data


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{where} must be a text, got {value!r}")
    return value


def _number(value: Any, where: str) -> int | float:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise ConfigError(f"{where} must be a number, got {value!r}")
    return value


def _range(value: Any, where: str) -> tuple[Any, Any]:
    _check_keys(_mapping(value, where), {"range"}, where)
    pair = value.get("range")
    if not isinstance(pair, list) or len(pair) != 2:
        raise ConfigError(f"{where}.range must be a list of two, such as [0%, 80%] or [100, end], got {pair!r}")
    return pair[0], pair[1]


def _plain(value: Any, where: str) -> Any:
    """Mappings, lists, texts and numbers, without keys that refer to code."""
    if isinstance(value, Mapping):
        _check_keys(value, {key for key in value if isinstance(key, str) and not key.startswith("__")}, where)
        return {key: _plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item, f"{where}[{place}]") for place, item in enumerate(value)]
    if value is not None and not isinstance(value, (str, int, float)):
        raise ConfigError(f"{where}: {value!r} is a {type(value).__name__}: write it as a text, in quotes")
    return value

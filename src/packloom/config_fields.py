"""A config dataclass and plain data go in; the dataclass, held to the types of its annotations, comes out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, get_args, get_type_hints

from packloom.errors import ConfigError

_T = TypeVar("_T")


def check_types(config: Any) -> None:
    """Hold each field to the plain types that its annotation admits; raises ConfigError."""
    for name, hint in get_type_hints(type(config)).items():
        value = getattr(config, name)
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            require(isinstance(value, hint), f"{name} must be a {hint.__name__}, got {value!r}")
        else:
            _convert(hint, value, name)


def require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)


def from_mapping(kind: type[_T], data: Mapping[str, Any], *, where: str) -> _T:
    """Build the config dataclass ``kind`` from plain data; nested stages are built in the same way."""
    hints = get_type_hints(kind)
    unknown = sorted(set(map(str, data)) - set(hints))
    require(not unknown, f"{where}: unknown key(s) {', '.join(unknown)}; known: {', '.join(hints)}")
    missing = [f.name for f in dataclasses.fields(kind) if _is_required(f) and f.name not in data]  # type: ignore[arg-type]
    require(not missing, f"{where}: missing {', '.join(missing)}")
    return kind(**{name: _convert(hints[name], value, f"{where}: {name}") for name, value in data.items()})


def _is_required(item: dataclasses.Field[Any]) -> bool:
    return item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING


def _convert(hint: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(hint):
        require(isinstance(value, Mapping), f"{where} must be a mapping, got {value!r}")
        return from_mapping(hint, value, where=where)  # type: ignore[arg-type]
    if isinstance(value, list):
        value = tuple(value)
    if getattr(hint, "__origin__", None) is Mapping:
        texts = isinstance(value, Mapping) and all(isinstance(text, str) for pair in value.items() for text in pair)
        require(texts, f"{where} must be a mapping of names to texts, got {value!r}")
        return dict(value)
    allowed = tuple(_plain_types(hint))
    matches = type(value) in allowed or (float in allowed and type(value) is int)
    require(matches, f"{where} must be {' or '.join(t.__name__ for t in allowed)}, got {value!r}")
    return value


def _plain_types(hint: Any) -> set[type]:
    """The plain types that a field's annotation admits: ``int | None`` → {int, NoneType}."""
    arguments = get_args(hint)
    if not arguments:
        return {hint}
    if getattr(hint, "__origin__", None) is Literal:
        return {type(choice) for choice in arguments}
    if getattr(hint, "__origin__", None) is tuple:
        return {tuple}
    return set().union(*map(_plain_types, arguments))

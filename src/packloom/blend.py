"""Nested datasets with weights or repetitions enter, as frozen dataclasses; the plain leaves that they mean leave."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal, get_args

from packloom.errors import ConfigError

BlendKind = Literal["weighted", "epochized", "concat"]
#: The one share that a child of each kind of blend may state.
_SHARE: dict[BlendKind, str | None] = {"weighted": "weight", "epochized": "repetitions", "concat": None}
#: A float such as 0.3333333333333333 stands for a fraction with a denominator up to this.
_MAX_DENOMINATOR = 1_000_000

#: Two absolute places (``(100, 200)``, ``(100, "end")``) or two percentages (``("0%", "80%")``).
Range = tuple[int | str, int | str]


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """One dataset of a blend. ``weight`` and ``repetitions`` are 1 where the blend's kind asks for them."""

    path: str | tuple[str, ...]  # as SourceConfig.path; or the YAML file of another blend
    name: str = ""  # in counters; "": the last piece of the path, with #2, #3 ... where it would come twice
    weight: float | None = None
    repetitions: float | None = None  # epochs of this dataset per epoch of the blend
    split_part: str | None = None
    index_dir: str | None = None
    subset: Range | None = None
    subflavors: Mapping[str, Any] = field(default_factory=dict)  # cookers find them under ``__subflavors__``
    aux: Mapping[str, str] = field(default_factory=dict)  # as SourceConfig.aux, for this leaf

    def __post_init__(self) -> None:
        if not self.path:
            raise ConfigError("a leaf of a blend needs a path: a folder of shards, a tar file or a brace pattern")
        # the dataclass is frozen for its users; paths are brought to one type while it is made
        object.__setattr__(self, "path", _plain_path(self.path))
        _check_share(self, f"leaf {self.path!r}")
        _check_subflavors(self, f"leaf {self.path!r}")
        if self.subset is not None:
            parse_range(self.subset, where=f"leaf {self.path!r}")


@dataclass(frozen=True, kw_only=True)
class Blend:
    """Several datasets as one.

    ``"weighted"`` has no end: of any number of draws each leaf has its share, to within one sample; nested weights
    multiply. ``"epochized"`` has epochs in which each leaf comes ``repetitions`` times. ``"concat"`` is one leaf behind
    the other, each once. A blend within a blend is of the same kind.
    """

    of: tuple[Leaf | Blend, ...]
    kind: BlendKind = "weighted"
    weight: float | None = None  # within the blend that this one is part of
    repetitions: float | None = None
    subset: Range | None = None  # of each leaf; percentages
    subflavors: Mapping[str, Any] = field(default_factory=dict)  # stand above those of the leaves

    def __post_init__(self) -> None:
        if self.kind not in get_args(BlendKind):
            raise ConfigError(f"a blend's kind must be one of {get_args(BlendKind)}, got {self.kind!r}")
        if not self.of:
            raise ConfigError("a blend needs at least one leaf")
        _check_share(self, f"a {self.kind} blend")
        _check_subflavors(self, f"a {self.kind} blend")
        for place, child in enumerate(self.of):
            self._check_child(place, child)
        if self.subset is not None and parse_range(self.subset, where=f"a {self.kind} blend").start is not None:
            raise ConfigError(
                f"subset {self.subset}: of a whole blend only percentages can be taken, as in ('0%', '80%')"
            )

    def _check_child(self, place: int, child: Leaf | Blend) -> None:
        if isinstance(child, Blend) and child.kind != self.kind:
            raise ConfigError(
                f"child {place} of a {self.kind} blend is a {child.kind} one: all levels must be of one kind. To join"
                " datasets into one leaf, give it a list of paths"
            )
        for name in ("weight", "repetitions"):
            if getattr(child, name) is not None and name != _SHARE[self.kind]:
                raise ConfigError(f"child {place} of a {self.kind} blend states {name}, which would mean nothing there")


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """A part of a dataset: first absolute places (if any), then exact fractions of what is left."""

    start: int | None = None
    stop: int | None = None  # None: the end
    low: Fraction = Fraction(0)
    high: Fraction = Fraction(1)

    def of(self, total: int) -> tuple[int, int]:
        """(first place, place behind the last) of ``total`` samples. Raises ConfigError for places beyond them."""
        first, last = self.start or 0, total if self.stop is None else self.stop
        if last > total or first > last:
            raise ConfigError(f"subset {first}..{last} is not in a dataset of {total} samples")
        length = last - first
        return first + math.floor(length * self.low), first + math.floor(length * self.high)

    def within(self, outer: Cut) -> Cut:
        """The outer cut applied to what this one leaves."""
        length = self.high - self.low
        return Cut(
            start=self.start,
            stop=self.stop,
            low=self.low + outer.low * length,
            high=self.low + outer.high * length,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class FlatLeaf:
    """A leaf with all that the levels above it say."""

    leaf: Leaf
    name: str  # of its own
    share: Fraction  # of all draws (weighted), or repetitions; 1 in a concat
    cut: Cut
    subflavors: Mapping[str, Any]


def flatten(blend: Blend) -> list[FlatLeaf]:
    """The leaves in order. Shares of a weighted blend add up to one; repetitions multiply through the levels."""
    found = _flatten(blend, Fraction(1), Cut(), {})
    names = Counter[str]()
    flat = []
    for leaf, share, cut, subflavors in found:
        name = leaf.name or _short_name(leaf.path)
        names[name] += 1
        unique = name if names[name] == 1 else f"{name}#{names[name]}"
        flat.append(FlatLeaf(leaf=leaf, name=unique, share=share, cut=cut, subflavors=subflavors))
    doubled = [name for name, count in Counter(item.name for item in flat).items() if count > 1]
    if doubled:
        raise ConfigError(f"two leaves of the blend would both be called {doubled[0]!r}: name one of them otherwise")
    return flat


def parse_range(value: Range, *, where: str) -> Cut:
    """The cut that a range means; raises ConfigError for what is none."""
    wanted = f"{where}: subset must be two places (100, 200), (100, 'end') or two percentages ('0%', '80%')"
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise ConfigError(f"{wanted}, got {value!r}")
    start, stop = value
    if type(start) is int and (type(stop) is int or stop == "end"):
        end = stop if type(stop) is int else None
        if start < 0 or (end is not None and end <= start):
            raise ConfigError(f"{wanted}, got {value!r}, which is empty")
        return Cut(start=start, stop=end)
    low, high = _percentage(start), Fraction(1) if stop == "end" else _percentage(stop)
    if low is None or high is None or not 0 <= low < high <= 1:
        raise ConfigError(f"{wanted}, got {value!r}")
    return Cut(low=low, high=high)


def _percentage(value: object) -> Fraction | None:
    try:
        return Fraction(value[:-1].strip()) / 100 if isinstance(value, str) and value.endswith("%") else None
    except (ValueError, ZeroDivisionError):
        return None


def _check_share(node: Leaf | Blend, where: str) -> None:
    for name in ("weight", "repetitions"):
        value = getattr(node, name)
        if value is None:
            continue
        if type(value) not in (int, float) or not math.isfinite(value) or value <= 0:
            raise ConfigError(f"{where}: {name} must be a number above zero, got {value!r}; leave out what has none")


def _plain_path(path: object) -> str | tuple[str, ...]:
    """The path, or the tuple of them, as text."""
    if isinstance(path, (str, os.PathLike)):
        return str(path)
    if isinstance(path, (list, tuple)) and all(isinstance(item, (str, os.PathLike)) for item in path):
        return tuple(map(str, path))
    raise ConfigError(f"a leaf's path must be a path or a tuple of paths, got {path!r}")


def _check_subflavors(node: Leaf | Blend, where: str) -> None:
    """They are part of the fingerprint, which must be the same in every process: so only plain data."""
    if not isinstance(node.subflavors, Mapping):
        raise ConfigError(f"{where}: subflavors must be a mapping, got {node.subflavors!r}")
    try:
        json.dumps(dict(node.subflavors), sort_keys=True)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: subflavors must hold texts, numbers, lists and mappings only: {error}") from error


def _flatten(
    node: Blend, share: Fraction, outer: Cut, above: Mapping[str, Any]
) -> list[tuple[Leaf, Fraction, Cut, Mapping[str, Any]]]:
    stated = [_share_of(child, node.kind) for child in node.of]
    total = sum(stated) if node.kind == "weighted" else Fraction(1)
    subflavors = {**node.subflavors, **above}
    if node.subset is not None:
        outer = parse_range(node.subset, where="a blend").within(outer)
    found = []
    for child, own in zip(node.of, stated, strict=True):
        part = share * own / total
        if isinstance(child, Blend):
            found += _flatten(child, part, outer, subflavors)
            continue
        cut = Cut() if child.subset is None else parse_range(child.subset, where=f"leaf {child.path!r}")
        found.append((child, part, cut.within(outer), {**child.subflavors, **subflavors}))
    return found


def _share_of(child: Leaf | Blend, kind: BlendKind) -> Fraction:
    value = {"weighted": child.weight, "epochized": child.repetitions, "concat": None}[kind]
    if value is None:
        return Fraction(1)
    exact = Fraction(repr(value))
    simple = exact.limit_denominator(_MAX_DENOMINATOR)
    return simple if abs(simple - exact) <= exact * Fraction(1, 10**12) else exact


def _short_name(path: str | tuple[str, ...]) -> str:
    first = path if isinstance(path, str) else path[0]
    return first.rstrip("/").rpartition("/")[2] or first

"""Blends in YAML: what the grammar means, and that whatever it does not know, or would run code, is refused."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from packloom.blend import Blend, Leaf, flatten
from packloom.config import DataConfig
from packloom.datasets.blend_yaml import expand_blend, load_blend
from packloom.errors import ConfigError

Write = Callable[..., str]


@pytest.fixture
def blend_file(tmp_path: Path) -> Write:
    """``blend_file(text)`` writes a blend and returns its path."""

    def write(text: str, name: str = "blend.yaml") -> str:
        (tmp_path / name).write_text(text, encoding="utf-8")
        return str(tmp_path / name)

    return write


ENERGON = """
__module__: megatron.energon
__class__: MetadatasetV2
splits:
  train:
    blend:
    - weight: 0.5
      path: ./charts
      split_part: extra
      subset: {range: [0%, 80%]}
      subflavors: {kind: chart, lang: en}
    - weight: 1.5
      subset: {range: [50%, 100%]}
      subflavors: {lang: de}
      blend:
      - {weight: 2, path: '../ocr/{000..003}.tar'}
      - {weight: 1, path: /data/charts, subset: {range: [100, end]}, subflavors: {lang: fr}, aux: {media: m}}
  val:
    path: ./charts
"""


def test_a_file_for_energon(blend_file: Write, tmp_path: Path) -> None:
    charts, ocr, more = flatten(load_blend(blend_file(ENERGON)))
    assert (charts.leaf.path, charts.leaf.split_part) == (f"{tmp_path}/charts", "extra")
    assert [item.share for item in (charts, ocr, more)] == [Fraction(1, 4), Fraction(1, 2), Fraction(1, 4)]
    assert [item.name for item in (charts, ocr, more)] == ["charts", "{000..003}.tar", "charts#2"]
    assert ocr.leaf.path == f"{tmp_path}/../ocr/{{000..003}}.tar"
    assert (more.leaf.path, more.leaf.aux) == ("/data/charts", {"media": f"{tmp_path}/m"})
    assert [dict(item.subflavors) for item in (charts, ocr, more)] == [
        {"kind": "chart", "lang": "en"},
        {"lang": "de"},
        {"lang": "de"},  # what stands outside is above what stands inside
    ]
    assert [item.cut.of(1000) for item in (charts, ocr, more)] == [(0, 800), (500, 1000), (550, 1000)]


def test_splits(blend_file: Write, tmp_path: Path) -> None:
    path = blend_file(ENERGON)
    with pytest.raises(ConfigError, match=r"splits has train, val, but no 'test': name one as split_part"):
        load_blend(path, split_part="test")
    [leaf] = flatten(load_blend(path, split_part="val"))
    assert (leaf.leaf.path, leaf.leaf.split_part) == (f"{tmp_path}/charts", None)  # no folder of Energon's
    (tmp_path / "charts" / ".nv-meta").mkdir(parents=True)
    (tmp_path / "charts" / ".nv-meta" / ".info.json").write_text('{"shard_counts": {"0.tar": 1}}')
    [leaf] = flatten(load_blend(path, split_part="val"))
    assert leaf.leaf.split_part == "val"


def test_repetitions_multiply(blend_file: Write) -> None:
    text = """
    blend_epochized:
    - {path: a, repetitions: 2.5}
    - repetitions: 2
      blend_epochized: [{path: b}, {path: c, repetitions: 0.1}]
    """
    blend = load_blend(blend_file(text))
    assert blend.kind == "epochized"
    assert [item.share for item in flatten(blend)] == [Fraction(5, 2), 2, Fraction(1, 5)]


def test_files_within_files(blend_file: Write, tmp_path: Path) -> None:
    blend_file("splits: {train: {path: x}, hard: {blend: [{path: a, weight: 3}, {path: b}]}}", "inner.yaml")
    outer = (
        "blend: [{path: inner.yaml, weight: 4, split_part: hard, subflavors: {k: 1}}, {path: inner.yaml, weight: 1}]"
    )
    found = flatten(load_blend(blend_file(outer)))
    assert [(item.name, item.share) for item in found] == [
        ("a", Fraction(3, 5)),
        ("b", Fraction(1, 5)),
        ("x", Fraction(1, 5)),
    ]
    assert [dict(item.subflavors) for item in found] == [{"k": 1}, {"k": 1}, {}]
    in_python = Blend(
        of=(Leaf(path=str(tmp_path / "inner.yaml"), split_part="hard", weight=4), Leaf(path="y", weight=4))
    )
    assert [item.share for item in flatten(expand_blend(in_python))] == [Fraction(3, 8), Fraction(1, 8), Fraction(1, 2)]
    with pytest.raises(ConfigError, match="includes itself"):
        load_blend(blend_file("path: loop.yaml", "loop.yaml"))
    with pytest.raises(ConfigError, match="too deeply"):
        load_blend(blend_file(f"path: ../{tmp_path.name}/loop.yaml", "loop.yaml"))
    with pytest.raises(ConfigError, match="name, index_dir and aux are those of a dataset"):
        load_blend(blend_file("blend: [{path: inner.yaml, name: x}]"))


def test_thirds_stay_thirds() -> None:
    shares = [item.share for item in flatten(Blend(of=(Leaf(path="a", weight=1 / 3), Leaf(path="b", weight=2 / 3))))]
    assert shares == [Fraction(1, 3), Fraction(2, 3)]


CODE = [
    ("{__module__: os, path: a}", r"blend.yaml.__module__: 'os' refers to code"),
    ("{__module__: megatron.energon, __class__: Metadataset, path: a}", r"__class__: 'Metadataset' refers to code"),
    ("{path: a, __function__: os.system}", r"blend.yaml.__function__: 'os.system' refers to code"),
    ("blend: [{path: a}, {path: b, __class__: x.Y}]", r"blend.yaml.blend\[1\].__class__: 'x.Y' refers to code"),
    ("{path: a, subflavors: {f: {__function__: os.system}}}", r"subflavors.f.__function__: .* refers to code"),
    ("{path: a, subflavors: {f: [{__function__: os.system}]}}", r"subflavors.f\[0\].__function__: .* refers to code"),
    ("{path: a, task_encoder: x.Y}", r"blend.yaml.task_encoder: .* refers to code"),
    ("{path: a, cooker: x.cook}", r"cooker: .* refers to code"),
    ("{path: a, dataset_config: d.yaml}", r"dataset_config: .* refers to code"),
    ("{path: 'pipe:touch HERE'}", r"blend.yaml.path: 'pipe:touch HERE' is a stream, a command"),
    ("{path: [a, 'pipe:touch HERE']}", "is a stream, a command"),
    ("!!python/object/apply:os.system ['touch HERE']", "is not plain YAML"),
]


@pytest.mark.parametrize(("text", "message"), CODE)
def test_code_is_refused_and_never_runs(blend_file: Write, tmp_path: Path, text: str, message: str) -> None:
    path = blend_file(text.replace("HERE", str(tmp_path / "ran")))
    with pytest.raises(ConfigError, match=message.replace("HERE", str(tmp_path / "ran"))):
        load_blend(path)
    assert not (tmp_path / "ran").exists()


FAULTS = [
    ("{path: a, subflavors: [x]}", r"blend.yaml.subflavors must be a mapping, got \['x'\]"),
    ("{path: a, subflavors: x}", "blend.yaml.subflavors must be a mapping, got 'x'"),
    ("{path: a, subflavors: {x: !!set {y}}}", "subflavors.x: .* is a set: write it as a text, in quotes"),
    ("{path: a, subflavors: {x: 2020-01-01}}", "subflavors.x: .* is a date: write it as a text, in quotes"),
    ("{path: a, aux: {1: b}}", "blend.yaml.aux: an alias must be a text, got 1"),
    ("{<<: {path: a}}", "merge keys .* are not read"),
    ("[]", "must be a mapping"),
    ("{blend: [], subset: 3}", r"subset must be a mapping"),
    ("{blend: []}", r"blend.yaml.blend: a blend needs at least one leaf"),
    ("{blend: {path: a}}", r"blend must be a list"),
    ("{blend: [{path: a}], path: b}", "blend and path exclude each other"),
    ("{join: [{path: a}]}", r"blend.yaml.join: unknown here; known: aux, index_dir"),
    ("{blend: [{path: a, repetitions: 2}]}", r"blend\[0\].repetitions: unknown here"),
    ("{concat: [{path: a, weight: 2}]}", r"concat\[0\].weight: unknown here"),
    ("{blend: [{path: a, weight: 0}]}", r"blend\[0\]: leaf .*weight must be a number above zero, got 0"),
    ("{blend: [{path: a, weight: .nan}]}", r"weight must be a number above zero"),
    ("{blend: [{path: a, weight: 3, weight: 4}]}", "the key 'weight' comes twice"),
    ("{blend: [&a {path: a}, *a]}", "aliases are not read"),
    ("{blend: [{blend_epochized: [{path: a}]}]}", "all levels must be of one kind"),
    ("{blend: [{path: a}], subset: {range: [0, 10]}}", "of a whole blend only percentages"),
    ("{path: a, subset: {range: [80%, 10%]}}", "subset must be two places"),
    ("{path: a, subset: {range: [0%, 120%]}}", "subset must be two places"),
    ("{path: a, subset: {range: [10, 10]}}", "which is empty"),
    ("{path: a, subset: {range: [10]}}", "must be a list of two"),
    ("{path: 3}", "blend.yaml.path must be a text, got 3"),
    ("{subflavors: {}}", "needs a path, or one of blend, blend_epochized, concat"),
    ("{path: missing.yaml}", "missing.yaml cannot be read: No such file"),
    ("{blend: [{path: a, name: x}, {path: b, name: x#2}, {path: c, name: x}]}", "would both be called 'x#2'"),
]


@pytest.mark.parametrize(("text", "message"), FAULTS)
def test_what_the_grammar_does_not_know(blend_file: Write, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        flatten(load_blend(blend_file(text)))


def test_very_deep_and_very_many(blend_file: Write) -> None:
    with pytest.raises(ConfigError, match="more than 2000 leaves or 32 levels"):
        load_blend(blend_file("{concat: [" * 40 + "{path: a}" + "]}" * 40))
    for number in range(4):  # each file names the next ten times
        blend_file(f"concat: [{', '.join(['{path: ' + str(number + 1) + '.yaml}'] * 10)}]", f"{number}.yaml")
    blend_file("path: a", "4.yaml")
    with pytest.raises(ConfigError, match="more than 2000 leaves"):
        load_blend(blend_file("path: 0.yaml"))


def test_paths_and_subflavors_in_python() -> None:
    assert Leaf(path=Path("a") / "b").path == "a/b"
    assert Leaf(path=[Path("a"), "b"]).path == ("a", "b")
    for make in (Leaf, partial(Blend, of=(Leaf(path="a"),))):
        settings = {"path": "a"} if make is Leaf else {}
        for subflavors in ({"x": {1, 2}}, {"x": object()}, {"x": b""}, "x"):
            with pytest.raises(ConfigError, match="subflavors must "):
                make(**settings, subflavors=subflavors)
    with pytest.raises(ConfigError, match="a leaf's path must be a path or a tuple of paths, got 3"):
        Leaf(path=3)


def test_blends_in_python_are_checked() -> None:
    bad: list[tuple[Callable[[], Any], str]] = [
        (lambda: Leaf(path=""), "needs a path"),
        (lambda: Blend(of=(Leaf(path="a", repetitions=2),)), "states repetitions, which would mean nothing"),
        (lambda: Blend(kind="concat", of=(Leaf(path="a", weight=1),)), "states weight, which would mean nothing"),
        (lambda: Blend(kind="other", of=(Leaf(path="a"),)), "kind must be one of"),
        (lambda: DataConfig.from_yaml("/nowhere.yaml"), "cannot read"),
    ]
    for make, message in bad:
        with pytest.raises(ConfigError, match=message):
            make()

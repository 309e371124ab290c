"""Media of another dataset: measured from its index, fetched once per batch, and part of a state's identity."""

from __future__ import annotations

import gc
import io
import os
import pickle
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from packloom.blend import Blend, Leaf
from packloom.config import DataConfig
from packloom.datasets import dataset as dataset_module
from packloom.datasets import write_shards
from packloom.datasets.access import IndexedShard
from packloom.datasets.aux_media import AuxLibrary
from packloom.errors import ConfigError, CookError, MediaError, ShardError, StateError
from packloom.loader import Loader, build_loader, merge_states
from packloom.task_encoders import TaskEncoder
from packloom.task_encoders.cookers import cook
from packloom.task_encoders.images import decode_rgb
from packloom.types import AuxPlace, Media


@pytest.fixture(scope="module")
def encoder(processor_dir: Callable[[str], Path]) -> TaskEncoder:
    return TaskEncoder.from_pretrained(processor_dir("qwen2_5_vl"), max_length=192)


def picture(number: int) -> bytes:
    data = io.BytesIO()
    Image.new("RGB", (56 + 28 * (number % 3), 84), (40 * number % 256, 90, 160)).save(data, "PNG")
    return data.getvalue()


def row(key: str, *names: str, answer: str = "Blue.", **parts: bytes) -> dict[str, Any]:
    question = [*({"type": "image", "image": name} for name in names), {"type": "text", "text": "What is it?"}]
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {"__key__": key, "json": {"messages": messages}, **parts}


@pytest.fixture
def media(tmp_path: Path) -> str:
    """Keys a/0 to a/7, two images each, in shards of three samples."""
    samples = [{"__key__": f"a/{n}", "0.png": picture(n), "1.PNG": picture(n + 1)} for n in range(8)]
    write_shards(samples, tmp_path / "media", samples_per_shard=3)
    return str(tmp_path / "media")


@pytest.fixture
def shards(tmp_path: Path) -> Callable[..., str]:
    def written(rows: list[dict[str, Any]], name: str = "rows") -> str:
        write_shards(rows, tmp_path / name)
        return str(tmp_path / name)

    return written


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Per call of the dataset that reads: what is read, as ``part@offset``."""
    calls: list[list[str]] = []
    read_ranges = dataset_module.Files.read_ranges

    def recorded(self: Any, ranges: Any) -> Any:
        calls.append([f"{Path(path).parent.name}/{Path(path).name}:{start}" for path, start, _ in ranges])
        return read_ranges(self, ranges)

    monkeypatch.setattr(dataset_module.Files, "read_ranges", recorded)
    return calls


def same(ours: Any, theirs: Any) -> bool:
    return ours.keys() == theirs.keys() and all(
        torch.equal(ours[name], value) if isinstance(value, torch.Tensor) else ours[name] == value
        for name, value in theirs.items()
    )


def rows_of(names: list[tuple[str, ...]]) -> list[dict[str, Any]]:
    return [row(f"{place:03d}", *group, answer="Blue " * (1 + place % 9)) for place, group in enumerate(names)]


NAMES = [(f"media/a/{place % 8}.0.png",) * (1 + (place == 3)) + ("media/a/5.1.png",) for place in range(18)]


@pytest.mark.parametrize("settings", [{}, {"layout": "padded", "micro_batch_size": 4}], ids=["packed", "padded"])
def test_batches_are_those_of_media_within_the_samples(
    encoder: TaskEncoder, media: str, shards: Callable[..., str], settings: Any
) -> None:
    inside = []
    for place, names in enumerate(NAMES):
        parts = {f"{n}.png": picture(int(name[8]) + int(name[10])) for n, name in enumerate(names)}
        inside.append(row(f"{place:03d}", *parts, answer="Blue " * (1 + place % 9), **parts))
    settings = {"epochs": 1, "shuffle": False, **settings}  # the order depends on the dataset's fingerprint
    expected = list(build_loader(shards(inside, "inside"), encoder, **settings))
    path = shards(rows_of(NAMES))
    assert len(expected) > 3
    for num_workers in (0, 2):
        got = list(build_loader(path, encoder, aux={"media": media}, num_workers=num_workers, **settings))
        assert len(got) == len(expected)
        assert all(map(same, got, expected))


def test_bytes_are_read_once_per_batch_and_never_to_encode(
    encoder: TaskEncoder, media: str, shards: Callable[..., str], reads: list[list[str]]
) -> None:
    path = shards(rows_of([("media/a/6.0.png", "media/a/1.0.png"), ("media/a/1.0.png",), ("media/a/6.1.png",)]))
    settings = {"aux": {"media": media}, "epochs": 1, "shuffle": False}
    [batch] = list(build_loader(path, encoder, layout="padded", micro_batch_size=3, **settings))
    assert len(batch["image_grid_thw"]) == 4
    of_media = [[place.split(":")[0] for place in call] for call in reads if call and call[0].startswith("media/")]
    assert of_media == [["media/shard-000000.tar", "media/shard-000002.tar", "media/shard-000002.tar"]]


def test_what_is_missing_is_skipped_with_its_reason(
    encoder: TaskEncoder, media: str, shards: Callable[..., str], tmp_path: Path
) -> None:
    names = [
        "media/a/9.0.png", "media/a/1.2.png", "media/../a/1.0.png", "media/a/1", "other/a/1.0.png", "media/a/1.0.png",
        "media//a/1.0.png", f"media/{tmp_path}/media/shard-000000.tar", "media/.0.png",
    ]  # fmt: skip
    path = shards(rows_of([(name,) for name in names]))
    loader = build_loader(path, encoder, aux={"media": media}, shuffle=False, epochs=1)
    assert [key for batch in loader for key in batch["sample_keys"]] == ["005"]
    found = {record.key: (record.stage, record.code) for record in loader.skip_records}
    missing, unnamed = ("encode", "media.missing"), ("encode", "media.aux_name")
    assert found == {
        "000": missing, "001": missing, "002": missing, "003": unnamed, "004": ("encode", "cook.image_count"),
        "006": missing, "007": missing, "008": unnamed,
    }  # fmt: skip
    reasons = {record.key: record.reason for record in loader.skip_records}
    assert reasons["000"].startswith("media/a/9.0.png: key 'a/9' of the aux dataset 'media': no sample")
    assert (
        reasons["001"]
        == "media/a/1.2.png: sample 'a/1' of the aux dataset 'media' has no part '2.png', only 0.png, 1.png"
    )


def test_an_alias_wins_over_a_part_of_the_sample(encoder: TaskEncoder, media: str, shards: Callable[..., str]) -> None:
    """Without the alias, the last piece of a path names a part."""
    path = shards([row("000", "media/a/0.png", **{"0.png": picture(4)})])
    [batch] = build_loader(path, encoder, epochs=1)
    assert batch["sample_keys"] == ["000"]
    loader = build_loader(path, encoder, aux={"media": media}, epochs=1, on_error="raise")
    with pytest.raises(Exception, match=r"sample '000': media/a/0\.png: sample 'a/0' of .* has no part 'png'"):
        list(loader)


def test_damaged_media_are_charged_to_each_sample_that_needs_them(
    encoder: TaskEncoder, media: str, shards: Callable[..., str]
) -> None:
    names = [("media/a/6.0.png",), ("media/a/6.0.png", "media/a/7.0.png"), ("media/a/6.1.png",)]
    shard = Path(media) / "shard-000002.tar"
    before, data = shard.stat(), bytearray(shard.read_bytes())
    data[data.index(picture(6)) + 30] ^= 1
    shard.write_bytes(data)
    os.utime(shard, ns=(before.st_atime_ns, before.st_mtime_ns))  # or opening would notice
    loader = build_loader(shards(rows_of(names)), encoder, aux={"media": media}, epochs=2, shuffle=False)
    assert [batch["sample_keys"] for batch in loader] == [["002"], ["002"]]
    assert [(record.key, record.stage, record.code, record.epoch) for record in loader.skip_records] == [
        (key, "media", "read.checksum", epoch) for epoch in (0, 1) for key in ("000", "001")
    ]
    assert loader.skip_records[0].reason.startswith("media/a/6.0.png: the bytes of part '0.png' in shard")


def build_two(path: str, encoder: Any, **settings: Any) -> list[Loader]:
    return [build_loader(path, encoder, dp_rank=rank, dp_size=2, **settings) for rank in range(2)]


def test_resume(encoder: TaskEncoder, media: str, shards: Callable[..., str], tmp_path: Path) -> None:
    path = shards(rows_of(NAMES))
    settings = {"aux": {"media": media}, "epochs": 2, "open_packs": 4, "buffer_size": 8}
    whole = list(build_loader(path, encoder, **settings))
    ranks = build_two(path, encoder, num_workers=1, **settings)
    got = [batch for step in zip(*(islice(loader, 2) for loader in ranks), strict=True) for batch in step]
    state = merge_states([loader.state_dict() for loader in ranks])
    assert state["settings"]["aux.media"] == dataset_module.open_dataset(media).fingerprint
    single = build_loader(path, encoder, **settings)
    single.load_state_dict(state)
    assert all(map(same, [*got, *single], whole))

    write_shards([{"__key__": "a/0", "0.png": picture(0)}], tmp_path / "other")
    other = build_loader(path, encoder, **{**settings, "aux": {"media": str(tmp_path / "other")}})
    theirs, own = state["settings"]["aux.media"], other.state_dict()["settings"]["aux.media"]
    with pytest.raises(
        StateError, match=rf"aux\.media is '{own}', .* with '{theirs}'.*allow_mismatch=\['aux\.media'\]"
    ):
        other.load_state_dict(state)
    other.load_state_dict(state, allow_mismatch=["aux.media"])
    with pytest.raises(StateError, match=r"aux\.media is None, the state was saved with"):
        build_loader(path, encoder, **{**settings, "aux": {}}).load_state_dict(state)


@pytest.mark.parametrize("has_sizes", [True, False])
def test_samples_that_wait_hold_no_bytes(
    encoder: TaskEncoder, media: str, shards: Callable[..., str], monkeypatch: pytest.MonkeyPatch, has_sizes: bool
) -> None:
    """Neither where the index tells the size, nor where the bytes were read to find it out."""
    settings = {"aux": {"media": media}, "open_packs": 4, "buffer_size": 8, "epochs": 1}
    path = shards(rows_of(NAMES))
    expected = list(build_loader(path, encoder, **settings))
    if not has_sizes:
        monkeypatch.setattr(IndexedShard, "image_size", lambda *_: None)
    before = {id(thing) for thing in gc.get_objects()}
    stream = iter(build_loader(path, encoder, **settings))
    first = next(stream)
    found = [thing for thing in gc.get_objects() if type(thing) is Media and thing.aux is not None]
    waiting = [thing for thing in found if id(thing) not in before]
    assert len(waiting) > 8
    assert not any(thing.data for thing in waiting)
    assert all(map(same, [first, *stream], expected))


def test_settings(encoder: TaskEncoder, media: str, shards: Callable[..., str], tmp_path: Path) -> None:
    path = shards(rows_of(NAMES))
    (tmp_path / "c.yaml").write_text(f"source:\n  path: {path}\n  epochs: 1\n  aux: {{media: {media}}}\n")
    loader = build_loader(DataConfig.from_yaml(tmp_path / "c.yaml"), encoder)
    assert len([key for batch in loader for key in batch["sample_keys"]]) == 18
    with pytest.raises(ConfigError, match="aux must be a mapping of names to texts"):
        build_loader(path, encoder, aux=["media"])
    for alias in ("", "a/b", "..", "data:", "a b"):
        with pytest.raises(ConfigError, match="is no alias"):
            build_loader(path, encoder, aux={alias: media})
    (tmp_path / "bare").mkdir()
    (Path(media) / "shard-000000.tar").rename(tmp_path / "bare" / "x.tar")
    with pytest.raises(ShardError, match=r"aux 'media': .*bare has no index in .*: run `packloom index"):
        build_loader(path, encoder, aux={"media": str(tmp_path / "bare")})


def test_an_unindexed_stream_may_name_media_too(encoder: TaskEncoder, media: str, shards: Callable[..., str]) -> None:
    path = shards(rows_of(NAMES))
    for file in Path(path, ".packloom").rglob("*"):
        if file.is_file():
            file.unlink()
    loader = build_loader(path, encoder, aux={"media": media}, epochs=1, num_workers=1)
    assert len([key for batch in loader for key in batch["sample_keys"]]) == 18


def test_each_leaf_of_a_blend_has_aux_datasets_of_its_own(
    encoder: TaskEncoder, media: str, shards: Callable[..., str], tmp_path: Path
) -> None:
    """One alias may mean one dataset here and another there."""
    write_shards([{"__key__": "a/1", "0.png": picture(7)}], tmp_path / "other")
    one, two = shards([row("one", "media/a/1.0.png")], "one"), shards([row("two", "media/a/1.0.png")], "two")
    leaves = tuple(Leaf(path=path, aux={"media": aux}) for path, aux in ((one, media), (two, str(tmp_path / "other"))))
    loader = build_loader(Blend(of=leaves, kind="concat"), encoder, epochs=1, shuffle=False)
    [batch] = loader
    facts = loader.state_dict()["settings"]
    assert facts["aux.media"] == dataset_module.open_dataset(media).fingerprint
    assert facts["aux.media.2"] == dataset_module.open_dataset(tmp_path / "other").fingerprint
    expected = [
        batch["image_grid_thw"]
        for aux, path in ((media, one), (str(tmp_path / "other"), two))
        for batch in build_loader(path, encoder, aux={"media": aux}, epochs=1)
    ]
    assert torch.equal(batch["image_grid_thw"], torch.cat(expected))


def test_names_in_rows_of_any_schema(media: str) -> None:
    shelf = pickle.loads(pickle.dumps(AuxLibrary().shelf({"media": media})))  # as for a spawned worker
    answer = {"from": "gpt", "value": "Blue."}
    llava = {"image": "media/a/2.0.png", "conversations": [{"from": "human", "value": "<image>What?"}, answer]}
    listed = {"images": ["media/a/2.0.png", "1.png"], "messages": [
        {"role": "user", "content": "<image><image>What?"}, {"role": "assistant", "content": "Blue."}
    ]}  # fmt: skip
    vqa = {"image": "media/a/2.0.PNG", "question": "What?", "answer": "Blue."}
    for row_of, own in ((llava, {}), (listed, {"1.png": b"own"}), (vqa, {})):
        chat = cook({"__key__": "k", "__aux__": shelf, "json": row_of, **own})
        assert [medium.data for medium in chat.media] == [b"", *own.values()]
        place = chat.media[0].aux
        assert (place, chat.media[0].size) == (AuxPlace(dataset=0, position=2, part="0.png"), (112, 84))
        assert shelf.library.fetch([place, place]) == {place: picture(2)}
    with pytest.raises(CookError, match=r"no place refers to 1\.png"):
        cook({"__key__": "k", "__aux__": shelf, "json": llava, "1.png": b"own"})
    with pytest.raises(CookError, match="stands where a image is needed, but is video"):
        cook({"__key__": "k", "__aux__": shelf, "json": {**llava, "image": "media/a/2.mp4"}})
    with pytest.raises(MediaError, match=r"the bytes of media/a/2\.0\.PNG were not fetched"):
        decode_rgb(chat.media[0])

"""A Lance dataset that is trained on in place gives the batches of its converted shards, and resumes at every step."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from packloom.datasets.convert import ConvertConfig
from packloom.errors import ConfigError
from packloom.loader import build_loader
from packloom.loader.lance_address import is_lance, parse_address

_SCRIPT = """
import json, pickle, sys
from pathlib import Path
sys.path[:0] = [{tests!r}, {folder!r}]

if __name__ == "__main__":  # a spawned process imports what it needs itself
    import lance
    import lance_maker
    import pyarrow as pa
    import packloom.loader.heads
    import packloom.loader.sample_store
    from fake_chat import ChatEncoder
    from packloom.datasets.convert import ConvertConfig, RunSettings, convert
    from packloom.config import DataConfig, LoaderConfig, SourceConfig
    from packloom.datasets.aux_media import AuxLibrary
    from packloom.datasets.convert.runners import InProcess
    from packloom.loader import build_loader
    from packloom.loader.feeds import make_finite_feed
    from packloom.loader.lengths import measure_lengths


def batches(source, state=None, **settings):
    loader = build_loader(
        source, ChatEncoder(), pack_length=40, epochs=1, num_lanes=4, min_lane_samples=1,
        **{{"shuffle": False, **settings}}
    )
    loader = pickle.loads(pickle.dumps(loader))  # as it goes to a spawned worker
    if state is not None:
        loader.load_state_dict(state)
    for batch in loader:
        pixels = batch["pixel_values"].flatten().tolist() if "pixel_values" in batch else []
        view = [batch["sample_keys"], batch["input_ids"].tolist(), batch["cu_seqlens_q"].tolist(), pixels]
        yield view, loader.state_dict()


def views(source, **settings):
    return [view for view, _ in batches(source, **settings)]


def lengths(address):
    config = DataConfig(source=SourceConfig(path=address), loader=LoaderConfig(layout="padded"))
    library = AuxLibrary()
    found = measure_lengths(make_finite_feed(config, library), ChatEncoder(), config, library)
    return [found.tokens.tolist(), found.patches.tolist(), found.refused]


def only_small(read):
    def reading(*args, **options):
        found = list(read(*args, **options))
        if any(len(data or b"") > 16 << 10 for _, data in found):
            raise OSError("an image was read as a whole")
        return found
    return reading


def both(address, **config):
    shards = f"shards-{{len(list(Path().iterdir()))}}"
    convert(address.partition("?")[0], shards, ConvertConfig(**config), settings=RunSettings(runner=InProcess()))
    return views(address), views(shards)


if __name__ == "__main__":
    lance_maker.main("rows.json", ".")
    from_lance = list(batches("blob_v2.lance"))
    result = {{"whole": both("blob_v2.lance")}}
    result["resumed"] = [views("blob_v2.lance", state=state) for _, state in from_lance]
    table = dict(media_table="media.lance", media_key="name", media_value="data")
    joined = "keys.lance?filter=id != '7'&media_table=media.lance&media_key=name&media_value=data"
    result["joined"] = both(joined, filter="id != '7'", **table)
    result["paths"] = both("path.lance?media_root=" + {folder!r}, media_root={folder!r})
    result["workers"] = [views(joined, num_workers=n, shuffle=True) for n in (0, 1)]
    result["fingerprints"] = [
        build_loader(source, ChatEncoder(), pack_length=40).state_dict()["dataset"]
        for source in (joined, "keys.lance?drop=images")
    ]
    pair = lance.write_dataset(pa.table({{"question": ["q"] * 4, "answer": ["a"] * 4}}), "pair.lance")
    result["renamed"] = [build_loader("pair.lance", ChatEncoder(), pack_length=40).state_dict()["dataset"]]
    for old, new in (("question", "x"), ("answer", "question"), ("x", "answer")):
        pair.alter_columns({{"path": old, "name": new}})
    result["renamed"].append(build_loader("pair.lance", ChatEncoder(), pack_length=40).state_dict()["dataset"])
    ChatEncoder.longest = 0
    packloom.loader.sample_store.reads_headers_only = lambda encoder: True
    result["late"] = views("blob_v2.lance")
    result["late_v1"] = views("blob_v1.lance")
    result["longest_at_encoding"] = ChatEncoder.longest
    packloom.loader.heads.reads_headers_only = lambda encoder: False
    whole = lengths("blob_v2.lance")
    packloom.loader.heads.reads_headers_only = lambda encoder: True
    lance.LanceDataset.read_blobs = only_small(lance.LanceDataset.read_blobs)
    result["lengths"] = [whole, lengths("blob_v2.lance"), lengths("blob_v1.lance")]
    print(json.dumps(result))
"""
_ENCODER = '''
import json
import torch
from fake_encoder import FakeEncoder
from packloom.image_size import image_size
from packloom.types import EncodedMedia, EncodedSample, Media


class ChatEncoder(FakeEncoder):
    """A token per letter and one for the width of each image; the last bytes of an image are its pixels."""

    longest = 0  # of the bytes of an image at encoding

    def __init__(self):
        super().__init__(max_length=40)

    def encode_sample(self, raw):
        row = json.loads(raw["json"])
        parts = [raw[name] for name in row.get("images", [])]
        ChatEncoder.longest = max([ChatEncoder.longest, *map(len, parts)])
        letters = [ord(letter) for turn in row["conversations"] for letter in turn["value"]]
        ids = torch.tensor([*letters, *(image_size(part)[0] for part in parts)])
        media = tuple(
            EncodedMedia(
                media=Media(kind="image", name=name, data=raw[name]), height=1, width=1, num_tokens=1, num_patches=1
            )
            for name in row.get("images", [])
        )
        return EncodedSample(
            key=raw["__key__"], input_ids=ids, loss_mask=torch.ones(len(ids), dtype=torch.bool),
            position_ids=torch.arange(len(ids))[None],
            token_tensors={"mm_token_type_ids": torch.zeros(len(ids), dtype=torch.int64)}, media=media,
        )

    def batch(self, samples):
        from dataclasses import replace
        cut = lambda item: replace(item, media=replace(item.media, data=item.media.data[-8:]))
        return super().batch([replace(s, media=tuple(map(cut, s.media))) for s in samples])
'''


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the script saw of 24 rows, two in three with a JPEG that is turned, larger than a head, or a PNG."""
    if importlib.util.find_spec("lance") is None:
        pytest.skip("needs pylance: pip install 'packloom[lance]'")
    folder = tmp_path_factory.mktemp("lance")
    rows = []
    for number in range(24):
        path = folder / f"{number}.jpg"
        turned = Image.Exif()
        turned[0x0112] = 6
        size = (9 + number, 8) if number % 2 else (150, 150 + number)
        Image.effect_noise(size, 90).convert("RGB").save(path, "PNG" if number % 2 else "JPEG", exif=turned, quality=99)
        turns = [{"from": "human", "value": "q" * (number % 9 + 1)}, {"from": "gpt", "value": chr(65 + number)}]
        rows.append({"id": f"{number}", "conversations": turns, "images": [str(path)] if number % 3 else None})
    (folder / "rows.json").write_text(json.dumps(rows))
    (folder / "fake_chat.py").write_text(_ENCODER)
    shutil.copy(Path(__file__).parents[1] / "datasets/convert/lance_maker.py", folder)
    script = folder / "script.py"
    script.write_text(_SCRIPT.format(tests=str(Path(__file__).parent), folder=str(folder)))
    run = subprocess.run(
        [sys.executable, str(script)], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert run.returncode == 0, run.stderr
    result: dict[str, Any] = json.loads(run.stdout)
    return result


def keys(views: list[Any]) -> list[int]:
    return sorted(int(key) for view in views for key in view[0])


def test_the_same_batches_as_from_shards_and_at_every_resume(found: dict[str, Any]) -> None:
    from_lance, from_shards = found["whole"]
    assert keys(from_lance) == list(range(24))
    assert from_lance == from_shards
    assert len(from_lance) > 3
    assert any(view[3] for view in from_lance)
    assert found["resumed"] == [from_lance[step + 1 :] for step in range(len(from_lance))]


def test_blobs_are_taken_after_packing(found: dict[str, Any]) -> None:
    assert found["late"] == found["late_v1"] == found["whole"][0]
    assert 10_000 < found["longest_at_encoding"] <= 16 << 10  # heads, of images that are larger


def test_lengths_do_without_the_images(found: dict[str, Any]) -> None:
    whole, heads, heads_v1 = found["lengths"]
    assert heads == heads_v1 == whole
    assert [len(heads[0]), sum(heads[1]), heads[2]] == [24, 16, {}]
    assert min(heads[0]) > 1


@pytest.mark.parametrize("kind", ["joined", "paths"])
def test_filters_media_tables_and_paths(kind: str, found: dict[str, Any]) -> None:
    in_place, from_shards = found[kind]
    assert in_place == from_shards
    assert keys(in_place) == list(range(23 if kind == "joined" else 24))
    assert any(view[3] for view in in_place)


def test_spawned_workers_and_fingerprints(found: dict[str, Any]) -> None:
    alone, with_a_worker = found["workers"]
    assert alone == with_a_worker
    assert keys(alone) == list(range(23))
    for kind in ("fingerprints", "renamed"):  # columns that changed their names are others, though no file changed
        one, other = found[kind]
        assert one != other


def test_what_cannot_be(tmp_path: Path, encoder_class: Callable[..., Any]) -> None:
    def build(path: str, **settings: Any) -> None:
        build_loader(path, encoder_class(), pack_length=8, **settings)

    with pytest.raises(ConfigError, match="'fork' cannot be used with Lance"):
        build("a.lance", num_workers=1, start_method="fork")
    with pytest.raises(ConfigError, match=r"index_dir mean.* nothing to the Lance dataset"):
        build("a.lance", index_dir=str(tmp_path))
    for address in ("a.lance?version=new", "a.lance?filter=", "a.lance?filter"):
        with pytest.raises(ConfigError, match=r"data\.lance\?version=7"):
            build(address)
    with pytest.raises(
        ConfigError, match="'versoin' is stated twice, or no setting of a Lance dataset: version, filter"
    ):
        build("a.lance?versoin=1")


def test_an_address() -> None:
    address = "d/a.lance?version=7&filter=a = 'x%26y' AND b LIKE '%25z'&images=left&images=right&messages=m&drop=e"
    wanted = {
        "kind": "lance", "version": 7, "filter": "a = 'x&y' AND b LIKE '%z'", "drop": ("e",),
        "columns": (("images", "left"), ("images", "right"), ("messages", "m")),
    }  # fmt: skip
    assert parse_address(address) == ("d/a.lance", ConvertConfig(**wanted))
    assert is_lance(address)
    assert not is_lance("shards/?version=7")

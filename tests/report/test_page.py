"""The page of ``packloom inspect``: one file without a way out of it, within its size; and the text version."""

from __future__ import annotations

import html.parser
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from packloom.cli import app
from packloom.datasets import write_shards
from packloom.errors import ConfigError
from packloom.report.gallery import Choice, open_gallery
from packloom.report.page import page_data, render_page
from packloom.report.preview import previews
from packloom.report.samples import load_encoder
from packloom.report.spec import DataSpec, EncoderSpec
from packloom.types import Media

EVIL = "</script><script>alert(1)</script><img src=https://x.example/a.png> \u2028 \u202e"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, make_talk: Any, make_jpeg: Any) -> Path:
    path = tmp_path_factory.mktemp("page") / "shards"
    rows = [
        make_talk("plain", "?", "A."),
        make_talk("<b>evil", EVIL, EVIL),
        make_talk("cut", "?", "A.", images=[make_jpeg(200, 200)[:-400]]),
        make_talk("long", "?", "word " * 200),
        make_talk("two", "?", "B. " * 20, images=[make_jpeg(84, 56), make_jpeg(56, 56)]),
    ]
    write_shards(rows, path)
    return path


class Tags(html.parser.HTMLParser):
    """Every tag with its attributes, and the data of scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] == "script" and data.strip():
            self.scripts.append(data)


def test_data_of_the_page(folder: Path, encoder_spec: EncoderSpec) -> None:
    choice = Choice(pack_length=128, segment_multiple=8)
    gallery = open_gallery(DataSpec(path=(str(folder),)), load_encoder(encoder_spec), choice)
    found = page_data(gallery)
    assert [sample["key"] for sample in found["samples"]] == ["plain", "<b>evil", "two"]
    assert [(item[0], item[2]) for item in found["skipped"]] == [("cut", "media.unreadable"), ("long", "pack.too_long")]
    assert sorted(place for pack in found["packs"] for place, _, _ in pack) == [0, 1, 2]
    for pack in found["packs"]:
        assert sum(aligned for _, _, aligned in pack) <= 128
        assert all(aligned % 8 == 0 and 0 <= aligned - own < 8 for _, own, aligned in pack)
    images = found["samples"][2]["media"]
    assert [(image["rows"], image["columns"], image["numTokens"]) for image in images] == [(2, 3, 6), (2, 2, 4)]


def test_data_stays_data_and_nothing_is_loaded(folder: Path, encoder_spec: EncoderSpec) -> None:
    gallery = open_gallery(DataSpec(path=(str(folder),)), load_encoder(encoder_spec), Choice())
    page = render_page(gallery)
    parsed = Tags(page)
    assert [tag for tag, _ in parsed.tags] == ["html", "head", "meta", "meta", "meta", "title", "style", "body",
                                               "noscript", "script", "script"]  # fmt: skip
    assert len(parsed.scripts) == 2
    assert json.loads(parsed.scripts[0])["samples"][1]["key"] == "<b>evil"
    assert not any("src" in attributes or "href" in attributes for _, attributes in parsed.tags)
    policy = next(attributes["content"] for _, attributes in parsed.tags if "http-equiv" in attributes)
    assert policy is not None
    assert policy.startswith("default-src 'none'; img-src data:; script-src 'sha256-")
    own = re.sub(r'(?s)<script type="application/json".*?</script>', "", page)
    assert not re.search(r"https?://|//[a-z]+\.|@import|url\(", own)


def test_previews_share_a_budget() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (300, 300, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).save(file, format="PNG")
    media = [Media(kind="image", name="0.png", data=file.getvalue())] * 6
    found = previews(media, max_bytes=1 << 17)
    assert len(found) == 6
    assert sum(map(len, found)) <= 1 << 17
    assert all(uri.startswith("data:image/jpeg;base64,") for uri in found)


def test_command(folder: Path, qwen: str, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    arguments = ["inspect", str(folder), "--processor", qwen, "--out", str(out)]
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [sample["key"] for sample in found["samples"]] == ["plain", "<b>evil", "long", "two"]
    assert found["num_bytes"] == out.stat().st_size
    assert [item["key"] for item in found["skipped"]] == ["cut"]
    text = CliRunner().invoke(app, [*arguments, "--text", "--key", "two"]).stdout
    assert "image 0.jpg: 84×56 px → 6 tokens" in text
    assert "⟦B. B." in text
    assert "<|image_pad|>×6" in text
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    absent = CliRunner().invoke(app, [*arguments, "--key", "absent"])
    assert isinstance(absent.exception, ConfigError)

"""Where the tokens of media stand: of videos step by step, whether they are one run or one for each time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from packloom.datasets import write_shards
from packloom.report.gallery import Choice, open_gallery
from packloom.report.grids import media_grids
from packloom.report.page import page_data, render_page
from packloom.report.preview import frame_previews
from packloom.report.samples import load_encoder
from packloom.report.spec import DataSpec, EncoderSpec


def film(row: dict[str, Any], count: int, fps: float) -> dict[str, Any]:
    """The row with its first images as the frames of one video, and the others behind it."""
    content = row["json"]["messages"][0]["content"]
    names = [part["image"] for part in content[:-1]]
    images = [{"type": "image", "image": name} for name in names[count:]]
    content[:] = [{"type": "video", "video": names[:count], "fps": fps}, *images, content[-1]]
    return row


@pytest.mark.parametrize(
    ("family", "shape"),  # (steps, rows, columns) of the video
    [("qwen2_5_vl", (2, 10, 14)), ("qwen3_vl", (2, 6, 8))],
)
def test_a_video_and_an_image(
    family: str, shape: tuple[int, int, int], processor_dir: Callable[[str], Path], make_talk: Any, make_jpeg: Any
) -> None:
    encoder = load_encoder(EncoderSpec(processor=str(processor_dir(family))))
    row = film(make_talk("k", "?", "A.", images=[make_jpeg(256, 192)] * 4 + [make_jpeg(84, 56)]), 4, 1.0)
    sample = encoder.encode_sample(row)
    video, image = media_grids(encoder, sample)
    assert (video.steps, video.rows, video.columns) == shape
    for grid, item in zip((video, image), sample.media, strict=True):
        places = [start + n for start, count in grid.runs for n in range(count)]
        assert len(places) == item.num_tokens
        assert set(sample.input_ids[places].tolist()) == {encoder.chat.run_ids[item.media.kind]}
    assert video.runs[-1][0] < image.runs[0][0]


def test_a_page_with_a_long_video_stays_small(
    encoder_spec: EncoderSpec, make_talk: Any, make_jpeg: Any, tmp_path: Path
) -> None:
    pictures = [make_jpeg(60, 60)] * 90
    write_shards([film(make_talk("long", "?", "A.", images=pictures), 90, 2.0)], tmp_path / "shards")
    data = DataSpec(path=(str(tmp_path / "shards"),))
    gallery = open_gallery(data, load_encoder(encoder_spec), Choice(pack_length=16384))
    [medium] = page_data(gallery)["samples"][0]["media"]
    assert (medium["numFrames"], medium["steps"], medium["seconds"]) == (90, 45, 45.0)
    assert len(medium["frames"]) == 32
    assert [frame[3] for frame in medium["frames"]] == [
        step for frame in medium["frames"][::2] for step in [frame[3]] * 2
    ]
    assert [frame[2] for frame in medium["frames"]] == [frame[1] / 2 for frame in medium["frames"]]
    assert render_page(gallery).count("data:image/jpeg") == 32
    small = frame_previews(gallery.samples[0].media[0], [0, 89, 3], max_bytes=6000)
    assert len(small) == 3
    assert sum(map(len, small)) <= 6000

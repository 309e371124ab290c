"""Video rows through an encoder: positions, masks, lengths, batches of mixed media, and what is refused."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers.models.glm4v.modeling_glm4v import Glm4vModel
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLModel
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLModel
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLModel

from packloom import build_loader, inspect_sample
from packloom.config import SampleLimits
from packloom.config_video import VideoConfig
from packloom.datasets import write_shards
from packloom.errors import BudgetError, CapabilityError, CookError, MediaError
from packloom.task_encoders.family import MediaBlock
from packloom.task_encoders.positions import mrope_positions

MODELS = {
    "qwen2_vl": Qwen2VLModel,
    "qwen2_5_vl": Qwen2_5_VLModel,
    "qwen3_vl": Qwen3VLModel,
    "glm4v": Glm4vModel,
}
SMALL = VideoConfig(fps=2.0, max_frames=6, min_pixels=4096, max_pixels=40_000)


def rope_oracle(family: str, **inputs: Any) -> torch.Tensor:
    """[3, B, S]: transformers' get_rope_index, called without a model."""
    model = MODELS[family]
    vision = SimpleNamespace(spatial_merge_size=2, tokens_per_second=2)
    stand_in = SimpleNamespace(config=SimpleNamespace(vision_config=vision))
    stand_in.get_vision_position_ids = model.get_vision_position_ids.__get__(stand_in)
    return model.get_rope_index(stand_in, **inputs)[0]


@pytest.fixture
def mixed_row(video_row, clip, picture):
    """Text, a video, an image and another video in one question."""
    row = video_row(clip("mp4", frames=20, rate=10), clip("mp4", frames=7, rate=2, height=90, width=64))
    content = row["json"]["messages"][0]["content"]
    content.insert(3, {"type": "image", "image": "9.png"})
    return {**row, "9.png": picture(64, 96)}


@pytest.mark.parametrize("family", MODELS)
def test_positions_equal_get_rope_index(family, encoder_of, mixed_row) -> None:
    encoder = encoder_of(family, video=SMALL)
    [row] = encoder.batch([encoder.encode_sample(mixed_row)])
    sample, tensors = row.sample, row.media_tensors
    assert [item.media.kind for item in sample.media] == ["video", "image", "video"]
    names = ("image_grid_thw", "video_grid_thw", "second_per_grid_ts")
    expected = rope_oracle(
        family,
        input_ids=sample.input_ids[None],
        mm_token_type_ids=sample.token_tensors["mm_token_type_ids"][None],
        **{name: tensors[name] for name in names if name in tensors},
    )
    assert torch.equal(sample.position_ids, expected[:, 0])
    assert ("second_per_grid_ts" in tensors) == (family == "qwen2_5_vl")
    counts = [item.num_tokens for item in sample.media]
    types = sample.token_tensors["mm_token_type_ids"]
    assert int((types == 2).sum()) == counts[0] + counts[2]
    assert int((types == 1).sum()) == counts[1]
    assert [len(item.frames.indices) for item in sample.media if item.frames] == [4, 6]


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl", "glm4v"])
def test_a_pack_of_mixed_media_is_its_samples(family, encoder_of, mixed_row, video_row, chat_row, clip) -> None:
    encoder = encoder_of(family, video=SMALL)
    raws = [chat_row([(64, 96)]), chat_row([]), video_row(clip("mp4", frames=9, rate=3)), mixed_row]
    rows = encoder.batch([encoder.encode_sample(raw) for raw in raws])
    for order in ([0, 1, 2, 3], [3, 2, 0, 1], [2]):
        picked = [rows[number] for number in order]
        batch = encoder.collate(picked, layout="packed", expand_pixels=False)
        joined = torch.cat([row.sample.position_ids for row in picked], dim=1)
        assert torch.equal(batch["position_ids"][:, 0], joined)
        assert batch["input_ids"][0].tolist() == [i for row in picked for i in row.sample.input_ids.tolist()]
        for name in ("pixel_values_videos", "video_grid_thw", "second_per_grid_ts", "image_grid_thw"):
            pieces = [row.media_tensors[name] for row in picked if name in row.media_tensors]
            assert (name in batch) == bool(pieces)
            if pieces:
                assert torch.equal(batch[name], torch.cat(pieces))
        assert not (batch["labels"] == encoder.chat.run_ids["video"]).any()


def test_time_of_positions_by_hand() -> None:
    block = MediaBlock(start=1, grid=(3, 1, 1), time_step=2 * 0.5)
    assert mrope_positions(5, [block])[0].tolist() == [0, 1, 2, 3, 4]
    block = dataclasses.replace(block, time_step=2 * 0.25)
    assert mrope_positions(5, [block])[0].tolist() == [0, 1, 1, 2, 3]
    six = MediaBlock(start=0, grid=(6, 1, 1), time_step=0.75 * 2)
    assert mrope_positions(7, [six])[0].tolist() == [0, 1, 3, 4, 6, 7, 8]


def test_text_after_a_long_clip_goes_on_behind_it_under_the_reference_rules(encoder_of, video_row, clip) -> None:
    """failure-kinds 70: transformers 5.24 goes on at the clip's start plus its larger side."""
    row = video_row(clip("mp4", frames=60, rate=2))
    settings = VideoConfig(fps=2.0, min_pixels=784, max_pixels=784 * 2)
    places = {}
    for rules in ("reference", "transformers"):
        sample = encoder_of("qwen2_5_vl", video=dataclasses.replace(settings, rules=rules)).encode_sample(row)
        last = int((sample.token_tensors["mm_token_type_ids"] == 2).nonzero().max())
        block = sample.position_ids[:, sample.token_tensors["mm_token_type_ids"] == 2]
        places[rules] = (int(sample.position_ids[0, last + 1]), int(block[0].min()), int(block.max()))
    after, start, largest = places["reference"]
    assert after == largest + 1 == start + 59  # 30 temporal patches, a second apart, two positions a second
    assert places["transformers"][:2] == (start + 1, start)  # a frame is one token here


def test_a_still_image_beside_a_video_is_not_stretched_in_time(encoder_of, mixed_row) -> None:
    """failure-kinds 71."""
    sample = encoder_of("qwen2_5_vl", video=SMALL).encode_sample(mixed_row)
    image = sample.position_ids[0, sample.token_tensors["mm_token_type_ids"] == 1]
    assert len(set(image.tolist())) == 1


def test_seconds_are_those_of_the_frames_that_were_taken(encoder_of, video_row, clip) -> None:
    """failure-kinds 73 and 77: 60 frames in 30 s give 6, so 0.2 a second, ten seconds for each temporal patch."""
    encoder = encoder_of("qwen2_5_vl", video=SMALL)
    [row] = encoder.batch([encoder.encode_sample(video_row(clip("mp4", frames=60, rate=2)))])
    assert row.media_tensors["second_per_grid_ts"].tolist() == [10.0]
    assert row.media_tensors["video_grid_thw"][:, 0].tolist() == [3]
    assert row.sample.media[0].frames.indices == (0, 10, 20, 30, 40, 50)
    assert row.sample.media[0].frames.seconds == (0.0, 5.0, 10.0, 15.0, 20.0, 25.0)


@pytest.mark.parametrize(("rules", "marks"), [("transformers", (3, 3)), ("reference", (2, 2))])
def test_timestamps_of_qwen3(rules, marks, encoder_of, video_row, clip) -> None:
    """failure-kinds 74 and 75: pairs of frames, the last one repeated."""
    encoder = encoder_of("qwen3_vl", video=dataclasses.replace(SMALL, rules=rules))
    sample = encoder.encode_sample(video_row(clip("mp4", frames=3, rate=10)))
    text = encoder.parts.tokenizer.decode(sample.input_ids)
    assert [part.split("<")[-1] for part in text.split(" seconds>")[:-1]] == ["0.1", "0.2"]
    assert (text.count("<|vision_start|>"), text.count("<|vision_end|>")) == marks
    assert sample.media[0].grid_thw[0] == 2


@pytest.mark.parametrize("family", MODELS)
@pytest.mark.parametrize("frames", [1, 3])
def test_single_and_odd_frames(family, frames, encoder_of, video_row, clip) -> None:
    """failure-kinds 75."""
    encoder = encoder_of(family, video=dataclasses.replace(SMALL, fps=10.0))
    [row] = encoder.batch([encoder.encode_sample(video_row(clip("mp4", frames=frames, rate=10)))])
    steps = int(row.media_tensors["video_grid_thw"][0, 0])
    assert steps == 1 if frames == 1 or family in ("qwen2_vl", "qwen2_5_vl") else steps == 2


def test_a_video_in_an_answer_is_context(encoder_of, video_row, clip) -> None:
    row = video_row(clip("mp4", frames=5))
    row["json"]["messages"][1]["content"] = row["json"]["messages"][0]["content"]
    row["json"]["messages"][0]["content"] = [{"type": "text", "text": "Show me."}]
    encoder = encoder_of("qwen2_5_vl", video=SMALL)
    sample = encoder.encode_sample(row)
    trained = encoder.parts.tokenizer.decode(sample.input_ids[sample.loss_mask])
    assert "<|video_pad|>" not in trained
    assert "Look: " in trained


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        ({"max_videos": 1}, "budget.videos"),
        ({"max_video_tokens": 5}, "budget.video_tokens"),
        ({"max_video_seconds": 0.5}, "budget.video_seconds"),
        ({"max_pixels": 1000}, "budget.pixels"),
    ],
)
def test_budgets(limits, code, encoder_of, video_row, clip) -> None:
    encoder = encoder_of("qwen2_5_vl", video=SMALL, limits=SampleLimits(**limits))
    small = clip("mp4", frames=20)
    with pytest.raises(BudgetError) as caught:
        encoder.encode_sample(video_row(small, small))
    assert caught.value.code == code


def test_media_that_change_between_measuring_and_loading_are_refused(encoder_of, video_row, clip) -> None:
    encoder = encoder_of("qwen2_5_vl", video=SMALL)
    sample = encoder.encode_sample(video_row(clip("mp4", frames=20)))
    other = encoder.encode_sample(video_row(clip("mp4", frames=3)))
    swapped = dataclasses.replace(sample.media[0], media=other.media[0].media)
    with pytest.raises(MediaError, match="not the video that was measured"):
        encoder.batch([dataclasses.replace(sample, media=(swapped,))])


def test_a_family_without_video_refuses_the_row(encoder_of, video_row, clip) -> None:
    """failure-kinds 49: the video is never just left out."""
    family = "llava"
    with pytest.raises(MediaError, match="is video, which this encoder") as caught:
        encoder_of(family).encode_sample(video_row(clip("mp4", frames=3)))
    assert caught.value.code == "media.unsupported"
    with pytest.raises(CapabilityError, match="take no videos yet"):
        encoder_of(family, video=VideoConfig(fps=1.0))


def test_a_forged_video_token_is_refused(encoder_of, video_row, clip) -> None:
    row = video_row(clip("mp4", frames=3))
    row["json"]["messages"][0]["content"].append({"type": "text", "text": "<|video_pad|>"})
    with pytest.raises(Exception, match=r"control token"):
        encoder_of("qwen2_5_vl", video=SMALL).encode_sample(row)


def test_a_place_without_its_video_is_refused(encoder_of, video_row, clip) -> None:
    row = video_row(clip("mp4", frames=3))
    del row["0.mp4"]
    with pytest.raises(CookError) as caught:
        encoder_of("qwen2_5_vl").encode_sample(row)
    assert caught.value.code == "cook.video_count"


def test_frames_as_images_are_a_video(encoder_of, picture) -> None:
    frames = {f"{number}.png": picture(64, 96) for number in range(5)}
    part = {"type": "video", "video": list(frames), "fps": 2}
    messages = [
        {"role": "user", "content": [part, {"type": "image", "image": "own.png"}, {"type": "text", "text": "What?"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "A cat."}]},
    ]
    raw = {"__key__": "k", "json": {"messages": messages}, **frames, "own.png": picture(28, 28)}
    encoder = encoder_of("qwen2_5_vl", video=SMALL)
    [row] = encoder.batch([encoder.encode_sample(raw)])
    assert row.media_tensors["video_grid_thw"][:, 0].tolist() == [2]
    assert row.media_tensors["second_per_grid_ts"].tolist() == [2 / (4 / 5 * 2)]
    assert len(row.media_tensors["image_grid_thw"]) == 1
    del part["fps"]
    with pytest.raises(MediaError, match="frames per second are not known"):
        encoder.encode_sample(raw)
    part["fps"] = -1
    with pytest.raises(CookError, match="must be a number from 1e-05 to 1e\\+06"):
        encoder.encode_sample(raw)
    part.update(fps=2, video=["0.png", "lost.png"])
    with pytest.raises(CookError, match=r"'lost.png', a frame"):
        encoder.encode_sample(raw)
    part.update(video=["0.png", "1.png"])
    with pytest.raises(CookError, match="no place refers to 2"):
        encoder.encode_sample(raw)


def test_inspect_shows_frames_with_their_times(encoder_of, video_row, clip) -> None:
    text = inspect_sample(encoder_of("qwen2_5_vl", video=SMALL), video_row(clip("mp4", frames=60, rate=2)))
    assert "video 0.mp4: 96×64 px, frames 0@0.00s 10@5.00s 20@10.00s 30@15.00s 40@20.00s 50@25.00s → " in text
    assert "<|video_pad|>×" in text


@pytest.mark.parametrize("num_workers", [0, 2])
def test_shards_of_videos_and_images_through_the_loader(num_workers, encoder_of, mixed_row, chat_row, clip, tmp_path):
    """A cut file is counted and skipped; the rest arrives whole, from worker processes too."""
    cut = {**mixed_row, "__key__": "cut", "0.mp4": mixed_row["0.mp4"][:500]}
    rows = [{**mixed_row, "__key__": "mixed"}, cut, {**chat_row([(64, 96)]), "__key__": "image"}]
    write_shards(rows, tmp_path / "out")
    encoder = encoder_of("qwen2_5_vl", video=SMALL)
    loader = build_loader(
        str(tmp_path / "out"), encoder, pack_length=4096, epochs=1, shuffle=False, num_workers=num_workers, tail="drop"
    )
    batches = list(loader)
    keys = [key for batch in batches for key in batch["sample_keys"]]
    assert sorted(keys) == ["image", "mixed"]
    grids = torch.cat([batch["video_grid_thw"] for batch in batches if "video_grid_thw" in batch])
    assert grids[:, 0].tolist() == [2, 3]

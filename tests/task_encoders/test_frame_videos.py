"""Videos of LLaVA-OneVision, SmolVLM and InternVL: equal to the whole processor, sampled by its rule, or refused."""

from __future__ import annotations

import builtins
import dataclasses
import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from packloom import TaskEncoder
from packloom.config import SampleConfig, SampleLimits
from packloom.config_video import VideoConfig
from packloom.errors import CapabilityError, ConfigError, MediaError
from packloom.task_encoders.frame_sampling import UNBOUNDED, equal_steps, middles, within_margins
from packloom.task_encoders.rules import video_rule_of
from packloom.task_encoders.smol_vlm import SmolVLMTaskEncoder
from packloom.task_encoders.smolvlm_videos import smolvlm_video_rule
from packloom.task_encoders.video import read_clip
from packloom.task_encoders.video_sampling import Sampling
from packloom.task_encoders.videos import VideoLoader
from packloom.types import Media

FAMILIES = {
    "llava_onevision": "LlavaOnevisionProcessor",
    "smolvlm": "SmolVLMProcessor",
    "internvl3": "InternVLProcessor",
}
FOUR = VideoConfig(num_frames=4)
NO_LIMITS = SampleLimits()


def whole_processor_of(family: str, encoder: TaskEncoder, folder: Path) -> Any:
    return getattr(transformers, FAMILIES[family]).from_pretrained(folder, tokenizer=encoder.parts.tokenizer)


@pytest.mark.usefixtures("needs_torchvision")
@pytest.mark.parametrize("family", FAMILIES)
def test_ids_and_pixels(family, encoder_of, processor_dir, clip, video_row, expected_of) -> None:
    encoder = encoder_of(family, video=FOUR)
    processor = whole_processor_of(family, encoder, processor_dir(family))
    for second, (frames, rate, height, width) in enumerate([(20, 10, 64, 96), (300, 10, 150, 40), (9, 2, 402, 600)]):
        first = clip("mp4", frames=frames, rate=rate, height=height, width=width, noise=frames < 100)
        row = video_row(first, *[clip("mp4", frames=12, rate=3)] * (second % 2))
        sample = encoder.encode_sample(row)
        [made] = encoder.batch([sample])
        expected = expected_of(processor, encoder, row, sample)
        assert sample.input_ids.tolist() == expected.pop("input_ids")[0].tolist()
        assert sum(item.num_tokens for item in sample.media) == int(
            (sample.input_ids == encoder.chat.run_ids["video"]).sum()
        )
        batch = encoder.collate([made], layout="padded")
        for name in made.media_tensors:
            theirs = expected[name]
            # SmolVLM: one sample is [1, frames, ...] here, a row per video there; the model flattens both
            ours = batch[name].reshape(theirs.shape)
            assert ours.dtype == theirs.dtype
            assert torch.equal(ours, theirs), name
        assert set(expected) - set(made.media_tensors) <= {"attention_mask"}
        trained = encoder.parts.tokenizer.decode(sample.input_ids[sample.loss_mask])
        assert "A cat." in trained
        assert not any(word in trained for word in ("Frame", "Look", "<image>", "<video>", "frames"))


@pytest.mark.usefixtures("needs_torchvision")
def test_the_template_of_smolvlm_writes_what_transformers_writes(encoder_of, processor_dir, clip, video_row) -> None:
    encoder = encoder_of("smolvlm", video=FOUR)
    processor = whole_processor_of("smolvlm", encoder, processor_dir("smolvlm"))
    row = video_row(clip("mp4", frames=9))
    assert encoder.template.render(encoder.cooker(row)) == processor.apply_chat_template(row["json"]["messages"])


RULES = {
    "smolvlm.video_processing_smolvlm:SmolVLMVideoProcessor": within_margins,
    "internvl.video_processing_internvl:InternVLVideoProcessor": middles,
    "llava_onevision.video_processing_llava_onevision:LlavaOnevisionVideoProcessor": equal_steps,
}


@pytest.mark.usefixtures("needs_torchvision")
@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("asked", [{"fps": 2.0}, {"num_frames": 8}, {"num_frames": 31}], ids=str)
def test_indices_equal_those_of_the_video_processor(name, asked) -> None:
    from transformers.video_utils import VideoMetadata  # noqa: PLC0415 - needs torchvision in part

    module, _, kind = name.partition(":")
    processor = getattr(importlib.import_module(f"transformers.models.{module}"), kind)()
    smol = RULES[name] is within_margins
    if smol:  # it takes both: a rate, and the most
        asked = {"fps": asked.get("fps", 1e6), "num_frames": asked.get("num_frames", 64)}
    mine = Sampling(
        fps=asked.get("fps") if not smol or asked["fps"] < 1e6 else None,
        num_frames=asked.get("num_frames") if not smol or asked["fps"] == 1e6 else None,
        min_frames=1,
        max_frames=asked["num_frames"] if smol else UNBOUNDED,
        group=1,
    )
    compared = 0
    for total in (31, 64, 100, 299, 301, 1000, 9001):
        for rate in (1.0, 7.5, 24.0, 30000 / 1001, 60.0):
            metadata = VideoMetadata(total_num_frames=total, fps=rate, duration=total / rate)
            if not smol and "fps" in asked and asked["fps"] > rate:
                continue  # transformers fails: more frames are asked for than there are
            expected = [int(index) for index in processor.sample_frames(metadata, **asked)]
            assert RULES[name](total, rate, mine) == expected, (total, rate)
            compared += 1
    assert compared > 20


def test_rules_by_hand() -> None:
    four = Sampling(fps=None, num_frames=4, min_frames=1, max_frames=UNBOUNDED, group=1)
    assert equal_steps(10, 2.0, four) == [0, 2, 5, 7]
    assert equal_steps(2, 2.0, four) == [0, 0, 1, 1]  # the model wants equally many of every clip
    assert middles(8, 2.0, four) == [1, 3, 5, 7]
    assert middles(2, 2.0, four) == [0, 1]
    assert middles(8, 2.0, four, shift=False) == [0, 2, 4, 6]
    assert within_margins(10, 2.0, four) == [0, 3, 6, 9]
    slow = dataclasses.replace(four, fps=1.0, num_frames=None, max_frames=4)
    assert within_margins(100, 10.0, slow) == [10, 36, 63, 90]  # the first and the last second are left out
    assert within_margins(30, 10.0, slow) == [0, 14, 29]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_clip_of_one_frame_and_a_video_in_an_answer(family, encoder_of, clip, video_row) -> None:
    encoder = encoder_of(family, video=FOUR)
    [row] = encoder.batch([encoder.encode_sample(video_row(clip("mp4", frames=1)))])
    frames = 4 if family == "llava_onevision" else 1
    assert len(row.sample.media[0].frames.indices) == frames
    raw = video_row(clip("mp4", frames=5))
    raw["json"]["messages"][1]["content"] = raw["json"]["messages"][0]["content"]
    raw["json"]["messages"][0]["content"] = [{"type": "text", "text": "Show me."}]
    sample = encoder.encode_sample(raw)
    trained = encoder.parts.tokenizer.decode(sample.input_ids[sample.loss_mask])
    assert "Look: " in trained
    assert not any(word in trained for word in ("Frame", "<image>", "<video>", "IMG_CONTEXT", "[H:MM:SS]"))


def test_smolvlm_writes_number_length_and_times(encoder_of, clip, video_row) -> None:
    encoder = encoder_of("smolvlm", video=FOUR)
    sample = encoder.encode_sample(video_row(clip("mp4", frames=700, rate=10)))
    text = encoder.parts.tokenizer.decode(sample.input_ids)
    assert "following series of four frames from a 0:01:10 [H:MM:SS] video.\n\nFrame from 00:00:<fake" in text
    assert [part[:5] for part in text.split("Frame from ")[1:]] == ["00:00", "00:23", "00:46", "01:09"]


@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_is_guessed_where_no_setting_says_how_many_frames(family, encoder_of, clip, video_row) -> None:
    with pytest.raises(MediaError, match="how many frames of a video are taken") as caught:
        encoder_of(family).encode_sample(video_row(clip("mp4", frames=9)))
    assert caught.value.code == "media.no_sampling"


def test_settings_of_released_smolvlm_are_read(encoder_of, clip) -> None:
    parts = encoder_of("smolvlm", video=FOUR).parts
    own = {"video_sampling": {"fps": 1, "max_frames": 3, "video_size": {"longest_edge": 512}}}
    settings = {key: value for key, value in parts.video_settings.items() if key != "size"}
    rule = smolvlm_video_rule(dataclasses.replace(parts, video_settings={**settings, **own}), VideoConfig())
    made = read_clip(Media(kind="video", name="0.mp4", data=clip("mp4", frames=100, rate=10)))
    assert rule.sample(made).indices == (10, 50, 90)
    assert rule.sizes(150, 302) == [(254, 512), (512, 512)]


@pytest.mark.parametrize("family", ["smolvlm", "internvl3"])
def test_frames_and_images_under_one_key_stand_in_their_order(family, encoder_of, picture, clip, video_row) -> None:
    encoder = encoder_of(family, video=FOUR)
    settings = {**encoder.parts.video_settings}
    if family == "internvl3":  # the folder's frames are smaller than its tiles
        settings["size"] = {"height": 448, "width": 448}
        encoder = type(encoder)(dataclasses.replace(encoder.parts, video_settings=settings), config=encoder.config)
    raw = video_row(clip("mp4", frames=9))
    content = raw["json"]["messages"][0]["content"]
    raw["json"]["messages"][0]["content"] = [{"type": "image", "image": "9.png"}, *content]
    raw["9.png"] = picture(64, 96)
    after = {**raw, "json": {"messages": [*raw["json"]["messages"]]}}
    after["json"]["messages"][0] = {"role": "user", "content": [*content, {"type": "image", "image": "9.png"}]}
    only = {**raw, "json": {"messages": [dict(raw["json"]["messages"][0]), *raw["json"]["messages"][1:]]}}
    only["json"]["messages"][0]["content"] = [{"type": "image", "image": "9.png"}]
    del only["0.mp4"]
    rows = encoder.batch([encoder.encode_sample(each) for each in (raw, after, only)])
    first, second, image = (encoder.collate([row], layout="padded")["pixel_values"] for row in rows)
    if family == "smolvlm":
        first, second, image = first[0], second[0], image[0]
    assert torch.equal(first[: len(image)], image)
    assert torch.equal(second[-len(image) :], image)
    assert torch.equal(first[len(image) :], second[: -len(image)])
    # a batch with images as bytes in one row, and as floats beside a video in another
    joined = encoder.collate([rows[0], rows[2]], layout="padded", expand_pixels=False)
    pixels = joined["pixel_values"][0] if family == "smolvlm" else joined["pixel_values"]
    assert torch.equal(pixels[-len(image) :], image)
    assert "pixel_table" not in joined


def test_features_follow_a_template_that_moves_images_ahead(encoder_of, picture, clip, video_row) -> None:
    encoder = encoder_of("smolvlm", video=FOUR)
    raw = video_row(clip("mp4", frames=9))
    raw["json"]["messages"][0]["content"].append({"type": "image", "image": "9.png"})
    moving = _MOVING.replace("<image>", encoder.image_rule.placeholder)
    moved = type(encoder)(dataclasses.replace(encoder.parts, chat_template=moving), config=encoder.config)
    rows = [each.batch([each.encode_sample({**raw, "9.png": picture(64, 96)})])[0] for each in (encoder, moved)]
    assert [[item.media.kind for item in row.sample.media] for row in rows] == [["video", "image"], ["image", "video"]]
    first, second = (row.media_tensors["pixel_values"][0] for row in rows)
    assert torch.equal(torch.cat([first[4:], first[:4]]), second)


_MOVING = """{% for m in messages %}<|im_start|>{{ m.role | capitalize }}: {% for kind in ('image', 'video', 'text') -%}
{% for p in m.content if p.type == kind %}{{ p.text if kind == 'text' else '<' + kind + '>' }}{% endfor %}{% endfor -%}
<end_of_utterance>
{% endfor %}"""


def test_frames_of_another_size_than_tiles_are_told_of(encoder_of, caplog, picture, clip, video_row) -> None:
    encoder = encoder_of("internvl3", video=FOUR)
    type(encoder)(encoder.parts, config=encoder.config)
    assert "frames of 384x384, images have tiles of 448x448" in caplog.text
    raw = video_row(clip("mp4", frames=9))
    raw["json"]["messages"][0]["content"].append({"type": "image", "image": "9.png"})
    raw["9.png"] = picture(64, 96)
    with pytest.raises(MediaError, match="do not fit into one tensor") as caught:
        encoder.batch([encoder.encode_sample(raw)])
    assert caught.value.code == "media.size_differs"


@pytest.mark.parametrize("settings", [{"min_pixels": 9}, {"max_pixels": 9}, {"cap_pixels_per_frame": True}], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_settings_that_do_nothing_are_refused(family, settings, encoder_of) -> None:
    encoder = encoder_of(family, video=FOUR)
    with pytest.raises(ConfigError, match=r"does nothing|has no option"):
        video_rule_of(encoder.parts, encoder.family, SampleConfig(video=VideoConfig(num_frames=4, **settings)))


def test_a_rate_cannot_be_batched_by_onevision(encoder_of) -> None:
    encoder = encoder_of("llava_onevision", video=FOUR)
    with pytest.raises(CapabilityError, match=r"set video\.num_frames instead"):
        video_rule_of(encoder.parts, encoder.family, SampleConfig(video=VideoConfig(fps=1.0)))


def test_without_num2words_its_name_is_the_reason(encoder_of, monkeypatch) -> None:
    parts, real = encoder_of("smolvlm", video=FOUR).parts, builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "num2words":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(CapabilityError, match="num2words"):
        video_rule_of(parts, SmolVLMTaskEncoder.family, SampleConfig(video=FOUR))
    rule, refusal = video_rule_of(parts, SmolVLMTaskEncoder.family, SampleConfig())  # images go on
    assert rule is None
    assert "num2words" in refusal
    with pytest.raises(MediaError, match="num2words") as caught:
        VideoLoader(name="k", rule=rule, refusal=refusal).measure([Media(kind="video", name="v", data=b"")], NO_LIMITS)
    assert caught.value.code == "media.unsupported"


def test_without_lanczos_torchvision_is_named(encoder_of, monkeypatch) -> None:
    parts = encoder_of("smolvlm", video=FOUR).parts
    module = "packloom.task_encoders.video_processors"
    monkeypatch.setattr(f"{module}.has_lanczos", lambda: False)
    monkeypatch.setattr(f"{module}.importlib.util.find_spec", lambda name: None)
    with pytest.raises(CapabilityError, match="pip install torchvision"):
        smolvlm_video_rule(parts, FOUR)


def test_idefics3_takes_no_videos(encoder_of) -> None:
    """It shares the encoder of SmolVLM, and has no video processor; its file of image settings is none."""
    parts = dataclasses.replace(encoder_of("smolvlm", video=FOUR).parts, processor_class="Idefics3Processor")
    with pytest.raises(CapabilityError, match="Idefics3"):
        smolvlm_video_rule(parts, FOUR)


def test_bytes_are_the_frames_themselves(encoder_of, clip, video_row) -> None:
    encoder = encoder_of("llava_onevision", video=FOUR)
    [row] = encoder.batch([encoder.encode_sample(video_row(clip("mp4", frames=9)))])
    pixels = row.media_tensors["pixel_values_videos"]
    assert (pixels.shape, pixels.dtype) == ((1, 4, 3, 384, 384), torch.uint8)
    batch = encoder.collate([row], layout="padded")
    table = encoder.video_rule.table.numpy()
    assert np.array_equal(batch["pixel_values_videos"][0, 1, 2].numpy(), table[2][pixels[0, 1, 2].numpy()])

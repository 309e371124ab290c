"""Audio rows through an encoder: equal to transformers' processors; lengths, positions, masks, and what is refused."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from PIL import Image
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniPreTrainedModelForConditionalGeneration

from packloom.config_audio import AudioConfig
from packloom.errors import MediaError
from packloom.task_encoders.whisper_audios import audio_tokens
from packloom.testing import check_masks

pytest.importorskip("av", reason="PyAV is not installed: reads audio")
FAMILIES = ("qwen2_audio", "qwen2_5_omni")


def png(height: int, width: int) -> bytes:
    buffer = io.BytesIO()
    Image.linear_gradient("L").resize((width, height)).convert("RGB").save(buffer, "PNG")
    return buffer.getvalue()


def test_ids_features_and_masks_equal_the_whole_processor(hearing, audio_row, sound, wave_of) -> None:
    encoder = hearing("qwen2_audio")
    extractor = transformers.WhisperFeatureExtractor(feature_size=128)
    processor = transformers.Qwen2AudioProcessor(extractor, encoder.parts.tokenizer)
    for audios in ([sound(1.0)], [sound(0.2, seed=1), sound(3.777, seed=2), sound(30.0, seed=3)]):
        raw = audio_row(*audios)
        [row] = encoder.batch([encoder.encode_sample(raw)])
        text = processor.apply_chat_template(raw["json"]["messages"], tokenize=False)
        expected = processor(text=[text], audio=[wave_of(data) for data in audios], return_tensors="pt")
        assert torch.equal(row.sample.input_ids, expected.pop("input_ids")[0])
        expected.pop("attention_mask")
        assert expected.keys() == row.media_tensors.keys()
        for name, tensor in expected.items():
            assert tensor.dtype == row.media_tensors[name].dtype
            assert torch.equal(tensor, row.media_tensors[name]), name
        trained = encoder.parts.tokenizer.decode(row.sample.input_ids[row.sample.loss_mask])
        assert trained == "A bell.<|im_end|>Yes 🙂.<|im_end|>"


@pytest.mark.usefixtures("needs_torchvision")
def test_omni_equals_the_whole_processor(hearing, audio_row, sound, wave_of) -> None:
    encoder = hearing("qwen2_5_omni")
    extractor = transformers.WhisperFeatureExtractor(feature_size=128, chunk_length=300)
    processor = transformers.Qwen2_5OmniProcessor(
        image_processor=encoder.parts.image_processor,
        video_processor=transformers.Qwen2VLVideoProcessor(),
        feature_extractor=extractor,
        tokenizer=encoder.parts.tokenizer,
        chat_template=encoder.parts.chat_template,
    )
    audios = [sound(1.0), sound(0.5, seed=1)]
    raw = with_image(audio_row(*audios))
    [row] = encoder.batch([encoder.encode_sample(raw)])
    text = encoder.template.render(encoder.cooker(raw))
    waves = [wave_of(data) for data in audios]
    image = Image.open(io.BytesIO(raw["9.png"]))
    expected = dict(processor(text=[text], images=[image], audio=waves, return_tensors="pt"))
    assert torch.equal(row.sample.input_ids, expected.pop("input_ids")[0])
    expected.pop("attention_mask")
    names = {"input_features", "feature_attention_mask", "image_grid_thw"}
    assert expected.keys() == names | {"pixel_values"}
    assert all(torch.equal(row.media_tensors[name], expected[name]) for name in names)


def with_image(raw: dict[str, Any]) -> dict[str, Any]:
    """The row with an image right behind its first text."""
    raw["json"]["messages"][0]["content"].insert(1, {"type": "image", "image": "9.png"})
    return {**raw, "9.png": png(56, 84)}


def test_omni_features_are_those_of_its_extractor(hearing, audio_row, sound, wave_of) -> None:
    encoder, audios = hearing("qwen2_5_omni"), [sound(1.0), sound(0.5, seed=1)]
    [row] = encoder.batch([encoder.encode_sample(audio_row(*audios))])
    extractor = transformers.WhisperFeatureExtractor(feature_size=128, chunk_length=300)
    made = extractor(
        [wave_of(data) for data in audios], sampling_rate=16_000, return_attention_mask=True, return_tensors="pt"
    )
    assert torch.equal(row.media_tensors["input_features"], made["input_features"])
    assert torch.equal(row.media_tensors["feature_attention_mask"], made["attention_mask"])
    assert [item.num_tokens for item in row.sample.media] == [25, 12]


def test_tokens_of_frames_by_hand() -> None:
    assert [audio_tokens(frames) for frames in (1, 2, 3, 6, 7, 10, 11, 100, 2999, 3000)] == [
        0, 0, 1, 1, 2, 2, 3, 25, 750, 750,
    ]  # fmt: skip


@pytest.mark.parametrize("samples", [961, 1120, 1121, 1600, 16_000, 16_001, 123_457, 479_999, 480_000])
def test_predicted_is_produced(samples, hearing, audio_row, sound) -> None:
    encoder = hearing("qwen2_audio")
    sample = encoder.encode_sample(audio_row(sound(num_samples=samples)))
    [row] = encoder.batch([sample])
    [features] = row.media_tensors["feature_attention_mask"]
    frames = int(features.sum())
    assert frames == -(-samples // 160)
    audio = encoder.parts.tokenizer.convert_tokens_to_ids("<|AUDIO|>")
    assert int((sample.input_ids == audio).sum()) == sample.media[0].num_tokens == audio_tokens(frames)
    assert sample.media[0].sound.num_samples == samples


@pytest.mark.parametrize(("family", "least"), [("qwen2_audio", 961), ("qwen2_5_omni", 321)])
def test_too_short_for_a_token_is_refused(family, least, hearing, audio_row, sound) -> None:
    encoder = hearing(family)
    for samples in (1, least - 1):
        with pytest.raises(MediaError, match=f"more than {least - 1} samples") as caught:
            encoder.encode_sample(audio_row(sound(num_samples=samples), key="short"))
        assert (caught.value.code, caught.value.key) == ("media.too_short", "short")
    assert encoder.encode_sample(audio_row(sound(num_samples=least))).media[0].num_tokens >= 1


def test_more_than_the_window_is_refused_or_cut_where_that_is_asked_for(hearing, audio_row, sound) -> None:
    long = sound(num_samples=480_001)
    with pytest.raises(MediaError, match="takes 30 and drops the rest") as caught:
        hearing("qwen2_audio").encode_sample(audio_row(long))
    assert caught.value.code == "media.too_long"
    encoder = hearing("qwen2_audio", audio=AudioConfig(too_long="cut"))
    for data in (long, sound(70, rate=8000)):
        [row] = encoder.batch([encoder.encode_sample(audio_row(data))])
        assert row.sample.media[0].num_tokens == 750
        assert int(row.media_tensors["feature_attention_mask"].sum()) == 3000
    assert hearing("qwen2_5_omni").encode_sample(audio_row(long)).media[0].num_tokens == 750


def test_another_rate_is_resampled_or_refused_where_that_is_asked_for(hearing, audio_row, sound) -> None:
    raw = audio_row(sound(1.0, rate=44_100, channels=2))
    sample = hearing("qwen2_audio").encode_sample(raw)
    assert sample.media[0].num_tokens == 25
    assert (sample.media[0].sound.rate, sample.media[0].sound.seconds) == (44_100, 1.0)
    strict = hearing("qwen2_audio", audio=AudioConfig(other_rate="refuse"))
    with pytest.raises(MediaError, match="44100 samples per second, the model takes 16000") as caught:
        strict.encode_sample(raw)
    assert caught.value.code == "media.rate"
    strict.encode_sample(audio_row(sound(1.0)))


@pytest.mark.parametrize("rate", [3, 7, 24])
def test_positions_of_omni_equal_get_rope_index(rate, hearing, audio_row, sound, clip) -> None:
    """The frames of a clip that has few of them are taken at an odd rate, whose steps in time are rounded."""
    encoder = hearing("qwen2_5_omni")
    raw = with_image(audio_row(sound(1.0), sound(0.3, seed=1)))
    content = raw["json"]["messages"][0]["content"]
    content.insert(0, {"type": "image", "image": "8.png"})
    content += [{"type": "video", "video": "10.mp4"}, {"type": "video", "video": "11.mp4"}]
    clips = {"10.mp4": clip("mp4", frames=30, rate=rate), "11.mp4": clip("mp4", frames=11, rate=rate, width=64)}
    [row] = encoder.batch([encoder.encode_sample({**raw, "8.png": png(84, 112), **clips})])
    ids = {name: encoder.parts.tokenizer.convert_tokens_to_ids(f"<|{name}|>") for name in
           ("IMAGE", "VIDEO", "AUDIO", "vision_bos", "audio_bos")}  # fmt: skip
    config = SimpleNamespace(
        image_token_id=ids["IMAGE"],
        video_token_id=ids["VIDEO"],
        audio_token_id=ids["AUDIO"],
        vision_start_token_id=ids["vision_bos"],
        audio_start_token_id=ids["audio_bos"],
        position_id_per_seconds=25,
        seconds_per_chunk=2,
    )
    stand_in = SimpleNamespace(config=config, spatial_merge_size=2)
    model = Qwen2_5OmniPreTrainedModelForConditionalGeneration
    stand_in.get_llm_pos_ids_for_vision = model.get_llm_pos_ids_for_vision.__get__(stand_in)
    expected, _ = model.get_rope_index(
        stand_in,
        input_ids=row.sample.input_ids[None],
        image_grid_thw=row.media_tensors["image_grid_thw"],
        video_grid_thw=row.media_tensors["video_grid_thw"],
        second_per_grids=row.media_tensors["video_second_per_grid"],
        audio_seqlens=row.media_tensors["feature_attention_mask"].sum(-1),
        attention_mask=torch.ones_like(row.sample.input_ids)[None],
    )
    assert torch.equal(row.sample.position_ids, expected[:, 0].long())
    steps = row.sample.position_ids[0, row.sample.input_ids == ids["VIDEO"]].diff().unique()
    assert len(steps) > 2  # within a temporal patch none, from one to the next by their seconds, and to the next clip


def test_an_audio_in_an_answer_is_context(hearing, audio_row, sound) -> None:
    raw = audio_row(sound(0.5))
    raw["json"]["messages"][1]["content"] = [
        {"type": "text", "text": "Here: "},
        *raw["json"]["messages"][0]["content"][1:2],
        {"type": "text", "text": "that."},
    ]
    raw["json"]["messages"][0]["content"] = [{"type": "text", "text": "Play it."}]
    for family in FAMILIES:
        encoder = hearing(family)
        sample = encoder.encode_sample(raw)
        trained = encoder.parts.tokenizer.decode(sample.input_ids[sample.loss_mask])
        assert trained.replace("Here: ", "Here:") == "Here:that.<|im_end|>Yes 🙂.<|im_end|>"


@pytest.mark.parametrize("family", FAMILIES)
def test_masks_of_the_built_in_cases(family, hearing) -> None:
    report = check_masks(hearing(family))
    assert report.ok, report

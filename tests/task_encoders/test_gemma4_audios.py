"""Audio of Gemma 4 against transformers' own processor and audio tower."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoProcessor

from packloom import TaskEncoder
from packloom.config import SampleConfig, SampleLimits
from packloom.config_audio import AudioConfig
from packloom.errors import BudgetError, CapabilityError, MediaError
from packloom.task_encoders.gemma import Gemma4TaskEncoder

pytest.importorskip("av", reason="PyAV is not installed: reads audio")
gemma4 = pytest.importorskip("transformers.models.gemma4", reason="this transformers has no Gemma 4")


@pytest.fixture(scope="module")
def encoder(processor_dir) -> TaskEncoder:
    return TaskEncoder.from_pretrained(processor_dir("gemma4"))


@pytest.fixture(scope="module")
def extractor() -> Any:
    return transformers.Gemma4AudioFeatureExtractor()


def counted(extractor: Any, mask: torch.Tensor) -> int:
    """By the processor's own code, which needs torchvision as a whole."""
    processor = object.__new__(transformers.Gemma4Processor)
    processor.boa_token, processor.audio_token, processor.eoa_token = "<", "a", ">"
    return processor.replace_audio_token({"input_features_mask": [mask.numpy()]}, 0).count("a")


def test_tokens_and_features_equal_the_processors(encoder, extractor, audio_row, sound, wave_of) -> None:
    clips = [sound(1.0), sound(0.237, seed=1), sound(3.3331, seed=2)]
    [row] = encoder.batch([encoder.encode_sample(audio_row(*clips))])
    made = extractor([wave_of(data) for data in clips], return_tensors="pt")
    assert row.media_tensors.keys() == {"input_features", "input_features_mask"}
    for name, tensor in row.media_tensors.items():
        assert tensor.dtype == made[name].dtype
        assert torch.equal(tensor, made[name]), name
    counts = [counted(extractor, mask) for mask in made["input_features_mask"]]
    assert [item.num_tokens for item in row.sample.media] == counts == [25, 6, 84]
    text = encoder.parts.tokenizer.decode(row.sample.input_ids)
    for count in counts:
        assert text.count(f"<|audio>{'<|audio|>' * count}<audio|>") == 1
    types = row.sample.token_tensors["mm_token_type_ids"]
    assert torch.equal(types == 3, row.sample.input_ids == encoder.parts.tokenizer.audio_token_id)
    trained = encoder.parts.tokenizer.decode(row.sample.input_ids[row.sample.loss_mask])
    assert "audio" not in trained
    assert "A bell." in trained


@pytest.mark.usefixtures("needs_torchvision")
def test_a_row_equals_the_whole_processor(processor_dir, encoder, audio_row, sound, wave_of) -> None:
    processor = AutoProcessor.from_pretrained(processor_dir("gemma4"))
    clips = [sound(0.61), sound(2.0, seed=1)]
    raw = audio_row(*clips)
    [row] = encoder.batch([encoder.encode_sample(raw)])
    text = encoder.template.render(encoder.chat.prepare(encoder.cooker(raw)))
    expected = processor(
        text=[text], audio=[wave_of(data) for data in clips], add_special_tokens=False, return_tensors="pt"
    )
    assert torch.equal(row.sample.input_ids, expected["input_ids"][0])
    assert torch.equal(row.sample.token_tensors["mm_token_type_ids"], expected["mm_token_type_ids"][0])
    for name, tensor in row.media_tensors.items():
        assert torch.equal(tensor, expected[name]), name


def test_every_length_counts_as_in_the_processor(encoder, extractor) -> None:
    for length in (*range(161, 2600, 31), 16_000, 479_999, 480_000):
        mask = extractor([torch.zeros(length).numpy()], return_tensors="pt")["input_features_mask"][0]
        assert encoder.audio_rule.measure("x", length).runs == (counted(extractor, mask),)
    assert encoder.audio_rule.measure("x", 480_000).runs == (750,)


def test_the_audio_tower_makes_as_many_tokens_alone_and_in_a_batch(encoder, audio_row, sound) -> None:
    config = gemma4.Gemma4AudioConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        subsampling_conv_channels=[128, 4],
        output_proj_dims=8,
    )
    tower = transformers.AutoModel.from_config(config).eval()
    rows = encoder.batch(
        [encoder.encode_sample(audio_row(sound(num_samples=count))) for count in (161, 481, 1_119, 16_000, 20_001)]
    )
    batch = encoder.collate(rows, layout="padded")

    def heard(tensors: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            made = tower(tensors["input_features"], tensors["input_features_mask"])
        return made.last_hidden_state, made.attention_mask

    together, masks = heard(batch)
    assert masks.sum(-1).tolist() == [row.sample.media[0].num_tokens for row in rows] == [1, 1, 2, 25, 32]
    for index, row in enumerate(rows):
        alone, mask = heard(row.media_tensors)
        torch.testing.assert_close(together[index][masks[index]], alone[0][mask[0]], atol=1e-5, rtol=1e-4)


def test_too_short_and_too_long_are_refused(encoder, audio_row, sound) -> None:
    with pytest.raises(MediaError, match="at least 161") as caught:
        encoder.encode_sample(audio_row(sound(num_samples=160)))
    assert caught.value.code == "media.too_short"
    with pytest.raises(MediaError, match="takes 30 and drops the rest") as caught:
        encoder.encode_sample(audio_row(sound(num_samples=480_001)))
    assert caught.value.code == "media.too_long"


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"dither": 0.1}, "global generator"),
        ({"padding_side": "left"}, "right is needed"),
        ({"feature_extractor_type": "WhisperFeatureExtractor"}, "needs a Gemma4AudioFeatureExtractor"),
    ],
)
def test_extractors_of_another_kind_are_refused(change, match, encoder) -> None:
    settings = {**encoder.parts.audio_settings, **change}
    with pytest.raises(CapabilityError, match=match):
        Gemma4TaskEncoder(dataclasses.replace(encoder.parts, audio_settings=settings))


def test_a_model_without_an_audio_tower_hears_nothing(encoder, audio_row, sound) -> None:
    """The larger models share the processor of the smaller ones."""
    config = {"model_type": "gemma4", "text_config": {}, "audio_config": None}
    deaf = Gemma4TaskEncoder(dataclasses.replace(encoder.parts, config=config))
    with pytest.raises(MediaError, match="does not take"):
        deaf.encode_sample(audio_row(sound(1.0)))
    with pytest.raises(CapabilityError, match="takes no audio"):
        Gemma4TaskEncoder(deaf.parts, config=SampleConfig(max_length=64, audio=AudioConfig(too_long="cut")))
    hearing = Gemma4TaskEncoder(dataclasses.replace(encoder.parts, config={**config, "audio_config": {}}))
    assert hearing.encode_sample(audio_row(sound(1.0))).media[0].num_tokens == 25


def test_a_dummy_is_an_image_where_no_audio_is_taken(encoder, audio_row, sound) -> None:
    with pytest.raises(CapabilityError, match="max_audios=0"):
        _ = encoder.dummy
    seeing = Gemma4TaskEncoder(encoder.parts, config=SampleConfig(limits=SampleLimits(max_audios=0)))
    assert seeing.dummy.media_tensors.keys() == {"pixel_values", "image_position_ids"}
    with pytest.raises(BudgetError, match="max_audios is 0"):
        seeing.encode_sample(audio_row(sound(1.0)))

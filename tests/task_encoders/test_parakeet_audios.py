"""Audio of Nemotron-3-Nano-Omni against transformers' own processor and audio tower."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from packloom import TaskEncoder
from packloom.config import SampleConfig
from packloom.config_audio import AudioConfig
from packloom.errors import CapabilityError, MediaError, ProcessorError
from packloom.task_encoders.nemotron import NemotronOmniTaskEncoder
from packloom.task_encoders.parakeet_audios import AUDIO_TOKENS, ParakeetAudioRule
from packloom.task_encoders.processors import parts_of

pytest.importorskip("av", reason="PyAV is not installed: reads audio")
parakeet = pytest.importorskip("transformers.models.parakeet", reason="this transformers has no Parakeet")
omni = pytest.importorskip(
    "transformers.models.nemotron_h_omni.processing_nemotron_h_omni", reason="this transformers has no Nemotron-Omni"
)

SETTINGS = {"feature_extractor_type": "ParakeetFeatureExtractor", "feature_size": 16}
#: The audio side of the model's template is not at hand: this one writes what its processor looks for.
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}<think></think>{% endif %}"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for c in m.content %}"
    "{{ '<so_embedding>\n' if c.type == 'audio' else c.text }}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
)


@pytest.fixture(scope="module")
def tokenizer(processor_dir) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(processor_dir("qwen2_5_vl"), local_files_only=True)
    tokenizer.add_tokens(["<img>", "<image>", "</img>", *AUDIO_TOKENS], special_tokens=True)
    tokenizer.add_tokens(["<think>", "</think>"])
    return tokenizer


@pytest.fixture
def parts(tokenizer) -> Any:
    return dataclasses.replace(parts_of(tokenizer, chat_template=TEMPLATE), audio_settings=SETTINGS)


@pytest.fixture
def encoder(parts) -> TaskEncoder:
    return NemotronOmniTaskEncoder(parts)


@pytest.fixture
def processor() -> Any:
    """The processor's own audio code; the whole one wants torchvision for its images."""
    made = object.__new__(omni.NemotronH_Omni_Reasoning_V3Processor)
    made.audio_start_token, made.audio_token, made.audio_end_token = AUDIO_TOKENS
    made.audio_sampling_rate, made.audio_subsampling_factor, made.audio_hop_length = 16_000, 8, 160
    made.feature_extractor = parakeet.ParakeetFeatureExtractor(feature_size=16)
    return made


def test_tokens_and_features_equal_the_processors(encoder, processor, audio_row, sound, wave_of) -> None:
    clips = [sound(1.0), sound(0.237, seed=1), sound(3.3331, seed=2)]
    [row] = encoder.batch([encoder.encode_sample(audio_row(*clips))])
    features, mask, counts = processor._process_audio([wave_of(data) for data in clips], {})
    assert torch.equal(row.media_tensors["input_features"], features)
    assert torch.equal(row.media_tensors["input_features_mask"], mask)
    assert [item.num_tokens for item in row.sample.media] == counts == [13, 3, 42]
    text = encoder.parts.tokenizer.decode(row.sample.input_ids)
    for index in range(3):
        expanded = processor.replace_audio_token({"num_tokens": counts}, index)
        assert text.count(expanded) == 1
    trained = encoder.parts.tokenizer.decode(row.sample.input_ids[row.sample.loss_mask])
    assert not any(token in trained for token in AUDIO_TOKENS)


def test_every_length_counts_as_in_the_processor(parts, processor) -> None:
    rule = ParakeetAudioRule.from_parts(parts)
    for length in (*range(320, 4000, 37), 16_000, 479_999, 480_000, 480_001):
        assert rule.measure("x", length).runs == (processor._estimate_audio_num_embeddings(length),)


def test_the_audio_tower_makes_as_many_tokens(encoder, audio_row, sound) -> None:
    config = parakeet.ParakeetEncoderConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, num_mel_bins=16,
        subsampling_conv_channels=8,
    )  # fmt: skip
    tower = parakeet.ParakeetEncoder(config).eval()
    for samples in (320, 1_119, 1_120, 1_280, 20_000):
        [row] = encoder.batch([encoder.encode_sample(audio_row(sound(num_samples=samples)))])
        made = tower(input_features=row.media_tensors["input_features"]).last_hidden_state
        frames = row.media_tensors["input_features_mask"].sum(-1)
        tokens = row.sample.media[0].num_tokens
        assert made.shape[1] == tokens == int(tower._get_subsampling_output_length(frames + 1))


def test_a_batch_pads_clips_as_the_processor_does(encoder, processor, audio_row, sound, wave_of) -> None:
    clips = [sound(0.5), sound(2.0, seed=1)]
    rows = encoder.batch([encoder.encode_sample(audio_row(data)) for data in clips])
    batch = encoder.collate(rows, layout="padded")
    features, mask, _ = processor._process_audio([wave_of(data) for data in clips], {})
    assert torch.equal(batch["input_features_mask"], mask)
    torch.testing.assert_close(batch["input_features"], features, atol=1e-4, rtol=1e-4)
    with pytest.raises(CapabilityError, match="Mamba"):
        encoder.collate(rows, layout="packed")


def test_too_short_for_features_is_refused(encoder, audio_row, sound) -> None:
    with pytest.raises(MediaError, match="at least 320") as caught:
        encoder.encode_sample(audio_row(sound(num_samples=319)))
    assert caught.value.code == "media.too_short"
    encoder.encode_sample(audio_row(sound(num_samples=320)))


@pytest.mark.parametrize(
    ("settings", "error", "match"),
    [
        ({"audio_subsampling_factor": 6}, ProcessorError, "power of two"),
        ({"audio_hop_length": 200}, ProcessorError, "hop_length is 160"),
        ({"audio_sampling_rate": 8_000}, ProcessorError, "sampling_rate is 16000"),
    ],
)
def test_settings_that_contradict_one_another(settings, error, match, parts) -> None:
    with pytest.raises(error, match=match):
        ParakeetAudioRule.from_parts(dataclasses.replace(parts, settings=settings))


def test_another_extractor_is_refused(parts) -> None:
    other = dataclasses.replace(parts, audio_settings={"feature_extractor_type": "WhisperFeatureExtractor"})
    with pytest.raises(CapabilityError, match="audio needs a ParakeetFeatureExtractor"):
        NemotronOmniTaskEncoder(other)


def test_without_an_extractor_audio_is_refused(parts, audio_row, sound) -> None:
    plain = dataclasses.replace(parts, audio_settings=None)
    with pytest.raises(MediaError, match="does not take"):
        NemotronOmniTaskEncoder(plain).encode_sample(audio_row(sound(1.0)))
    with pytest.raises(CapabilityError, match="no settings of a feature extractor"):
        NemotronOmniTaskEncoder(plain, config=SampleConfig(max_length=64, audio=AudioConfig(too_long="cut")))

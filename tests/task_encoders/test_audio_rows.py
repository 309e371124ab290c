"""Audio rows on their way: batches, the ways to place an audio, what is refused, and shards through the loader."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch
import transformers

from packloom import TaskEncoder, build_loader, inspect_sample
from packloom.config import SampleLimits
from packloom.config_audio import AudioConfig
from packloom.datasets import write_shards
from packloom.errors import BudgetError, CapabilityError, ConfigError, CookError, MaskError, MediaError
from packloom.models import route

pytest.importorskip("av", reason="PyAV is not installed: reads audio")


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_a_batch_joins_the_features_of_its_rows(layout, hearing, audio_row, sound) -> None:
    encoder = hearing("qwen2_audio")
    raws = [audio_row(sound(1.0)), audio_row(), audio_row(sound(0.5, seed=1), sound(0.7, seed=2))]
    rows = encoder.batch([encoder.encode_sample(raw) for raw in raws])
    batch = encoder.collate(rows, layout=layout)
    for name in ("input_features", "feature_attention_mask"):
        assert torch.equal(batch[name], torch.cat([rows[0].media_tensors[name], rows[2].media_tensors[name]]))
        assert name in route(batch, "first")
        assert name not in route(batch, "last")
    marks = encoder.parts.tokenizer.convert_tokens_to_ids(["<|audio_bos|>", "<|AUDIO|>", "<|audio_eos|>"])
    assert not torch.isin(batch["labels"], torch.tensor(marks)).any()
    assert [row.sample.num_patches for row in rows] == [1500, 0, 3000]
    assert "input_features" not in encoder.collate([rows[1]], layout=layout)


@pytest.mark.parametrize(
    ("row", "audios"),
    [
        ({"conversations": [{"from": "human", "value": "<audio>What?"}, {"from": "gpt", "value": "A bell."}]}, 1),
        (
            {
                "messages": [
                    {"role": "user", "content": "<audio> or <audio>?"},
                    {"role": "assistant", "content": "A."},
                ],
                "audios": ["b.wav", "a.wav"],
            },
            2,
        ),
        ({"question": "What is it?", "answer": "A bell.", "audio": "a.wav"}, 1),
        ({"messages": [{"role": "user", "content": [{"type": "audio_url", "audio_url": {"url": "a.wav"}}]},
                       {"role": "assistant", "content": "A."}]}, 1),
    ],
)  # fmt: skip
def test_the_ways_to_place_an_audio(row, audios, hearing, sound) -> None:
    raw = {"__key__": "k", "json": row, **{name: sound(0.5) for name in ("a.wav", "b.wav")[:audios]}}
    sample = hearing("qwen2_audio").encode_sample(raw)
    assert [item.media.kind for item in sample.media] == ["audio"] * audios
    if "audios" in row:
        assert [item.media.name for item in sample.media] == ["b.wav", "a.wav"]


def test_places_and_files_that_do_not_fit(hearing, audio_row, sound) -> None:
    encoder = hearing("qwen2_audio")
    raw = audio_row(sound(0.5), sound(0.5))
    del raw["1.wav"]
    with pytest.raises(CookError) as caught:
        encoder.encode_sample(raw)
    assert (caught.value.code, caught.value.key) == ("cook.audio_count", "row")
    with pytest.raises(CookError, match=r"no place refers to 5\.flac"):
        encoder.encode_sample({**audio_row(sound(0.5)), "5.flac": sound(0.5)})
    forged = audio_row(sound(0.5))
    forged["json"]["messages"][0]["content"].append({"type": "text", "text": "<|AUDIO|>"})
    with pytest.raises(MaskError, match="control token"):
        encoder.encode_sample(forged)


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        ({"max_audios": 1}, "budget.audios"),
        ({"max_audio_tokens": 23}, "budget.audio_tokens"),
        ({"max_audio_seconds": 0.4}, "budget.audio_seconds"),
    ],
)
def test_budgets(limits, code, hearing, audio_row, sound) -> None:
    with pytest.raises(BudgetError) as caught:
        hearing("qwen2_audio", limits=SampleLimits(**limits)).encode_sample(audio_row(sound(0.5), sound(0.5)))
    assert caught.value.code == code


def test_a_count_that_differs_is_refused(hearing, audio_row, sound) -> None:
    encoder = hearing("qwen2_audio")
    sample = encoder.encode_sample(audio_row(sound(1.0)))
    other = dataclasses.replace(sample.media[0], num_tokens=26)
    with pytest.raises(MediaError, match=r"26 tokens were predicted from the header, but .* features for 25") as caught:
        encoder.batch([dataclasses.replace(sample, media=(other,))])
    assert (caught.value.code, caught.value.key) == ("media.count_differs", "row")


def test_samples_too_large_for_finite_features_are_refused(hearing, audio_row, sound) -> None:
    """A wav of another kind that is read as floats holds such numbers: each of them is finite, their power is not."""
    head = bytearray(sound(num_samples=0))
    head[20:22], head[34:36], head[32:34] = b"\3\0", b"\x20\0", b"\4\0"
    data = np.full(8000, 1e20, dtype="<f4").tobytes()
    head[40:44] = len(data).to_bytes(4, "little")
    sample = hearing("qwen2_audio").encode_sample(audio_row(sound(1.0), bytes(head) + data))
    with pytest.raises(MediaError, match=r"1\.wav: its samples are so large") as caught:
        hearing("qwen2_audio").batch([sample])
    assert caught.value.code == "media.not_finite"


def test_encoders_that_do_not_hear_refuse(encoder_of, audio_row, sound) -> None:
    with pytest.raises(MediaError, match="is audio, which this encoder") as caught:
        encoder_of("qwen2_5_vl").encode_sample(audio_row(sound(0.5)))
    assert caught.value.code == "media.unsupported"
    with pytest.raises(CapabilityError, match="takes no audio"):
        encoder_of("qwen2_5_vl", audio=AudioConfig(too_long="cut"))


def test_videos_beside_audio_are_refused_by_who_only_hears(hearing, audio_row, sound, clip) -> None:
    raw = audio_row(sound(0.5))
    raw["json"]["messages"][0]["content"].insert(1, {"type": "video", "video": "9.mp4"})
    with pytest.raises(MediaError, match=r"9.mp4 is video, which this encoder"):
        hearing("qwen2_audio").encode_sample({**raw, "9.mp4": clip("mp4", frames=3)})


@pytest.mark.parametrize("model_type", ["qwen3_omni_moe", "phi4_multimodal", "voxtral"])
def test_models_that_are_not_known_say_what_is_missing(model_type, hearing) -> None:
    with pytest.raises(CapabilityError, match=f"'{model_type}' is not supported: packloom does not know the "):
        TaskEncoder.from_processor(hearing("qwen2_audio").parts.tokenizer, model_type=model_type)


def test_extractors_of_another_kind_are_refused(hearing) -> None:
    parts = hearing("qwen2_audio").parts
    for change, words in (
        ({"feature_extractor_type": "SeamlessM4TFeatureExtractor"}, "needs a WhisperFeatureExtractor"),
        ({"dither": 0.1}, "global generator"),
        ({"padding_side": "left"}, "padded on the right"),
    ):
        settings = {**parts.audio_settings, **change}
        with pytest.raises(CapabilityError, match=words):
            type(hearing("qwen2_audio"))(dataclasses.replace(parts, audio_settings=settings))


def test_a_folder_of_older_files_is_read(hearing, audio_processor_dir, audio_row, sound, tmp_path) -> None:
    """Published folders have their settings in preprocessor_config.json; it must not be taken for images."""
    folder = audio_processor_dir("qwen2_audio")
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    settings = json.loads((tmp_path / "processor_config.json").read_text())
    extractor = settings.pop("feature_extractor")
    (tmp_path / "processor_config.json").unlink()
    (tmp_path / "preprocessor_config.json").write_text(
        json.dumps({**extractor, "processor_class": "Qwen2AudioProcessor"})
    )
    encoder = TaskEncoder.from_pretrained(tmp_path)
    assert encoder.image_rule is None
    raw = audio_row(sound(0.5))
    assert torch.equal(encoder.encode_sample(raw).input_ids, hearing("qwen2_audio").encode_sample(raw).input_ids)


def test_a_loaded_processor_counts_as_its_folder(hearing, audio_row, sound) -> None:
    extractor = transformers.WhisperFeatureExtractor(feature_size=128)
    tokenizer = hearing("qwen2_audio").parts.tokenizer
    encoder = TaskEncoder.from_processor(transformers.Qwen2AudioProcessor(extractor, tokenizer))
    raw = audio_row(sound(0.5))
    assert torch.equal(encoder.encode_sample(raw).input_ids, hearing("qwen2_audio").encode_sample(raw).input_ids)


def test_a_dummy_for_one_tower_of_two_is_refused(hearing) -> None:
    with pytest.raises(CapabilityError, match="both images and audio"):
        _ = hearing("qwen2_5_omni").dummy
    assert hearing("qwen2_audio").dummy.media_tensors["input_features"].shape == (1, 128, 3000)


def test_settings_are_held_to_their_words() -> None:
    with pytest.raises(ConfigError, match=r"audio.too_long must be one of"):
        AudioConfig(too_long="drop")


def test_inspect_shows_how_long_it_lasts(hearing, audio_row, sound) -> None:
    text = inspect_sample(hearing("qwen2_audio"), audio_row(sound(0.5, rate=8000)))
    assert "audio 0.wav: 0.50 s at 8000 Hz → 12 tokens" in text
    assert "<|AUDIO|>×12" in text


@pytest.mark.parametrize("num_workers", [0, 2])
def test_shards_of_audio_through_the_loader(num_workers, hearing, audio_row, sound, tmp_path) -> None:
    """A cut file, an empty one and a long one are counted and skipped; the rest arrives, from workers too."""
    cut, long = sound(1.0)[:5000], sound(31.0)
    rows = [
        audio_row(sound(1.0), key="one"),
        audio_row(cut, key="cut"),
        audio_row(sound(num_samples=0), key="empty"),
        audio_row(long, key="long"),
        audio_row(key="text"),
        audio_row(sound(0.5), sound(2.0, rate=48_000), key="two"),
    ]
    write_shards(rows, tmp_path / "out")
    loader = build_loader(
        str(tmp_path / "out"),
        hearing("qwen2_audio"),
        pack_length=1024,
        epochs=1,
        shuffle=False,
        num_workers=num_workers,
        tail="drop",
    )
    batches = list(loader)
    assert sorted(key for batch in batches for key in batch["sample_keys"]) == ["one", "text", "two"]
    assert sum(len(batch.get("input_features", ())) for batch in batches) == 3
    assert loader.skipped == {"media.truncated": 1, "media.empty": 1, "media.too_long": 1}

"""DSpark batches: one shape over an epoch, masks of the plain collate, dummies, and samples that are too long."""

from __future__ import annotations

import io
import logging

import pytest
import torch
from PIL import Image

from packloom import SampleConfig, TaskEncoder, build_loader
from packloom.collates.dspark import build_dspark_dataloader, dspark_batch
from packloom.datasets import write_shards
from packloom.errors import BatchError, BudgetError, ConfigError

WIDTH = 96


def raw(number, *, image=False, words=3, question="Tell me."):
    parts = [{"type": "text", "text": question}]
    media = {}
    if image:
        buffer = io.BytesIO()
        Image.new("RGB", (56, 84), "red").save(buffer, "PNG")
        media["0.png"] = buffer.getvalue()
        parts.insert(0, {"type": "image", "image": "0.png"})
    answer = [{"type": "text", "text": " word" * words}]
    messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": answer}]
    return {"__key__": f"r{number}", "json": {"messages": messages}, **media}


#: The third batch of two is short, the second has no image.
RAWS = [raw(0, image=True), raw(1, words=7), raw(2, words=2), raw(3, words=9), raw(4, image=True, words=5)]


@pytest.fixture(scope="module")
def encoder(processor_dir):
    return TaskEncoder.from_pretrained(processor_dir("qwen2_5_vl"), max_length=WIDTH - 6)


def check_epoch(batches, encoder):
    seen = []
    for batch in batches:
        assert batch["input_ids"].shape == batch["loss_mask"].shape == batch["attention_mask"].shape == (2, WIDTH)
        assert batch["position_ids"].shape == (3, 2, WIDTH)
        assert "labels" not in batch
        assert "pixel_values" in batch
        assert not (batch["loss_mask"] & (batch["attention_mask"] == 0)).any()
        for key, ids, mask in zip(batch["sample_keys"], batch["input_ids"], batch["loss_mask"], strict=False):
            sample = encoder.encode_sample(RAWS[int(key[1:])])
            assert ids[: sample.num_tokens].tolist() == sample.input_ids.tolist()
            assert mask.nonzero()[:, 0].tolist() == sample.loss_mask.nonzero()[:, 0].tolist()
            seen.append(key)
    assert sorted(seen) == ["r0", "r1", "r2", "r3", "r4"]


def test_an_epoch_of_a_dataset(encoder):
    batches = list(build_dspark_dataloader(RAWS, encoder, max_length=WIDTH, batch_size=2, shuffle=True, seed=3))
    assert len(batches) == 3
    check_epoch(batches, encoder)
    plain = encoder.collate_fn(RAWS)
    assert sum(int(batch["loss_mask"].sum()) for batch in batches) == int(plain["loss_mask"].sum())
    assert sum(batch["num_input_tokens"] for batch in batches) == plain["num_input_tokens"]


def test_an_epoch_of_a_loader_and_its_state(encoder, tmp_path):
    write_shards(RAWS, tmp_path, samples_per_shard=5)

    def dspark():
        loader = build_loader(
            tmp_path,
            encoder,
            layout="padded",
            label_shift="none",
            pad_to_multiple_of=WIDTH,
            micro_batch_size=2,
            dummy_media="per_batch",
            epochs=1,
            shuffle=False,
        )
        return build_dspark_dataloader(loader, max_length=WIDTH)

    whole = list(dspark())
    check_epoch(whole, encoder)
    first, second = dspark(), dspark()
    next(iter(first))
    second.load_state_dict(first.state_dict())
    rest = [batch["sample_keys"] for batch in second]
    assert rest == [batch["sample_keys"] for batch in whole[1:]]
    with pytest.raises(ConfigError, match=r"needs build_loader.*label_shift='none'.*got label_shift='next_token'"):
        build_dspark_dataloader(
            build_loader(tmp_path, encoder, layout="padded", pad_to_multiple_of=WIDTH), max_length=WIDTH
        )


def test_the_dummy_of_a_batch_without_media_is_not_attended_to(encoder):
    [batch] = build_dspark_dataloader(RAWS[1:3], encoder, max_length=WIDTH, batch_size=2)
    assert batch["image_grid_thw"].tolist() == [[1, 4, 4]]
    media = torch.isin(batch["input_ids"], torch.from_numpy(encoder.media_ids))
    assert media.sum() == 6
    assert not batch["attention_mask"][media].any()
    assert batch["num_input_tokens"] == batch["attention_mask"].sum()
    [plain] = build_dspark_dataloader(RAWS[1:3], encoder, max_length=WIDTH, batch_size=2, dummy_media="off")
    assert "pixel_values" not in plain
    assert torch.equal(plain["loss_mask"], batch["loss_mask"])


def test_what_is_too_long_is_never_cut_into_its_media(encoder, caplog):
    long_answer = raw(7, words=200)
    behind = raw(8, image=True, question="Look. " * 100)
    with pytest.raises(BudgetError, match="'r7'"):
        list(build_dspark_dataloader([long_answer], encoder, max_length=WIDTH, batch_size=1))
    cutting = type(encoder)(encoder.parts, config=SampleConfig(max_length=WIDTH - 6, overlong="truncate"))
    with caplog.at_level(logging.WARNING):
        [batch] = build_dspark_dataloader([RAWS[1], behind], cutting, max_length=WIDTH, batch_size=2, on_error="skip")
    assert batch["sample_keys"] == ["r1"]
    [cut] = build_dspark_dataloader([long_answer], cutting, max_length=WIDTH, batch_size=1)
    assert 0 < cut["loss_mask"].sum() < 200
    assert batch["loss_mask"][1].sum() == 0
    assert "'r8'" in caplog.text
    with pytest.raises(BatchError, match="given 1 samples, 0 of them good"):
        list(build_dspark_dataloader([behind], encoder, max_length=WIDTH, batch_size=1, on_error="skip"))


def test_batches_that_are_none_of_dsparks(encoder):
    with pytest.raises(ConfigError, match="max_length is 90; with 6 tokens for a dummy medium it must be at most 84"):
        build_dspark_dataloader(RAWS, encoder, max_length=90, batch_size=1)
    with pytest.raises(ConfigError, match="needs batch_size"):
        build_dspark_dataloader(RAWS, encoder, max_length=WIDTH)
    batch = encoder.collate_fn(RAWS[:2])
    with pytest.raises(BatchError, match="tokens wide, a DSpark batch 96"):
        dspark_batch(batch, max_length=96)
    width = batch["input_ids"].shape[1]
    with pytest.raises(BatchError, match=r"nothing is trained on in the sample\(s\) 'r1'"):
        dspark_batch({**batch, "loss_mask": batch["loss_mask"] * torch.tensor([[1], [0]])}, max_length=width)
    with pytest.raises(BatchError, match="want layout 'padded' and label_shift 'none'"):
        dspark_batch(encoder.collate_fn(RAWS[:2], label_shift="next_token"), max_length=width)

"""Inputs of Megatron Core models: the media container, PackedSeqParams of old and new versions, stages, devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from packloom.collates import collate_packed, collate_padded
from packloom.errors import BatchError
from packloom.models import VisualInputs, packed_seq_params, stage_inputs
from packloom.types import EncodedSample, Row


def row(length, seed=0, images=0):
    media = {"pixel_values": torch.ones(4 * images, 6), "image_grid_thw": torch.tensor([[1, 2, 2]] * images)}
    mask = torch.arange(length) % 2 == 1
    sample = EncodedSample(
        key=f"s{seed}",
        input_ids=torch.arange(10, 10 + length),
        loss_mask=mask,
        position_ids=torch.arange(length)[None],
        token_tensors={"mm_token_type_ids": torch.zeros(length, dtype=torch.int64)},
    )
    return Row(sample=sample, media_tensors=media if images else {})


def packed(*lengths, images=0, **settings):
    rows = [row(length, seed, images) for seed, length in enumerate(lengths)]
    return collate_packed(rows, pad_id=0, label_shift="next_token", **settings)


@dataclass
class NewerParams:
    """The fields of Megatron Core's main branch that a data side fills."""

    qkv_format: Any = None
    cu_seqlens_q: Any = None
    cu_seqlens_kv: Any = None
    cu_seqlens_q_padded: Any = None
    cu_seqlens_kv_padded: Any = None
    max_seqlen_q: Any = None
    max_seqlen_kv: Any = None
    cp_group: Any = None
    total_tokens: Any = None
    pad_between_seqs: Any = None


def lists(params):
    return {
        name: value.tolist() if isinstance(value, torch.Tensor) else value
        for name, value in vars(params).items()
        if value is not None
    }


@pytest.mark.parametrize(
    ("batch", "cp_size", "logical", "physical", "longest", "gap"),
    [
        (packed(3, 5, segment_multiple=4), 1, [0, 3, 8], [0, 4, 12], 8, True),
        (packed(4, 8, segment_multiple=4), 1, [0, 4, 12], None, 8, False),
        (packed(4, 8, segment_multiple=4), 2, [0, 4, 12], [0, 4, 12], 8, False),
        (packed(3, 2, length=8), 1, [0, 3, 5], [0, 3, 8], 5, True),  # a gap behind the last segment only
    ],
)
def test_params_of_a_version_that_is_told_of_gaps(batch, cp_size, logical, physical, longest, gap):
    params = packed_seq_params(batch, kind=NewerParams, cp_size=cp_size, cp_group="cp")
    want = {"qkv_format": "thd", "cu_seqlens_q": logical, "cu_seqlens_kv": logical, "cp_group": "cp"}
    if physical is not None:
        want |= {"cu_seqlens_q_padded": physical, "cu_seqlens_kv_padded": physical}
    total = (physical or logical)[-1]
    want |= {"max_seqlen_q": longest, "max_seqlen_kv": longest, "total_tokens": total, "pad_between_seqs": gap}
    assert lists(params) == want
    assert params.cu_seqlens_q.dtype == torch.int32
    assert type(params.max_seqlen_q) is int


def test_segments_that_context_parallelism_cannot_cut():
    """T = 8 is a multiple of 4, and no segment is."""
    with pytest.raises(BatchError, match=r"segments of \[3, 5\] tokens cannot each be cut .*cp_size=2"):
        packed_seq_params(packed(3, 5), kind=NewerParams, cp_size=2)


def test_params_of_megatron_core():
    kind = pytest.importorskip("megatron.core.packed_seq_params", reason="needs the extra 'megatron'").PackedSeqParams
    params = packed_seq_params(packed(3, 2, length=8))
    assert type(params) is kind
    if hasattr(params, "pad_between_seqs"):
        assert params.pad_between_seqs is True
    else:  # a gap behind the last segment is not noticed there: it counts as part of the segment
        assert params.cu_seqlens_q.tolist() == [0, 3, 8]
        assert params.cu_seqlens_q_padded.tolist() == [0, 3, 8]


def test_media_travel_in_one_container():
    batch = packed(3, 5, images=1) | {"tactile_values": torch.ones(2, 3), "tactile_grid": torch.ones(1, 3)}
    visual = VisualInputs.of(batch, extra_content=["tactile_values"], extra_geometry=["tactile_grid"])
    assert set(visual.content) == {"pixel_values", "tactile_values"}
    assert set(visual.geometry) == {"image_grid_thw", "tactile_grid"}
    assert visual.arguments() == {
        name: batch[name] for name in ("pixel_values", "tactile_values", "image_grid_thw", "tactile_grid")
    }
    assert not visual.without_content().content
    assert visual.to("meta").content["pixel_values"].device.type == "meta"
    assert VisualInputs.of(packed(3)).arguments() == {}


@pytest.mark.parametrize("stage", ["first", "middle", "last", "all"])
def test_what_each_stage_gets(stage, monkeypatch):
    monkeypatch.setattr("packloom.models.megatron._packed_seq_params_class", lambda: NewerParams)
    batch = packed(3, 5, images=1, segment_multiple=4) | {"tactile_values": torch.ones(2, 3), "rate": torch.ones(1)}
    inputs = stage_inputs(batch, stage, device="meta", extra=["rate"], extra_content=["tactile_values"])
    given = {name for name, value in inputs.arguments().items() if value is not None}
    always = {"input_ids", "position_ids", "padding_mask", "packed_seq_params", "mm_token_type_ids"}
    towers = {"pixel_values", "tactile_values"} if stage in ("first", "all") else set()
    loss = {"labels", "loss_mask"} if stage in ("last", "all") else set()
    assert given == always | towers | loss | {"image_grid_thw", "rate"}
    assert inputs.packed_seq_params.cu_seqlens_q.device.type == "meta"
    assert inputs.input_ids.device.type == "meta"


def test_targets_are_shifted_and_weighed_where_that_is_still_to_do():
    rows = [row(3, 0), row(4, 1)]
    batch = collate_padded(rows, pad_id=0, label_shift="none")
    inputs = stage_inputs(batch, "last")
    assert inputs.packed_seq_params is None
    assert inputs.labels.tolist() == [[11, -100, -100, -100], [11, -100, 13, -100]]
    assert inputs.loss_mask.tolist() == [[1, 0, 0, 0], [1, 0, 1, 0]]
    weighed = stage_inputs(batch, "last", per_sample=True)
    assert weighed.loss_mask.tolist() == [[1, 0, 0, 0], [0.5, 0, 0.5, 0]]


def test_padding_on_the_left_is_refused():
    batch = collate_padded([row(3), row(4, 1)], pad_id=0, label_shift="next_token")
    with pytest.raises(BatchError, match="padding must be on the right"):
        stage_inputs({**batch, "attention_mask": batch["attention_mask"].flip(-1)}, "first")
    with pytest.raises(BatchError, match="no position_ids"):
        stage_inputs({"input_ids": batch["input_ids"]}, "first")

"""hf_model_inputs: the arguments written out by hand, the flash kernels' view of them, and what is refused."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, flash_attention_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from packloom.collates import collate_packed
from packloom.errors import BatchError
from packloom.models import hf_model_inputs

IDS = torch.arange(12)[None]


def packed(**changed):
    """Segments of 3 and 5 tokens in 12, from the example of the batch contract."""
    batch = {
        "input_ids": IDS,
        "position_ids": torch.tensor([[0, 1, 2, 0, 0, 1, 2, 3, 4, 0, 0, 0]]),
        "cu_seqlens_q": torch.tensor([0, 3, 8], dtype=torch.int32),
        "cu_seqlens_kv": torch.tensor([0, 3, 8], dtype=torch.int32),
        "cu_seqlens_q_padded": torch.tensor([0, 4, 12], dtype=torch.int32),
        "cu_seqlens_kv_padded": torch.tensor([0, 4, 12], dtype=torch.int32),
        "max_seqlen_q": 8,
        "max_seqlen_kv": 8,
        "labels": torch.full((1, 12), -100),
        "loss_mask": torch.zeros(1, 12),
        "label_shift": "next_token",
        "source_sample_num": 2,
    }
    return {name: value for name, value in (batch | changed).items() if value is not ...}


def padded(**changed):
    batch = {
        "input_ids": IDS.view(2, 6),
        "position_ids": torch.arange(6).expand(2, 6),
        "attention_mask": torch.ones(2, 6, dtype=torch.int64),
        "padding_mask": torch.zeros(2, 6, dtype=torch.bool),
    }
    return {name: value for name, value in (batch | changed).items() if value is not ...}


def test_packed_one_axis_positions_restart_per_physical_segment():
    inputs = hf_model_inputs(packed())
    assert inputs["position_ids"].tolist() == [[0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7]]
    assert inputs["attention_mask"] is None
    assert inputs["use_cache"] is False
    assert inputs.keys() == {"input_ids", "position_ids", "attention_mask", "use_cache"}


def test_packed_mrope_positions_get_the_restarting_row_in_front():
    mrope = torch.arange(36).view(3, 1, 12)
    positions = hf_model_inputs(packed(position_ids=mrope))["position_ids"]
    assert positions.shape == (4, 1, 12)
    assert positions.dtype == torch.int64
    assert positions[0].tolist() == [[0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7]]
    assert torch.equal(positions[1:], mrope)


def test_without_gaps_the_logical_boundaries_count():
    batch = packed(
        input_ids=IDS[:, :8],
        position_ids=torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4]]),
        cu_seqlens_q_padded=...,
        cu_seqlens_kv_padded=...,
        max_seqlen_q=5,
        max_seqlen_kv=5,
    )
    assert hf_model_inputs(batch)["position_ids"].tolist() == [[0, 1, 2, 0, 1, 2, 3, 4]]
    flash = hf_model_inputs(batch, attn="flash_attention_2")
    assert flash["cu_seq_lens_q"].tolist() == flash["cu_seq_lens_k"].tolist() == [0, 3, 8]
    assert (flash["max_length_q"], flash["max_length_k"]) == (5, 5)


def test_flash_attention_gets_the_physical_boundaries():
    inputs = hf_model_inputs(packed(), attn="flash_attention_2")
    assert inputs["cu_seq_lens_q"].tolist() == inputs["cu_seq_lens_k"].tolist() == [0, 4, 12]
    assert inputs["cu_seq_lens_q"].dtype == torch.int32
    assert (inputs["max_length_q"], inputs["max_length_k"]) == (8, 8)
    assert type(inputs["max_length_q"]) is int


@pytest.mark.parametrize("axes", [None, 3])
def test_padded_fields_pass_as_they_are(axes):
    positions = torch.arange(6).expand(*filter(None, [axes]), 2, 6)
    batch = padded(position_ids=positions, pixel_values=torch.ones(4, 2), image_grid_thw=torch.tensor([[1, 2, 2]]))
    inputs = hf_model_inputs(batch, attn="flash_attention_2")
    assert inputs.keys() == {*batch, "use_cache"} - {"padding_mask"}
    assert all(inputs[name] is batch[name] for name in inputs.keys() - {"use_cache"})


def test_labels_are_given_shifted_when_asked():
    own = torch.tensor([[7, 8, 9, 10, -100, -100], [-100, -100, 5, 6, 7, 8]])
    inputs = hf_model_inputs(padded(labels=own, label_shift="none"), labels=True)
    want = [[8, 9, 10, -100, -100, -100], [-100, 5, 6, 7, 8, -100]]
    assert inputs["labels"].tolist() == inputs["shift_labels"].tolist() == want


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (packed(position_ids=...), "no position_ids"),
        (padded(attention_mask=...), "no attention_mask"),
        (padded(attention_mask=None), "no attention_mask"),
        (padded(input_ids=...), "no input_ids"),
        (padded(position_ids=torch.arange(6)), r"must be \[2, 6\] like input_ids, or \[3, 2, 6\]"),
        (packed(position_ids=torch.zeros(4, 1, 12, dtype=torch.int64)), r"got \[4, 1, 12\]"),
        (padded(position_ids=torch.zeros(2, 6)), "must be int64, got torch.float32"),
        (packed(attention_mask=torch.ones(1, 12)), "attention_mask must be None"),
        (packed(position_ids=torch.arange(12)[None]), "anew in every segment"),
        (packed(cu_seqlens_q_padded=torch.tensor([0, 4, 11])), r"rise from 0 to T = 12, got \[0, 4, 11\]"),
        (packed(cu_seqlens_q_padded=torch.tensor([1, 4, 12])), "rise from 0"),
        (packed(cu_seqlens_q_padded=torch.tensor([0, 4, 4, 12])), "rise from 0"),
        (packed(cu_seqlens_q_padded=torch.tensor([], dtype=torch.int32)), "rise from 0"),
        (packed(cu_seqlens_q_padded=torch.tensor([0, 2, 12])), r"\[0, 3, 8\] does not fit"),
        (packed(cu_seqlens_q=torch.tensor([0, 8])), r"\[0, 8\] does not fit"),
        (packed(input_ids=IDS.view(2, 6), position_ids=IDS.view(2, 6)), r"must be \[1, T\], got \[2, 6\]"),
        (packed(pixels=torch.ones(1)), "'pixels'"),
    ],
)
def test_a_batch_that_breaks_the_contract_is_refused(batch, message):
    with pytest.raises(BatchError, match=message):
        hf_model_inputs(batch)


def varlen_attention(module, query, key, value, attention_mask, **kwargs):
    """What a flash kernel computes, from the boundaries alone."""
    assert attention_mask is None
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    bounds = kwargs["cu_seq_lens_q"].tolist()
    assert kwargs["max_length_q"] == max(b - a for a, b in pairwise(bounds))
    causal = kwargs.get("is_causal", module.is_causal)
    parts = [
        torch.nn.functional.scaled_dot_product_attention(
            *(x[:, :, a:b] for x in (query, key, value)), is_causal=causal, scale=kwargs["scaling"]
        )
        for a, b in pairwise(bounds)
    ]
    return torch.cat(parts, dim=2).transpose(1, 2), None


@pytest.fixture
def flash_like(monkeypatch):
    """An attention implementation that reads only the boundaries, under a name that says flash."""
    name = "flash_by_hand"
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, name, varlen_attention)
    monkeypatch.setitem(ALL_MASK_ATTENTION_FUNCTIONS._global_mapping, name, flash_attention_mask)
    return name


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_flash_boundaries_isolate_like_the_positions(models, make_row, flash_like, monkeypatch, family):
    model = models[family]
    rows = [make_row(family, 3, (4, 6), 5, seed=1), make_row(family, (4, 4), 9, seed=2)]
    batch = collate_packed(rows, pad_id=0, label_shift="none", segment_multiple=4)
    with torch.no_grad():
        want = model(**hf_model_inputs(batch)).logits
        for config in (model.config, model.config.text_config, model.config.vision_config):
            monkeypatch.setattr(config, "_attn_implementation_internal", flash_like)
        got = model(**hf_model_inputs(batch, attn=flash_like)).logits
    torch.testing.assert_close(got, want, rtol=0, atol=1e-4)

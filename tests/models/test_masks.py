"""Explicit masks: what each token sees, written out, and their sameness in dense, additive and block form."""

from __future__ import annotations

import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM

from packloom.collates import collate_packed
from packloom.errors import BatchError, CapabilityError, ConfigError
from packloom.models import additive_mask, block_causal_mask, flex_block_mask, forward_step, hf_model_inputs
from packloom.types import EncodedSample, Row

#: Lengths 2 and 3, multiple 4: a gap of two behind the first, of one behind the second.
SEEN = ["x.......", "xx......", "xxx.....", "xxxx....", "....x...", "....xx..", "....xxx.", "....xxxx"]


def row(length, seed):
    ids = torch.randint(1, 30, (length,), generator=torch.Generator().manual_seed(seed))
    mask = torch.ones(length, dtype=torch.bool)
    return Row(
        sample=EncodedSample(key=str(seed), input_ids=ids, loss_mask=mask, position_ids=torch.arange(length)[None])
    )


@pytest.fixture
def batch():
    return collate_packed([row(2, 0), row(3, 1)], pad_id=0, label_shift="next_token", segment_multiple=4)


def drawn(mask):
    return ["".join("x" if cell else "." for cell in line) for line in mask[0, 0].tolist()]


def test_what_each_token_sees(batch):
    mask = block_causal_mask(batch)
    assert mask.dtype == torch.bool
    assert drawn(mask) == SEEN
    lowest = torch.finfo(torch.float32).min
    assert additive_mask(mask)[0, 0, 4].tolist() == [lowest] * 4 + [0] + [lowest] * 3


def test_the_block_mask_is_the_same_rule(batch):
    mask = flex_block_mask(batch)
    assert mask.shape == (1, 1, 8, 8)
    places = torch.arange(8)
    dense = mask.mask_mod(torch.tensor(0), torch.tensor(0), places[:, None], places[None])
    assert drawn(dense[None, None]) == SEEN


def test_which_attention_gets_which_mask(batch):
    assert hf_model_inputs(batch)["attention_mask"] is None
    assert drawn(hf_model_inputs(batch, explicit_mask=True)["attention_mask"]) == SEEN
    assert hf_model_inputs(batch, attn="eager", explicit_mask=True)["attention_mask"].dtype == torch.float32
    assert type(hf_model_inputs(batch, attn="flex_attention")["attention_mask"]).__name__ == "BlockMask"
    with pytest.raises(ConfigError, match="takes no mask"):
        hf_model_inputs(batch, attn="flash_attention_2", explicit_mask=True)
    with pytest.raises(BatchError, match="one row"):
        block_causal_mask({**batch, "input_ids": batch["input_ids"].view(2, 4)})


def test_a_window_is_not_opened_by_a_mask(batch):
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = MistralConfig(vocab_size=32, num_key_value_heads=1, head_dim=8, sliding_window=2, **sizes)
    model = MistralForCausalLM(config)
    with pytest.raises(CapabilityError, match="mistral attends to a window"):
        forward_step(iter([batch]), model, explicit_mask=True)
    forward_step(iter([batch]), model)

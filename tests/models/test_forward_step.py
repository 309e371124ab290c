"""forward_step: iterators, wrappers, which logits are computed, and models that a batch does not fit."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from transformers import Qwen3_5ForConditionalGeneration

from packloom.collates import collate_packed
from packloom.errors import BatchError, CapabilityError, ConfigError
from packloom.models import forward_step, hf_model_inputs
from packloom.models.signature import check_packable

FAMILY = "qwen2_5_vl"


@pytest.fixture
def batch(make_row):
    rows = [make_row(FAMILY, 3, (4, 6), 5, seed=1), make_row(FAMILY, 8, seed=2)]
    return collate_packed(rows, pad_id=0, label_shift="next_token", segment_multiple=4)


class Stub(torch.nn.Module):
    """A model without logits_to_keep, that keeps what it was given and returns a bare tensor."""

    def __init__(self):
        super().__init__()
        self.head = torch.nn.Embedding(48, 48)

    def forward(self, input_ids, attention_mask, position_ids, pixel_values=None, image_grid_thw=None):
        self.given = {"attention_mask": attention_mask, "position_ids": position_ids, "pixel_values": pixel_values}
        return self.head(input_ids)


class Wrapper(torch.nn.Module):
    """What DDP looks like from outside."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, *inputs, **kwargs):
        return self.module(*inputs, **kwargs)


def loss_of(model, batch):
    output, loss_func = forward_step(iter([batch]), model)
    return loss_func(output)


def test_only_logits_with_a_target_are_computed(models, batch):
    output, loss_func = forward_step(iter([batch]), models[FAMILY])
    assert output.shape == (1, batch["num_loss_tokens"], 48)
    assert loss_func(output)[1] == batch["num_loss_tokens"]


def test_a_model_without_logits_to_keep_gives_all_logits(batch):
    model = Stub()
    output, loss_func = forward_step(iter([batch]), model)
    assert output.shape == (1, batch["input_ids"].shape[1], 48)
    assert loss_func(output)[1] == batch["num_loss_tokens"]
    assert model.given["attention_mask"] is None
    assert model.given["position_ids"].shape == (4, 1, batch["input_ids"].shape[1])
    assert torch.equal(model.given["pixel_values"], batch["pixel_values"])


def test_a_wrapped_model_trains_alike(models, batch):
    model = models[FAMILY]
    torch.testing.assert_close(loss_of(Wrapper(model), batch), loss_of(model, batch), rtol=0, atol=0)


def test_a_model_that_names_nothing_is_given_everything(batch):
    class Open(torch.nn.Module):
        def forward(self, **kwargs):
            self.given = kwargs
            return SimpleNamespace(logits=torch.zeros(*kwargs["input_ids"].shape, 48))

    model = Open()
    forward_step(iter([batch]), model)
    assert {"pixel_values", "mm_token_type_ids", "use_cache"} <= model.given.keys()


def test_batches_are_taken_one_by_one_and_the_end_is_stop_iteration(batch):
    iterator = iter([batch, batch])
    forward_step(iterator, Stub())
    forward_step(iterator, Stub())
    with pytest.raises(StopIteration):
        forward_step(iterator, Stub())


@pytest.mark.parametrize("not_an_iterator", [None, [], {"input_ids": 1}])
def test_what_is_no_iterator_is_refused(not_an_iterator):
    with pytest.raises(ConfigError, match=f"got {type(not_an_iterator).__name__}; pass iter"):
        forward_step(not_an_iterator, Stub())


def test_what_is_no_batch_is_refused():
    with pytest.raises(BatchError, match="mapping from field name to tensor, got Tensor"):
        forward_step(iter([torch.zeros(1)]), Stub())


def test_a_field_the_model_does_not_read_is_refused(batch):
    batch["image_sizes"] = torch.zeros(1, 2)
    with pytest.raises(BatchError, match="forward takes no image_sizes"):
        forward_step(iter([batch]), Stub())


def test_a_field_that_only_kwargs_would_swallow_is_refused(models, batch):
    batch["image_sizes"] = torch.zeros(1, 2)
    with pytest.raises(BatchError, match="forward takes no image_sizes"):
        forward_step(iter([batch]), models[FAMILY])


def test_a_key_that_the_forward_names_is_routed(batch):
    class Custom(Stub):
        def forward(self, input_ids, attention_mask, position_ids, pixel_values, image_grid_thw, my_field):
            self.mine = my_field
            return self.head(input_ids)

    model, mine = Custom(), torch.tensor([7])
    forward_step(iter([batch | {"my_field": mine}]), model)
    assert torch.equal(model.mine, mine)


def test_unlabelled_batches_are_refused(models, batch):
    del batch["labels"]
    with pytest.raises(BatchError, match="a loss needs labels"):
        forward_step(iter([batch]), models[FAMILY])


def test_layers_that_carry_state_over_a_boundary_are_refused(batch):
    with torch.device("meta"):
        kind = Qwen3_5ForConditionalGeneration
        text = {"hidden_size": 16, "num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
        model = kind(kind.config_class(text_config=text, vision_config={"depth": 1}))
    with pytest.raises(CapabilityError, match=r'qwen3_5 has linear_attention layers.*layout="padded"'):
        forward_step(iter([batch]), model)


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_one_axis_positions_do_not_pack_for_a_model_with_mrope(models, batch, family):
    check_packable(models[family], batch["position_ids"])
    with pytest.raises(
        BatchError, match=rf"{family} wants mRoPE positions \[3, 1, T\] for a packed batch, got \[1, 20\]"
    ):
        check_packable(models[family], torch.arange(20)[None])


def test_a_packed_batch_is_checked_against_the_model(models, batch):
    text = {name: value for name, value in batch.items() if name not in ("pixel_values", "image_grid_thw")}
    text["position_ids"] = hf_model_inputs(batch)["position_ids"][0]
    with pytest.raises(BatchError, match="wants mRoPE positions"):
        forward_step(iter([text]), models[FAMILY])

"""MegatronStep: stages by the model's own flags, context-parallel slices, averages, fixed lengths, real schedules."""

from __future__ import annotations

import pytest
import torch

from packloom.collates import collate_packed, collate_padded, join_slices, slice_batch
from packloom.errors import BatchError, ConfigError
from packloom.models import MegatronStep
from packloom.types import EncodedSample, Row


def row(length, seed):
    mask = torch.arange(length) % 3 > 0
    ids = torch.randint(1, 16, (length,), generator=torch.Generator().manual_seed(seed))
    sample = EncodedSample(key=str(seed), input_ids=ids, loss_mask=mask, position_ids=torch.arange(length)[None])
    return Row(sample=sample)


def padded(*lengths, multiple=1, label_shift="next_token"):
    rows = [row(length, seed) for seed, length in enumerate(lengths)]
    return collate_padded(rows, pad_id=0, label_shift=label_shift, pad_to_multiple_of=multiple)


class TinyGPT(torch.nn.Module):
    """Takes and returns what Megatron Core's GPTModel does: per-token losses on the last stage, else hidden states."""

    def __init__(self, *, pre_process=True, post_process=True):
        super().__init__()
        self.pre_process, self.post_process = pre_process, post_process
        self.head = torch.nn.Embedding(16, 16)
        torch.nn.init.normal_(self.head.weight, generator=torch.Generator().manual_seed(0))

    def forward(
        self, input_ids, position_ids, attention_mask, labels=None, loss_mask=None, packed_seq_params=None, **media
    ):
        self.seen = {"labels": labels, "loss_mask": loss_mask, **media}
        hidden = self.head(input_ids)
        if not self.post_process:
            return hidden
        # like vocab-parallel cross entropy, it knows no ignored label, and gives its position some finite loss
        return torch.nn.functional.cross_entropy(hidden.mT, labels.clamp(min=0), reduction="none")


class SlicingGPT(TinyGPT):
    """Cuts the whole row over context-parallel ranks inside, as vision-language models do."""

    def __init__(self, rank, size):
        super().__init__()
        self.rank, self.size = rank, size

    def forward(self, input_ids, position_ids, attention_mask, labels=None, loss_mask=None):
        losses = super().forward(input_ids, position_ids, attention_mask, labels)
        cut = {"input_ids": input_ids, "labels": losses, "loss_mask": loss_mask}
        part = slice_batch(cut, cp_rank=self.rank, cp_size=self.size)
        return part["labels"], part["loss_mask"]


def reference(batch):
    return torch.nn.functional.cross_entropy(TinyGPT().head(batch["input_ids"]).mT, batch["labels"], reduction="none")


def test_a_whole_model_sums_over_supervised_tokens():
    batch = padded(5, 8)
    losses, loss_func = MegatronStep()(iter([batch]), TinyGPT())
    loss, number, report = loss_func(losses)
    torch.testing.assert_close(loss, reference(batch).sum())
    assert number == batch["num_loss_tokens"] > 0
    assert report["lm loss"].tolist() == pytest.approx([loss.item(), int(number)])
    loss.backward()


@pytest.mark.parametrize(
    ("flags", "labels"), [((True, False), False), ((False, False), False), ((False, True), True), ((True, True), True)]
)
def test_the_models_flags_say_its_stage(flags, labels):
    model = TinyGPT(pre_process=flags[0], post_process=flags[1])
    MegatronStep()(iter([padded(5)]), torch.nn.Sequential(model)[0])
    assert (model.seen["labels"] is not None) == labels


def test_media_that_the_model_does_not_name_are_refused_unless_the_user_vouches_for_them():
    batch = padded(5) | {"pixel_values": torch.ones(4, 6)}
    model = TinyGPT()
    with pytest.raises(BatchError, match="forward takes no pixel_values"):
        MegatronStep()(iter([batch]), model)
    touch = {"touch_values": torch.ones(4, 6)}
    MegatronStep(extra_content=("touch_values",))(iter([padded(5) | touch]), model)
    assert model.seen["touch_values"] is touch["touch_values"]
    with pytest.raises(BatchError, match="no stage is known to read 'touch_values'"):
        MegatronStep()(iter([padded(5) | touch]), model)


@pytest.mark.parametrize("average", ["tokens", "samples"])
def test_context_parallel_parts_add_up(average):
    batch = padded(5, 8, 3, multiple=8)
    whole, loss_func = MegatronStep(average=average)(iter([batch]), TinyGPT())
    want = loss_func(whole)
    parts = []
    for rank in range(2):
        step = MegatronStep(average=average, cp_size=2, cp_rank=rank)
        losses, loss_func = step(iter([batch]), SlicingGPT(rank, 2))
        assert losses.shape == (3, 4)
        parts.append(loss_func(losses))
    torch.testing.assert_close(parts[0][0] + parts[1][0], want[0])
    assert int(parts[0][1] + parts[1][1]) == int(want[1]) == (3 if average == "samples" else batch["num_loss_tokens"])


def test_lengths_that_a_pipeline_cannot_take():
    step = MegatronStep(fixed_length=8)
    step(iter([padded(5, 8)]), TinyGPT())
    with pytest.raises(BatchError, match=r"S = 5, fixed_length is 8: .*variable_seq_lengths"):
        step(iter([padded(5)]), TinyGPT())
    with pytest.raises(BatchError, match=r"5 tokens cannot be cut into 2 chunks.*cp_size=2"):
        MegatronStep(cp_size=2)(iter([padded(5)]), TinyGPT())
    with pytest.raises(ConfigError, match=r"cp_rank 2 is not in 0\.\.1"):
        MegatronStep(cp_size=2, cp_rank=2)
    with pytest.raises(ConfigError, match="average must be one of tokens, samples, got 'rows'"):
        MegatronStep(average="rows")


def test_slices_of_losses_join_to_the_whole():
    batch = padded(6, 8, multiple=8)
    parts = [
        dict(
            zip(
                ("losses", "mask"),
                SlicingGPT(rank, 2)(batch["input_ids"], None, None, batch["labels"], batch["loss_mask"]),
                strict=True,
            )
        )
        for rank in range(2)
    ]
    whole = join_slices(parts, torch.tensor([0, 8]), ["losses", "mask"])
    assert torch.equal(whole["mask"], batch["loss_mask"])


def test_packed_needs_megatron_core_and_passes_its_params():
    pytest.importorskip("megatron.core", reason="needs the extra 'megatron'")
    rows = [row(3, 0), row(5, 1)]
    batch = collate_packed(rows, pad_id=0, label_shift="next_token", segment_multiple=4)
    model = TinyGPT()
    losses, loss_func = MegatronStep()(iter([batch]), model)
    assert losses.shape == (1, 12)
    assert loss_func(losses)[1] == batch["num_loss_tokens"]

"""Raw samples go in; the arguments of a plain Hugging Face model's forward come out, labels included."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from packloom.errors import ConfigError
from packloom.models.hf import hf_model_inputs
from packloom.types import Batch, LabelShift, Layout, RawSample


class CollatingEncoder(Protocol):
    """What this collate needs of an encoder; ``packloom.TaskEncoder`` is one."""

    def collate_fn(
        self, raws: Sequence[RawSample], *, layout: Layout = "padded", label_shift: LabelShift = "none"
    ) -> Batch: ...


@dataclass(frozen=True, kw_only=True)
class HFCollate:
    """``data_collator`` of Hugging Face's Trainer, or ``collate_fn`` of a DataLoader, for raw samples. Picklable.

    ``encoder.collate_fn`` itself does for padded rows. This also packs, with the positions or masks that ``attn`` reads
    (see ``hf_model_inputs``), and gives the model nothing that it has no argument for. ``labels`` and ``shift_labels``
    are next-token targets already, which a model's loss takes as they are.

    Give the Trainer ``remove_unused_columns=False``: it takes the fields of raw samples for columns that no model
    reads. Raises ConfigError where it has removed them, and SampleError for a bad sample.
    """

    encoder: CollatingEncoder
    layout: Layout = "padded"
    attn: str = "sdpa"

    def __call__(self, raws: Sequence[RawSample]) -> dict[str, Any]:
        """One batch of all ``raws``."""
        if not all(raws):
            raise ConfigError(
                "the raw samples have no fields: give TrainingArguments(remove_unused_columns=False), else the Trainer"
                " removes all fields that are no argument of the model"
            )
        batch = self.encoder.collate_fn(raws, layout=self.layout, label_shift="next_token")
        return hf_model_inputs(batch, attn=self.attn, labels=True)

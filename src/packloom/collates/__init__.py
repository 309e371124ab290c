"""The batch layouts: padding, packing, labels, and the tables of per-token and media tensors."""

from packloom.collates.alignment import FP8_MULTIPLES, segment_multiple
from packloom.collates.collate import collate
from packloom.collates.context_parallel import join_slices, slice_batch, zigzag_places
from packloom.collates.dummy_media import DummyMedia, make_dummy
from packloom.collates.media import MEDIA_FIELDS, MediaField
from packloom.collates.packed import collate_packed
from packloom.collates.padded import collate_padded
from packloom.collates.tensors import CORE_FIELDS, EXTRA_FIELDS, TokenField

__all__ = [
    "CORE_FIELDS",
    "EXTRA_FIELDS",
    "FP8_MULTIPLES",
    "MEDIA_FIELDS",
    "DummyMedia",
    "MediaField",
    "TokenField",
    "collate",
    "collate_packed",
    "collate_padded",
    "join_slices",
    "make_dummy",
    "segment_multiple",
    "slice_batch",
    "zigzag_places",
]

"""The one entry to both layouts: rows and settings go in, a batch that keeps the batch contract comes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from packloom.collates.packed import collate_packed
from packloom.collates.padded import collate_padded
from packloom.collates.tensors import TokenField
from packloom.errors import ConfigError
from packloom.types import Batch, LabelShift, Layout, Row


def collate(
    rows: Sequence[Row],
    *,
    layout: Layout,
    label_shift: LabelShift,
    pad_id: int,
    segment_multiple: int = 1,
    pad_to_multiple_of: int = 1,
    length: int | None = None,
    always_padded_boundaries: bool = False,
    token_fields: Sequence[TokenField] = (),
    media_joins: Mapping[str, str] = MappingProxyType({}),
    dummy: Row | None = None,
) -> Batch:
    """All rows as one batch, in their order; see ``collate_packed`` and ``collate_padded`` for shapes and errors.

    ``length`` fixes T or S. ``token_fields`` registers token tensors that a family's samples bring beside the built-in
    table; ``media_joins`` maps media keys that do not simply concatenate, or that no table knows, to their rule.
    ``dummy`` is the medium of a batch that has none, see ``dummy_media``.
    """
    if layout == "packed":
        return collate_packed(
            rows,
            pad_id=pad_id,
            label_shift=label_shift,
            segment_multiple=segment_multiple,
            pad_to_multiple_of=pad_to_multiple_of,
            length=length,
            always_padded_boundaries=always_padded_boundaries,
            token_fields=token_fields,
            media_joins=media_joins,
            dummy=dummy,
        )
    if layout != "padded":
        raise ConfigError(f"layout must be 'packed' or 'padded', got {layout!r}")
    if always_padded_boundaries:
        raise ConfigError("always_padded_boundaries is about segment boundaries, which the padded layout does not have")
    return collate_padded(
        rows,
        pad_id=pad_id,
        label_shift=label_shift,
        segment_multiple=segment_multiple,
        pad_to_multiple_of=pad_to_multiple_of,
        length=length,
        token_fields=token_fields,
        media_joins=media_joins,
        dummy=dummy,
    )

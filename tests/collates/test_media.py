"""Media tensors of several rows, by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch

from packloom.collates import collate
from packloom.errors import BatchError
from packloom.types import Batch, Row

MakeRow = Callable[..., Row]


def _collate(*rows: Row, joins: Mapping[str, str] | None = None) -> Batch:
    return collate(rows, layout="packed", label_shift="none", pad_id=0, media_joins=joins or {})


def test_rows_are_concatenated_in_order_and_text_adds_nothing(make_row: MakeRow) -> None:
    two = {"pixel_values": torch.tensor([[1.0], [2.0], [3.0]]), "image_grid_thw": torch.tensor([[1, 1, 1], [1, 2, 1]])}
    one = {"pixel_values": torch.tensor([[4.0], [5.0]]), "image_grid_thw": torch.tensor([[1, 1, 2]])}
    batch = _collate(make_row([1], media=two), make_row([2]), make_row([3], media=one))
    assert batch["pixel_values"].tolist() == [[1.0], [2.0], [3.0], [4.0], [5.0]]
    assert batch["image_grid_thw"].tolist() == [[1, 1, 1], [1, 2, 1], [1, 1, 2]]
    swapped = _collate(make_row([3], media=one), make_row([1], media=two))
    assert swapped["pixel_values"].tolist() == [[4.0], [5.0], [1.0], [2.0], [3.0]]


def test_image_and_video_keys_travel_apart(make_row: MakeRow) -> None:
    image = {"pixel_values": torch.tensor([[1.0]]), "image_grid_thw": torch.tensor([[1, 1, 1]])}
    video = {
        "pixel_values_videos": torch.tensor([[7.0], [8.0]]),
        "video_grid_thw": torch.tensor([[2, 1, 1]]),
        "second_per_grid_ts": torch.tensor([0.5]),
    }
    batch = _collate(make_row([1], media=video), make_row([2], media=image), make_row([3], media=video | image))
    assert batch["pixel_values_videos"].tolist() == [[7.0], [8.0], [7.0], [8.0]]
    assert batch["pixel_values"].tolist() == [[1.0], [1.0]]
    assert batch["second_per_grid_ts"].tolist() == [0.5, 0.5]
    assert batch["video_grid_thw"].tolist() == [[2, 1, 1], [2, 1, 1]]


def test_no_media_no_keys(make_row: MakeRow) -> None:
    empty = {"pixel_values": torch.zeros(0, 2), "image_grid_thw": torch.zeros(0, 3, dtype=torch.int64)}
    for batch in (_collate(make_row([1])), _collate(make_row([1], media=empty))):
        assert not {"pixel_values", "image_grid_thw"} & batch.keys()


def test_pixels_keep_their_dtype(make_row: MakeRow) -> None:
    raw = {"pixel_values": torch.tensor([[250]], dtype=torch.uint8)}
    assert _collate(make_row([1], media=raw), make_row([1], media=raw))["pixel_values"].dtype == torch.uint8


def test_an_unknown_key_is_named_and_can_be_made_known(make_row: MakeRow) -> None:
    row = make_row([1], key="odd", media={"depth": torch.tensor([[1.0]])})
    with pytest.raises(BatchError, match=r"sample 'odd' has a media tensor 'depth'.*media_joins"):
        _collate(row)
    assert _collate(row, row, joins={"depth": "concat"})["depth"].tolist() == [[1.0], [1.0]]


def test_a_key_is_joined_by_its_rule(make_row: MakeRow) -> None:
    small = {"pixel_values": torch.ones(1, 1, 1, 2), "image_sizes": torch.tensor([[1, 2]])}
    tall = {"pixel_values": torch.ones(1, 1, 2, 1), "image_sizes": torch.tensor([[2, 1]])}
    rows = [make_row([1], media=small), make_row([2], media=tall)]
    batch = _collate(*rows, joins={"pixel_values": "pad_images"})
    assert batch["pixel_values"].tolist() == [[[[1, 1], [0, 0]]], [[[1, 0], [1, 0]]]]
    assert batch["image_sizes"].tolist() == [[1, 2], [2, 1]]
    with pytest.raises(BatchError, match="no join of media tensors is called 'stack'"):
        _collate(*rows, joins={"pixel_values": "stack"})


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        # patches of two sizes are two models' patches
        (
            {"pixel_values": torch.ones(1, 4)},
            {"pixel_values": torch.ones(1, 6)},
            r"pixel_values of the samples a, b cannot be joined: .*\[1, 4\], \[1, 6\]",
        ),
        (
            {"pixel_values": torch.ones(1, 4)},
            {"pixel_values": torch.ones(1, 4).byte()},
            "the samples a, b .* torch.uint8",
        ),
        ({"pixel_values": torch.ones(1, 4)}, {"pixel_values": torch.ones(1, 4, 1)}, "the samples a, b .* of rank 3"),
        # the grid of one row would be read for the other's pixels
        (
            {"pixel_values": torch.ones(1, 4), "image_grid_thw": torch.tensor([[1, 1, 1]])},
            {"pixel_values": torch.ones(1, 4)},
            r"'b' has the image keys \['pixel_values'\], sample 'a' has \['image_grid_thw', 'pixel_values'\]",
        ),
        (
            {},
            {"pixel_values": torch.ones(3, 4), "image_grid_thw": torch.tensor([[1, 2, 2]])},
            "'b': image_grid_thw counts 4 patches, pixel_values holds 3",
        ),
        ({}, {"pixel_values": torch.tensor(1.0)}, "'b': pixel_values must be a tensor with an axis of media"),
        ({}, {"second_per_grid_ts": [0.5]}, "'b': second_per_grid_ts must be a tensor"),
    ],
)
def test_rows_that_do_not_go_together(
    make_row: MakeRow, first: dict[str, torch.Tensor], second: dict[str, torch.Tensor], message: str
) -> None:
    with pytest.raises(BatchError, match=message):
        _collate(make_row([1], key="a", media=first), make_row([2], key="b", media=second))

"""Each join against arrays written out by hand, and what it refuses."""

from __future__ import annotations

import pytest
import torch

from packloom.collates.media_joins import JOINS, join
from packloom.errors import BatchError


def numbered(*shape: int, start: int = 1) -> torch.Tensor:
    """start, start + 1, ... in this shape."""
    size = int(torch.tensor(shape).prod())
    return torch.arange(start, start + size, dtype=torch.float32).reshape(shape)


def test_concat_keeps_row_order():
    joined = join("concat", [torch.tensor([[1, 2]]), torch.tensor([[3, 4], [5, 6]])])
    assert joined.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert joined.dtype == torch.int64


def test_concat_tiles_puts_all_tiles_on_the_second_axis():
    joined = join("concat_tiles", [numbered(1, 1, 2), numbered(1, 3, 2, start=10)])
    assert joined.tolist() == [[[1, 2], [10, 11], [12, 13], [14, 15]]]


def test_pad_tiles_adds_zero_tiles_behind_the_real_ones():
    joined = join("pad_tiles", [numbered(1, 2, 1), numbered(2, 1, 1, start=10)])
    assert joined.tolist() == [[[1], [2]], [[10], [0]], [[11], [0]]]


def test_pad_images_pads_below_and_to_the_right():
    joined = join("pad_images", [numbered(1, 1, 2, 1), numbered(1, 1, 1, 3, start=10)])
    assert joined.tolist() == [[[[1, 0, 0], [2, 0, 0]]], [[[10, 11, 12], [0, 0, 0]]]]


@pytest.mark.parametrize("name", JOINS)
def test_a_single_row_is_itself(name):
    row = numbered(1, 3, 2, 2)
    assert torch.equal(join(name, [row]), row)


@pytest.mark.parametrize("name", JOINS)
def test_rows_are_not_changed(name):
    rows = [numbered(1, 2, 2, 2), numbered(1, 2, 2, 2, start=50)]
    joined = join(name, rows)
    joined.zero_()
    assert torch.equal(rows[0], numbered(1, 2, 2, 2))


def test_an_unknown_name_is_refused():
    with pytest.raises(BatchError, match="no join of media tensors is called 'stack'; known: concat, concat_tiles"):
        join("stack", [numbered(1, 2)])


def test_no_tensors_are_refused():
    with pytest.raises(BatchError, match="no media tensor to join"):
        join("concat", [])


@pytest.mark.parametrize("other", [numbered(1, 2).double(), numbered(1, 2, 1)])
def test_other_dtypes_and_ranks_are_refused(other):
    with pytest.raises(BatchError, match="number 1 is torch"):
        join("concat", [numbered(1, 2), other])


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("concat", (1, 2), (1, 3)),
        ("concat_tiles", (1, 2, 3), (1, 2, 4)),
        ("pad_tiles", (1, 2, 3), (1, 2, 4)),
        ("pad_images", (1, 3, 2, 2), (1, 4, 2, 2)),
    ],
)
def test_shapes_that_differ_elsewhere_are_refused(name, first, second):
    with pytest.raises(BatchError, match="differ outside the joined axes"):
        join(name, [numbered(*first), numbered(*second)])


def test_tiles_of_several_rows_in_one_tensor_are_refused():
    with pytest.raises(BatchError, match=r"every row must be \[1, tiles, ...\], got \[2, 1\]"):
        join("concat_tiles", [numbered(2, 1)])


@pytest.mark.parametrize(("name", "shape"), [("concat_tiles", (1,)), ("pad_tiles", (1,)), ("pad_images", (1, 2, 3))])
def test_too_few_axes_are_refused(name, shape):
    with pytest.raises(BatchError, match="needs tensors of rank"):
        join(name, [numbered(*shape)])

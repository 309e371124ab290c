"""mRoPE positions, written out by hand."""

from __future__ import annotations

from packloom.task_encoders.family import MediaBlock
from packloom.task_encoders.positions import mrope_positions, text_positions


def test_text_only():
    assert text_positions(4, []).tolist() == [[0, 1, 2, 3]]
    assert mrope_positions(3, []).tolist() == [[0, 1, 2]] * 3


def test_an_image_between_text():
    # 2 text tokens, an image of 2 rows and 3 columns, 2 text tokens
    assert mrope_positions(10, [MediaBlock(start=2, grid=(1, 2, 3))]).tolist() == [
        [0, 1, 2, 2, 2, 2, 2, 2, 5, 6],
        [0, 1, 2, 2, 2, 3, 3, 3, 5, 6],
        [0, 1, 2, 3, 4, 2, 3, 4, 5, 6],
    ]


def test_thin_images_move_the_text_on_by_their_longer_side():
    wide = mrope_positions(102, [MediaBlock(start=1, grid=(1, 1, 100))])
    high = mrope_positions(102, [MediaBlock(start=1, grid=(1, 100, 1))])
    assert wide[:, -1].tolist() == high[:, -1].tolist() == [101, 101, 101]
    assert wide[1, 1:101].tolist() == [1] * 100
    assert high[2, 1:101].tolist() == [1] * 100


def test_neighbouring_images_and_an_image_at_the_end():
    blocks = [MediaBlock(start=0, grid=(1, 1, 2)), MediaBlock(start=2, grid=(1, 2, 1))]
    assert mrope_positions(4, blocks).tolist() == [[0, 0, 2, 2], [0, 0, 2, 3], [0, 1, 2, 2]]


def test_frames_count_on_the_time_axis():
    assert mrope_positions(5, [MediaBlock(start=0, grid=(4, 1, 1))]).tolist() == [
        [0, 1, 2, 3, 4],
        [0, 0, 0, 0, 4],
        [0, 0, 0, 0, 4],
    ]

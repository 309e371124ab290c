"""The pixels of a batch lie in one piece of memory, which a worker shares and a collate does not copy."""

from __future__ import annotations

import io
import mmap

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from packloom.rooms import SegmentPool, count_reading, hand_over_room
from packloom.task_encoders.images import decode_rgb
from packloom.types import Media


class Rooms(Dataset):
    def __len__(self):
        return 1

    def __getitem__(self, index):
        room = hand_over_room((2, 3), torch.uint8)
        room[:] = torch.arange(6).view(2, 3)
        return room, room.is_shared()


def test_memory_is_shared_in_a_worker_and_only_there():
    room = hand_over_room((4, 2), torch.float32)
    assert (room.shape, room.dtype, room.is_shared()) == ((4, 2), torch.float32, False)
    [(values, was_shared)] = DataLoader(Rooms(), batch_size=None, num_workers=1)
    assert was_shared
    assert values.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_an_empty_room_is_empty():
    assert hand_over_room((0, 3), torch.uint8).shape == (0, 3)


@pytest.fixture
def pool(monkeypatch) -> SegmentPool:
    """As if this process were a worker of a loader."""
    made = SegmentPool()
    monkeypatch.setattr("packloom.rooms._pool", made)
    return made


def test_a_room_is_used_again_only_when_it_is_dead_here_and_read_there(pool):
    room = hand_over_room((4, 8), torch.int16)
    part, segment = room[1:2], pool.segment_of(room)
    assert (room.shape, room.dtype, segment.is_free) == ((4, 8), torch.int16, False)
    del room
    assert not segment.is_free  # a view of it lives
    memory = mmap.mmap(segment.descriptor, 0)
    segment.num_sent += 2
    del part
    assert not segment.is_free
    count_reading(memory)
    assert not segment.is_free  # one of two messages is still on its way
    count_reading(memory)
    assert segment.is_free
    assert pool.segment_of(hand_over_room((60,), torch.uint8)) is segment


def test_values_stay_while_a_view_lives_whatever_is_made_besides(pool):
    room = hand_over_room((3,), torch.float32)
    room[:] = torch.tensor([1.0, 2.0, 3.0])
    kept = room.numpy()[1:]
    del room
    for _ in range(5):
        hand_over_room((3,), torch.float32)[:] = 9.0
    assert kept.tolist() == [2.0, 3.0]


@pytest.mark.parametrize("later", [100_000, 10])
def test_no_more_segments_than_live_at_a_time(pool, later):
    for number in range(20):
        hand_over_room((10_000 + number,), torch.uint8)
    hand_over_room((later,), torch.uint8)
    assert len(pool._segments) == 1
    assert pool.take_gone() == ([0] if later > 20_000 else [])
    assert pool.take_gone() == []


def test_two_rooms_at_a_time_do_not_overlap(pool):
    rooms = [hand_over_room((n,), torch.int64) for n in (5, 3, 5)]
    for number, room in enumerate(rooms):
        room.fill_(number)
    assert [room.tolist() for room in rooms] == [[0] * 5, [1] * 3, [2] * 5]
    assert hand_over_room((0, 3), torch.uint8).shape == (0, 3)


def test_the_rows_of_a_batch_are_joined_without_a_copy(encoder_of, chat_row):
    encoder = encoder_of("qwen2_5_vl")
    samples = [encoder.encode_sample(chat_row(sizes)) for sizes in ([(120, 200)], [], [(64, 64), (90, 30)])]
    rows = encoder.batch(samples)
    joined = encoder.collate(rows, expand_pixels=False)["pixel_values"]
    assert joined.data_ptr() == rows[0].media_tensors["pixel_values"].data_ptr()
    alone = [encoder.batch([sample])[0].media_tensors for sample in samples]
    assert torch.equal(joined, torch.cat([made["pixel_values"] for made in alone if made]))


def test_rows_in_another_order_or_less_one_are_still_joined_right(encoder_of, chat_row):
    encoder = encoder_of("qwen2_5_vl")
    rows = encoder.batch([encoder.encode_sample(chat_row([size])) for size in ((64, 64), (120, 60), (56, 84))])
    for chosen in ([rows[0], rows[2]], rows[::-1], [rows[1]], [rows[0], rows[0]]):
        expected = torch.cat([row.media_tensors["pixel_values"] for row in chosen])
        assert torch.equal(encoder.collate(chosen, expand_pixels=False)["pixel_values"], expected)


def test_an_upright_jpeg_is_not_copied_and_carries_nothing_on():
    file = io.BytesIO()
    Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3)).save(file, "JPEG", comment=b"text")
    image = decode_rgb(Media(kind="image", name="0", data=file.getvalue()))
    with Image.open(io.BytesIO(file.getvalue())) as opened:
        assert np.array_equal(np.asarray(image), np.asarray(opened.convert("RGB")))
    assert (image.mode, image.info) == ("RGB", {})

"""Pixels as bytes and the table of their values go in; the float pixels of a Hugging Face image processor come out.

A normalised pixel depends on its byte and its channel alone. So a batch carries bytes, a quarter of the float pixels or
(where a still image stands twice in each patch) an eighth, and the table is applied where the model runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

#: Pixels that may be bytes → the keys of their table and frames, which a batch has beside them.
PIXELS = {
    "pixel_values": ("pixel_table", "pixel_frames"),
    "pixel_values_videos": ("pixel_table_videos", "pixel_frames_videos"),
}
#: All of these; they vanish when the bytes are expanded.
PIXEL_KEYS = tuple(key for keys in PIXELS.values() for key in keys)


def expand_pixels(batch: Mapping[str, Any], *, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """The batch with its PIXELS as the processor's own floats, on the device where the bytes are.

    In float32 they equal those of the Hugging Face processor bit for bit, in another ``dtype`` these after a cast. A
    batch without bytes (text only, or expanded before) is returned with the same fields.
    """
    fields = {name: value for name, value in batch.items() if name not in PIXEL_KEYS}
    for name, (table, frames) in PIXELS.items():
        if batch.get(table) is not None and fields.get(name) is not None:
            fields[name] = decode_pixels(fields[name], batch[table], frames=batch[frames], dtype=dtype)
    return fields


def decode_pixels(pixels: Tensor, table: Tensor, *, frames: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Look every byte up in the row of its channel.

    ``pixels`` [..., C, h, w] uint8, ``table`` [C, 256] float32; a table of one row serves every channel, and then any
    shape. Without ``frames`` the result has the same shape; with it, patches [P, C, h, w] become
    [P, C * frames * h * w], each channel repeated ``frames`` times: how the Qwen-VL family flattens the patches of a
    still image. A patch of a video, whose frames differ, stands here with them one below the other in h.
    """
    values = table.to(device=pixels.device, dtype=dtype)
    if pixels.device.type == "cpu" and dtype in (torch.float32, torch.float64):
        return _look_up_on_cpu(pixels, values, frames)
    places = pixels.int()
    if len(values) > 1:
        places += torch.arange(len(values), device=pixels.device, dtype=torch.int32).view(-1, 1, 1) * values.shape[1]
    found = torch.nn.functional.embedding(places, values.reshape(-1, 1)).squeeze(-1)
    if not frames:
        return found
    return found.unsqueeze(2).expand(-1, -1, frames, -1, -1).reshape(len(found), -1)


def _look_up_on_cpu(pixels: Tensor, values: Tensor, frames: int) -> Tensor:
    """As above; NumPy takes by bytes about three times as fast as torch does."""
    rows = values.numpy()
    if len(rows) == 1 and not frames:
        return torch.from_numpy(np.take(rows[0], pixels.numpy(), mode="clip"))
    *outer, channels, height, width = pixels.shape
    source = pixels.numpy().reshape(-1, channels, height * width)
    out = np.empty((len(source), channels, max(1, frames), height * width), dtype=rows.dtype)
    for channel in range(channels):
        np.take(rows[channel % len(rows)], source[:, channel], out=out[:, channel, 0], mode="clip")
        out[:, channel, 1:] = out[:, channel, :1]
    shape = (len(source), -1) if frames else (*outer, channels, height, width)
    return torch.from_numpy(out).reshape(shape)

"""Numbers of tokens and media blocks in, position ids [A, L] out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from packloom.task_encoders.family import MediaBlock


def text_positions(num_tokens: int, blocks: Sequence[MediaBlock]) -> np.ndarray:
    """Plain positions 0..L-1, shape [1, L]."""
    return np.arange(num_tokens, dtype=np.int64)[None]


def mrope_positions(num_tokens: int, blocks: Sequence[MediaBlock]) -> np.ndarray:
    """Multimodal rotary positions, shape [3, L]: the axes are (time, height, width).

    Text advances all axes by one. A block starts at the next free position p: its token in frame f, row r and column c
    stands at (p + floor(f * time_step * time_scale), p + r, p + c), and the text after it goes on at the largest
    position used plus one, or at p + ``advance`` where that is given. Source: the M-RoPE rule of Qwen2-VL (arXiv
    2409.12191), with the time steps of Qwen2.5-VL (arXiv 2502.13923); equal to ``get_rope_index`` of transformers.
    """
    positions = np.empty((3, num_tokens), dtype=np.int64)
    token, position = 0, 0
    for block in blocks:
        position = _fill_text(positions, token, block.start, position)
        frames, rows, columns = block.grid
        token = block.start + frames * rows * columns
        grid = np.indices(block.grid, dtype=np.int64).reshape(3, -1)
        if block.time_step != 1.0 or block.time_scale != 1.0:  # in float32 and this order, as transformers multiplies
            times = grid[0].astype(np.float32) * np.float32(block.time_step) * np.float32(block.time_scale)
            grid[0] = times.astype(np.int64)
        positions[:, block.start : token] = grid + position
        position += int(grid.max()) + 1 if block.advance is None else block.advance
    _fill_text(positions, token, num_tokens, position)
    return positions


def _fill_text(positions: np.ndarray, start: int, end: int, position: int) -> int:
    positions[:, start:end] = np.arange(position, position + end - start, dtype=np.int64)
    return position + end - start

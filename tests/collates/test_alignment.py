"""The one alignment rule, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from packloom.collates import segment_multiple
from packloom.errors import ConfigError


@pytest.mark.parametrize(
    ("settings", "multiple"),
    [
        ({}, 1),
        ({"tp": 8}, 1),  # without sequence parallelism tensor ranks hold whole sequences
        ({"sequence_parallel": True}, 1),
        ({"tp": 8, "sequence_parallel": True}, 8),
        ({"cp": 2}, 4),
        ({"cp": 3}, 6),
        ({"cp": 2, "tp": 3, "sequence_parallel": True}, 12),  # lcm(4, 6)
        ({"cp": 4, "tp": 2, "sequence_parallel": True}, 8),  # lcm(8, 8)
        ({"fp8": "fp8"}, 16),
        ({"fp8": "mxfp8"}, 32),
        ({"cp": 3, "fp8": "fp8"}, 48),  # lcm(6, 16)
        ({"cp": 2, "tp": 5, "sequence_parallel": True, "fp8": "mxfp8"}, 160),  # lcm(4, 10, 32)
    ],
)
def test_multiple(settings: dict[str, Any], multiple: int) -> None:
    assert segment_multiple(**settings) == multiple


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"cp": 0}, "got cp=0, tp=1"), ({"tp": -1}, "got cp=1, tp=-1"), ({"fp8": "fp4"}, "fp8, mxfp8 or None, got 'fp4'")],
)
def test_settings_that_cannot_work(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        segment_multiple(**settings)

"""The alignment that parallel dimensions and FP8 ask for is settled when a config is made, not when a batch fails."""

from __future__ import annotations

import pytest

from packloom.config import DataConfig, DistributionConfig, LoaderConfig, PackingConfig, SourceConfig
from packloom.errors import ConfigError


def config(*, pack_length=None, segment_multiple=1, pad=1, layout="packed", fp8=None, **sizes):
    return DataConfig(
        source=SourceConfig(path="shards"),
        packing=PackingConfig(pack_length=pack_length, segment_multiple=segment_multiple),
        loader=LoaderConfig(layout=layout, fp8=fp8, pad_to_multiple_of=pad),
        distribution=DistributionConfig(**sizes),
    )


@pytest.mark.parametrize(
    ("settings", "segments", "total"),
    [
        ({}, 1, 1),
        ({"cp_size": 2}, 4, 1),
        ({"cp_size": 4, "tp_size": 3, "sequence_parallel": True}, 24, 1),
        ({"tp_size": 8}, 1, 1),
        ({"tp_size": 8, "sequence_parallel": True}, 8, 1),
        ({"cp_size": 2, "segment_multiple": 6, "fp8": "mxfp8", "pad": 24}, 12, 96),
        ({"cp_size": 2, "layout": "padded", "fp8": "fp8"}, 4, 16),
    ],
)
def test_multiples(settings, segments, total):
    made = config(**settings)
    assert (made.packing.segment_multiple, made.loader.pad_to_multiple_of) == (segments, total)


def test_a_pack_length_that_is_no_multiple_is_refused_with_those_that_are():
    with pytest.raises(ConfigError, match=r"pack_length 8190 is not a multiple of segment_multiple 4 .*8188 or 8192"):
        config(pack_length=8190, cp_size=2)
    with pytest.raises(
        ConfigError, match=r"pack_length 8180 is not a multiple of pad_to_multiple_of 32 .*8160 or 8192"
    ):
        config(pack_length=8180, fp8="mxfp8")
    assert config(pack_length=8192, cp_size=2, fp8="mxfp8").packing.pack_length == 8192


@pytest.mark.parametrize("settings", [{"cp_size": 0}, {"tp_size": -1}, {"fp8": "fp4"}])
def test_sizes_that_are_none(settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        config(**settings)

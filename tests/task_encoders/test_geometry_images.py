"""Image rules with all kinds of settings against the image processors' own resize functions; nothing is decoded."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GotOcr2ImageProcessorPil, SmolVLMImageProcessorPil
from transformers.models.gemma4.image_processing_pil_gemma4 import get_aspect_ratio_preserving_size
from transformers.models.glm4v.image_processing_pil_glm4v import smart_resize
from transformers.models.pixtral.image_processing_pil_pixtral import get_resize_output_image_size

from packloom.errors import MediaError
from packloom.task_encoders.gemma4_images import Gemma4ImageRule
from packloom.task_encoders.glm_images import GlmImageRule
from packloom.task_encoders.internvl_images import InternVLImageRule
from packloom.task_encoders.kimi_images import KimiImageRule
from packloom.task_encoders.pixtral_images import PixtralImageRule
from packloom.task_encoders.smolvlm_images import SmolVLMImageRule

SIDE = st.one_of(st.integers(1, 40), st.integers(1, 6000))
GLM = GlmImageRule(
    placeholder="<i>", token="<i>", patch_size=14, merge_size=2, min_pixels=1, max_pixels=1, temporal_patch_size=2
)
INTERN = InternVLImageRule(
    token="<i>",
    start_token="[",
    end_token="]",
    tokens_per_tile=256,
    tile_height=448,
    tile_width=448,
    min_tiles=1,
    max_tiles=12,
)
PIXTRAL = PixtralImageRule(
    token="<i>", break_token="|", end_token=".", patch_size=14, merge_size=2, max_height=1540, max_width=1540
)
SMOL = SmolVLMImageRule(
    token="<i>", around_token="~", global_token="*", tokens_per_tile=64, longest_edge=2048, tile=512, splits=True
)


@settings(max_examples=400, deadline=None)
@given(SIDE, SIDE, st.sampled_from([(12_544, 9_633_792), (1, 50_000), (400_000, 400_000)]), st.sampled_from([1, 2]))
def test_glm_resizes_as_the_processor(height, width, bounds, frames):
    rule = dataclasses.replace(GLM, min_pixels=bounds[0], max_pixels=bounds[1], temporal_patch_size=frames)
    try:
        expected = smart_resize(
            num_frames=frames,
            height=height,
            width=width,
            temporal_factor=frames,
            factor=28,
            min_pixels=bounds[0],
            max_pixels=bounds[1],
        )
    except ValueError:
        with pytest.raises(MediaError, match=f"an image of {width}x{height} is thinner than 200:1"):
            rule.measure(height, width)
        return
    assert rule.resized(height, width) == expected
    assert rule.measure(height, width).runs == (expected[0] * expected[1] // 784,)


@settings(max_examples=400, deadline=None)
@given(SIDE, SIDE, st.sampled_from([70, 140, 280, 560, 1120]), st.sampled_from([2, 3]))
def test_gemma4_keeps_the_shape_as_the_processor(height, width, tokens, pooling):
    rule = Gemma4ImageRule(
        token="<i>", start_token="[", end_token="]", patch_size=16, pooling=pooling, max_tokens=tokens
    )
    tall, wide = get_aspect_ratio_preserving_size(height, width, 16, tokens * pooling**2, pooling)
    assert rule.grid(height, width) == (tall // (16 * pooling), wide // (16 * pooling))
    assert rule.measure(height, width).num_patches == tokens * pooling**2


@settings(max_examples=400, deadline=None)
@given(SIDE, SIDE, st.sampled_from([(14, 2, 1540), (16, 1, 1024), (14, 2, 280)]))
def test_pixtral_resizes_as_the_processor(height, width, geometry):
    patch_size, merge_size, longest = geometry
    rule = dataclasses.replace(
        PIXTRAL, patch_size=patch_size, merge_size=merge_size, max_height=longest, max_width=longest
    )
    side = patch_size * merge_size
    image = np.broadcast_to(np.zeros((), dtype=np.uint8), (3, height, width))
    tall, wide = get_resize_output_image_size(image, (longest, longest), (side, side), "channels_first")
    if not tall or not wide:
        with pytest.raises(MediaError, match="leaves no pixel of its short side"):
            rule.measure(height, width)
        return
    layout = rule.measure(height, width)
    assert layout.runs == (wide // side,) * (tall // side)
    assert layout.text.count("|") == tall // side - 1
    assert layout.num_patches == tall * wide // patch_size**2


def test_pixtral_rows_end_on_breaks_and_the_last_on_its_end():
    layout = PIXTRAL.measure(56, 70)
    assert (layout.text, layout.runs) == ("<i>|<i>.", (3, 3))


@settings(max_examples=400, deadline=None)
@given(SIDE, SIDE, st.integers(1, 3), st.sampled_from([1, 3, 6, 12]), st.sampled_from([(448, 448), (224, 336)]))
def test_internvl_tiles_as_the_processor(height, width, fewest, most, tile):
    rule = dataclasses.replace(INTERN, min_tiles=fewest, max_tiles=most, tile_height=tile[0], tile_width=tile[1])
    images = GotOcr2ImageProcessorPil(
        size={"height": tile[0], "width": tile[1]}, min_patches=fewest, max_patches=most, crop_to_patches=True
    )
    tiles = images.get_number_of_image_patches(height, width)
    layout = rule.measure(height, width)
    assert (layout.text, layout.runs) == ("[<i>]", (256 * tiles,))
    assert layout.num_patches == tiles * (tile[0] // 14) * (tile[1] // 14)


@settings(max_examples=300, deadline=None)
@given(SIDE, SIDE, st.sampled_from([(512, 16384), (40, 16384), (512, 64)]))
def test_kimi_resizes_as_the_processor(height, width, limits):
    pytest.importorskip("torchvision", reason="the Kimi image processor needs torchvision")
    from transformers.models.kimi_k25.image_processing_kimi_k25 import navit_resize  # noqa: PLC0415

    max_side, max_patches = limits
    rule = KimiImageRule(token="<i>", patch_size=14, merge_size=2, max_patches=max_patches, max_side=max_side)
    _, padded = navit_resize(height, width, 14, 2, max_patches, max_side)
    assert rule.padded(height, width) == padded
    assert rule.measure(height, width).grid_thw == (1, padded[0] // 14, padded[1] // 14)


def smolvlm_splits(rule: SmolVLMImageRule, height: int, width: int) -> tuple[int, int]:
    """(rows, columns) by the image processor's own code, on an image of one byte seen through strides."""

    class Shapes(SmolVLMImageProcessorPil):
        def _resized(self, size):
            return np.broadcast_to(np.zeros((), dtype=np.uint8), (3, size.height, size.width))

    images = Shapes(size={"longest_edge": rule.longest_edge}, max_image_size={"longest_edge": rule.tile})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "transformers.image_processing_backends.PilBackend.resize", lambda self, _, size, **__: self._resized(size)
        )
        image = np.broadcast_to(np.zeros((), dtype=np.uint8), (3, height, width))
        image = images.resize(image, images.size)
        image = images.resize_for_vision_encoder(image, rule.tile)
        _, rows, columns = images.split_images(image, {"longest_edge": rule.tile})
    return rows, columns


@settings(max_examples=200, deadline=None)
@given(SIDE, SIDE, st.sampled_from([(2048, 512), (1536, 384), (1456, 364), (364, 364), (5000, 700)]))
def test_smolvlm_splits_as_the_processor(height, width, geometry):
    rule = dataclasses.replace(SMOL, longest_edge=geometry[0], tile=geometry[1])
    rows, columns = smolvlm_splits(rule, height, width)
    assert rule.grid(height, width) == (rows, columns)
    layout = rule.measure(height, width)
    assert layout.runs == (64,) * (rows * columns + 1)
    assert rule.expected(layout) == (rows, columns, (geometry[1], geometry[1]))


def test_smolvlm_writes_rows_then_the_whole_image():
    layout = dataclasses.replace(SMOL, longest_edge=1024).measure(512, 1024)
    assert layout.text == "~<row_1_col_1><i>~<row_1_col_2><i>\n\n~*<i>~"
    assert layout.runs == (64, 64, 64)


def test_smolvlm_without_splitting_is_one_tile():
    layout = dataclasses.replace(SMOL, splits=False).measure(512, 1024)
    assert (layout.text, layout.runs) == ("~*<i>~", (64,))
    assert SMOL.expected(layout) == (0, 0, (512, 512))

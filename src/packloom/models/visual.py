"""The media fields of a batch go in; one typed container that knows which pipeline stage reads them comes out."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from packloom.models.device import to_device

#: What a vision or audio tower reads: it runs on the first pipeline stage only.
CONTENT_KEYS = (
    "pixel_values",
    "pixel_values_videos",
    "pixel_attention_mask",
    "pixel_attention_mask_videos",
    "image_sizes",
    "image_position_ids",
    "video_position_ids",
    "batch_num_images",
    "num_crops",
    "spatial_shapes",
    "input_features",
    "input_features_mask",
    "feature_attention_mask",
)
#: What the positions are computed from, which some models do again on every stage.
GEOMETRY_KEYS = (
    "image_grid_thw",
    "image_grid_hw",
    "image_grid_hws",
    "video_grid_thw",
    "second_per_grid_ts",
    "video_second_per_grid",
)


@dataclass(frozen=True, kw_only=True)
class VisualInputs:
    """The media of a batch under the names that models use, whatever the modality.

    A step hands ``arguments()`` on to the model without knowing their names, so a new modality needs no new step: name
    its keys in ``extra_content`` or ``extra_geometry``.
    """

    content: Mapping[str, Tensor] = field(default_factory=dict)  # e.g. pixel_values [P, D]; first stage only
    geometry: Mapping[str, Tensor] = field(default_factory=dict)  # e.g. image_grid_thw [I, 3]; every stage

    @classmethod
    def of(
        cls,
        batch: Mapping[str, Any],
        *,
        extra_content: Collection[str] = (),
        extra_geometry: Collection[str] = (),
    ) -> VisualInputs:
        """The media fields of a batch; those that it lacks, or that are None, are left out."""
        return cls(
            content=_present(batch, (*CONTENT_KEYS, *extra_content)),
            geometry=_present(batch, (*GEOMETRY_KEYS, *extra_geometry)),
        )

    def without_content(self) -> VisualInputs:
        """What the later pipeline stages read."""
        return VisualInputs(geometry=self.geometry)

    def to(self, device: Any) -> VisualInputs:
        """The same media on another device."""
        return VisualInputs(content=to_device(self.content, device), geometry=to_device(self.geometry, device))

    def arguments(self) -> dict[str, Tensor]:
        """The keyword arguments of a model's forward."""
        return {**self.content, **self.geometry}


def _present(batch: Mapping[str, Any], names: Collection[str]) -> dict[str, Tensor]:
    return {name: batch[name] for name in names if batch.get(name) is not None}

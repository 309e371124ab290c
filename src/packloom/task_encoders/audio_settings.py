"""The name of a processor in; the settings of its feature extractor for audio out, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import FeatureExtractionMixin


def read_audio_settings(name: str, settings: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """From the processor's own settings, else from the file beside them; None where there are none."""
    own = settings.get("feature_extractor")
    if isinstance(own, Mapping):
        return own
    try:
        found, _ = FeatureExtractionMixin.get_feature_extractor_dict(name)
    except (OSError, ValueError):
        return None
    return found if isinstance(found, Mapping) and "feature_extractor_type" in found else None

"""The name of a processor in; the settings of its feature extractor for audio, as plain data, or the extractor, out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import transformers
from transformers import FeatureExtractionMixin

from packloom.errors import CapabilityError, ProcessorError


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


def make_extractor(name: str, settings: Mapping[str, Any] | None, *, kind: str) -> Any:
    """The feature extractor of transformers' class ``kind``.

    Raises CapabilityError where the settings are of another class or transformers has none of that name, ProcessorError
    where they do not make one.
    """
    settings = dict(settings or {})
    found = settings.get("feature_extractor_type")
    if found != kind:
        raise CapabilityError(f"{name}: its feature extractor is {found}, and audio needs a {kind}")
    made = getattr(transformers, kind, None)
    if made is None:
        raise CapabilityError(f"{name}: this transformers has no {kind}: install a newer one")
    try:
        return made.from_dict(settings)
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise ProcessorError(f"{name}: no {kind} can be made of its settings: {error}") from error

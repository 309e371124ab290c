"""The name of a processor in; the settings of its video processor out, as plain data: its class needs torchvision."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from transformers.utils import cached_file

from packloom.config_video import VideoConfig
from packloom.errors import CapabilityError, ConfigError, ProcessorError

#: Where the settings may stand, if not in processor_config.json; the first that is there counts, as in transformers.
_FILES = ("video_preprocessor_config.json", "preprocessor_config.json")


def read_video_settings(name: str, settings: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """From the processor's own settings, else from the files beside them; None where there are none.

    Raises ProcessorError for a file that is no JSON object.
    """
    own = settings.get("video_processor")
    if isinstance(own, Mapping):
        return own
    for file in _FILES:
        path = cached_file(name, file, _raise_exceptions_for_missing_entries=False)
        if path is None:
            continue
        try:
            found = json.loads(Path(path).read_text(encoding="utf-8"))
        except ValueError as error:
            raise ProcessorError(f"{name}: {file} is no JSON: {error}") from error
        if not isinstance(found, Mapping):
            raise ProcessorError(f"{name}: {file} holds no object")
        return found
    return None


def with_defaults(found: Mapping[str, Any] | None, defaults: Mapping[str, Any]) -> SimpleNamespace:
    """The settings as attributes; what the file leaves out or sets to null is as in the class."""
    given = {} if found is None else {key: value for key, value in found.items() if value is not None}
    return SimpleNamespace(**{**defaults, **{key: value for key, value in given.items() if key in defaults}})


def refuse_unresized(found: SimpleNamespace, name: str) -> None:
    """Raises CapabilityError for settings that would leave frames as they are, or crop them."""
    if not found.do_resize or not found.do_rescale:
        raise CapabilityError(f"{name}: the video processor's do_resize or do_rescale is off")
    if getattr(found, "do_center_crop", False):
        raise CapabilityError(f"{name}: the video processor's do_center_crop is on, which packloom does not know")


def refuse_bounds(config: VideoConfig, family: str) -> None:
    """Raises ConfigError for settings that do nothing where every frame has one size."""
    for name in ("min_pixels", "max_pixels"):
        if getattr(config, name) is not None:
            raise ConfigError(f"frames of the family {family} have a fixed size: video.{name} does nothing")
    refuse_cap(config, family)


def refuse_cap(config: VideoConfig, family: str) -> None:
    """Raises ConfigError for an option of the Qwen processors that this family's has not."""
    if config.cap_pixels_per_frame:
        raise ConfigError(f"the video processor of the family {family} has no option video.cap_pixels_per_frame")

"""A loaded processor in, the settings and tokens that an image rule reads from it out, or a refusal that names them."""

from __future__ import annotations

from typing import Any

from packloom.errors import CapabilityError, ProcessorError
from packloom.task_encoders.processors import ProcessorParts


def image_processor_of(parts: ProcessorParts) -> Any:
    """The image processor; raises ProcessorError if none was loaded."""
    if parts.image_processor is None:
        raise ProcessorError(f"{parts.name}: no image processor was loaded, and this family needs one")
    return parts.image_processor


def positive(value: Any, name: str, parts: ProcessorParts) -> int:
    """``value`` if it is a whole number above 0, else a ProcessorError that names the setting."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ProcessorError(f"{parts.name}: the processor's {name} is {value!r}, expected a whole number above 0")
    return value


def processor_setting(parts: ProcessorParts, name: str, default: int | None = None) -> int:
    """A count among the processor's own settings; ``default`` is its class' default, None where it has none."""
    return positive(parts.settings.get(name, default), name, parts)


def named_token(parts: ProcessorParts, attribute: str, default: str | None = None) -> str:
    """A token that the tokenizer knows by a name, as in ``tokenizer.boi_token``; raises ProcessorError without one."""
    token = getattr(parts.tokenizer, attribute, None) or default
    if token is None:
        raise ProcessorError(
            f"{parts.name}: the tokenizer names no {attribute}, which this family's processor needs: add it to"
            " tokenizer_config.json"
        )
    return str(token)


def fixed_size(size: Any, name: str, parts: ProcessorParts) -> tuple[int, int]:
    """(height, width) of a size setting that gives both; raises CapabilityError for one that depends on the image."""
    height, width = (size.get(edge) if size else None for edge in ("height", "width"))
    if height is None or width is None:
        raise CapabilityError(
            f"{parts.name}: the image processor's {name} is {size!r}; packloom predicts this family's token counts"
            " only where it has a height and a width"
        )
    return positive(height, f"{name}.height", parts), positive(width, f"{name}.width", parts)


class AsLoaded:
    """The base of what stands for an image processor but can only be called."""

    @property
    def backend(self) -> str:
        """No second one can be had."""
        return "pil"

    def save_pretrained(self, folder: str) -> None:
        """Raises CapabilityError: this is how another backend would be loaded."""
        raise CapabilityError("the backend of this image processor cannot be changed: leave pixels at 'auto'")

"""A Hugging Face processor folder or hub name in, the parts that an encoder uses out: tokenizer, images, template."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import (
    AutoImageProcessor,
    AutoTokenizer,
    BaseImageProcessor,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
    ProcessorMixin,
)

from packloom.errors import CapabilityError, ProcessorError


@dataclass(frozen=True, kw_only=True)
class ProcessorParts:
    """What an encoder needs of a processor. ``name`` is for messages; ``image_processor`` is None for text models."""

    name: str
    tokenizer: Any  # a fast tokenizer
    chat_template: str
    image_processor: Any | None = None
    model_type: str | None = None
    processor_class: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)  # the processor's own, e.g. image_seq_length


def load_parts(name_or_path: str | Path, *, chat_template: str | None = None) -> ProcessorParts:
    """Load a local folder or a hub name.

    The parts are loaded one by one, not through AutoProcessor: transformers refuses a whole processor that can also do
    video when torchvision is absent, though its tokenizer and images need none. Raises ProcessorError.
    """
    name = str(name_or_path)
    if _looks_like_path(name) and not Path(name).is_dir():
        raise ProcessorError(f"no processor folder at {name!r}: give an existing folder or a hub name like 'org/model'")
    try:
        settings, _ = ProcessorMixin.get_processor_dict(name)
        tokenizer = AutoTokenizer.from_pretrained(name)
        image_processor = _load_images(name) if _has_images(name, settings) else None
    except (OSError, ValueError, ImportError) as error:
        raise ProcessorError(f"cannot load a processor from {name!r}: {error}") from error
    return _parts(
        name=name,
        tokenizer=tokenizer,
        image_processor=image_processor,
        templates=[chat_template, settings.get("chat_template"), tokenizer.chat_template],
        settings=settings,
        model_type=_config(name).get("model_type"),
        processor_class=settings.get("processor_class"),
    )


def _load_images(name: str) -> Any:
    try:
        return AutoImageProcessor.from_pretrained(name)
    except (ImportError, ValueError) as error:
        if "torchvision" in str(error).lower() and importlib.util.find_spec("torchvision") is None:
            raise CapabilityError(
                f"{name}: its image processor needs torchvision, which is not installed: pip install torchvision"
            ) from error
        raise


def parts_of(processor: Any, *, model_type: str | None = None, chat_template: str | None = None) -> ProcessorParts:
    """Take apart a loaded processor; a plain tokenizer gives parts without images."""
    if isinstance(processor, ProcessorMixin):
        tokenizer = processor.tokenizer
        image_processor = processor.image_processor if "image_processor" in processor.get_attributes() else None
        templates = [chat_template, processor.chat_template, tokenizer.chat_template]
        settings = processor.to_dict()
    elif isinstance(processor, PreTrainedTokenizerBase):
        tokenizer, image_processor = processor, None
        templates = [chat_template, tokenizer.chat_template]
        settings = {}
    else:
        raise ProcessorError(
            f"expected a transformers processor or tokenizer, got {type(processor).__name__}:"
            " use TaskEncoder.from_pretrained for a name or folder"
        )
    return _parts(
        name=tokenizer.name_or_path or type(processor).__name__,
        tokenizer=tokenizer,
        image_processor=image_processor,
        templates=templates,
        settings=settings,
        model_type=model_type,
        processor_class=type(processor).__name__,
    )


def _parts(*, name: str, tokenizer: Any, templates: list[Any], **rest: Any) -> ProcessorParts:
    if not tokenizer.is_fast:
        raise ProcessorError(
            f"{name}: {type(tokenizer).__name__} is not a fast tokenizer; masks are proved with character offsets,"
            " which only fast tokenizers give: convert it to a tokenizer.json"
        )
    template = next((item for item in templates if item), None)
    if isinstance(template, Mapping):
        template = template.get("default")
    if not isinstance(template, str):
        raise ProcessorError(f"{name}: no chat template; pass chat_template=... (a Jinja text)")
    return ProcessorParts(name=name, tokenizer=tokenizer, chat_template=template, **rest)


def _looks_like_path(name: str) -> bool:
    return name.startswith((".", "/", "~")) or name.count("/") > 1 or Path(name).is_absolute()


def _config(name: str) -> dict[str, Any]:
    """config.json as plain data: an architecture that this transformers does not know must not stop the loading."""
    try:
        return dict(PreTrainedConfig.get_config_dict(name)[0])
    except (OSError, ValueError):
        return {}


def _has_images(name: str, settings: Mapping[str, Any]) -> bool:
    if "image_processor" in settings:
        return True
    try:
        BaseImageProcessor.get_image_processor_dict(name)
    except (OSError, ValueError):
        return False
    return True

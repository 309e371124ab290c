"""A Hugging Face processor folder or hub name in, the parts that an encoder uses out: tokenizer, images, template."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import (
    AutoImageProcessor,
    AutoProcessor,
    AutoTokenizer,
    BaseImageProcessor,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
    ProcessorMixin,
)

from packloom.errors import CapabilityError, ProcessorError
from packloom.task_encoders.audio_settings import read_audio_settings
from packloom.task_encoders.registry import shared_model_type
from packloom.task_encoders.video_settings import read_video_settings

#: In the place of a chat template: the processor's own, changed so that it writes the reasoning of every turn.
TRAINING = "training"


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
    config: Mapping[str, Any] = field(default_factory=dict)  # config.json, where the folder has one
    processor: Any | None = None  # the whole one, where it was given; see ``whole_processor``
    video_settings: Mapping[str, Any] | None = None  # of the video processor, as its files have them; None: it has none
    audio_settings: Mapping[str, Any] | None = None  # of the feature extractor of audio; None: it has none
    for_training: bool = False  # the template is still to be changed, see TRAINING


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
    config = _config(name)
    return _parts(
        name=name,
        config=config,
        tokenizer=tokenizer,
        image_processor=image_processor,
        templates=[chat_template, settings.get("chat_template"), tokenizer.chat_template],
        settings=settings,
        model_type=config.get("model_type"),
        processor_class=settings.get("processor_class"),
        video_settings=read_video_settings(name, settings),
        audio_settings=read_audio_settings(name, settings),
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
    config: dict[str, Any] = {}
    if isinstance(processor, ProcessorMixin):
        tokenizer = processor.tokenizer
        image_processor = processor.image_processor if "image_processor" in processor.get_attributes() else None
        templates = [chat_template, processor.chat_template, tokenizer.chat_template]
        settings = processor.to_dict()
        video, audio = settings.get("video_processor"), settings.get("feature_extractor")
        config = _config(tokenizer.name_or_path, local_files_only=True) if tokenizer.name_or_path else {}
    elif isinstance(processor, PreTrainedTokenizerBase):
        tokenizer, image_processor = processor, None
        templates = [chat_template, tokenizer.chat_template]
        settings, video, audio = {}, None, None
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
        model_type=model_type or shared_model_type(type(processor).__name__, config),
        config=config,
        processor_class=type(processor).__name__,
        processor=processor,
        video_settings=video if isinstance(video, Mapping) else None,
        audio_settings=audio if isinstance(audio, Mapping) else None,
    )


def whole_processor(parts: ProcessorParts) -> Any:
    """The processor that the parts were taken from, else loaded by their name; raises ProcessorError."""
    if parts.processor is not None:
        return parts.processor
    try:
        processor = AutoProcessor.from_pretrained(parts.name)
    except (OSError, ValueError, ImportError, AttributeError, TypeError) as error:  # as files of any kind may raise
        raise ProcessorError(f"cannot load the whole processor of {parts.name!r}: {error}") from error
    if not isinstance(processor, ProcessorMixin):
        raise ProcessorError(
            f"{parts.name} holds no whole processor that transformers knows, only a {type(processor).__name__}"
        )
    return processor


def _parts(*, name: str, tokenizer: Any, templates: list[Any], **rest: Any) -> ProcessorParts:
    if not tokenizer.is_fast:
        raise ProcessorError(
            f"{name}: {type(tokenizer).__name__} is not a fast tokenizer; masks are proved with character offsets,"
            " which only fast tokenizers give: convert it to a tokenizer.json"
        )
    for_training = templates[0] == TRAINING
    template = next((item for item in templates[for_training:] if item), None)
    if isinstance(template, Mapping):
        template = template.get("default")
    if not isinstance(template, str):
        raise ProcessorError(f"{name}: no chat template; pass chat_template=... (a Jinja text)")
    return ProcessorParts(name=name, tokenizer=tokenizer, chat_template=template, for_training=for_training, **rest)


def _looks_like_path(name: str) -> bool:
    return name.startswith((".", "/", "~")) or name.count("/") > 1 or Path(name).is_absolute()


def _config(name: str, *, local_files_only: bool = False) -> dict[str, Any]:
    """config.json as plain data: an architecture that this transformers does not know must not stop the loading."""
    try:
        return dict(PreTrainedConfig.get_config_dict(name, local_files_only=local_files_only)[0])
    except (OSError, ValueError):
        return {}


def _has_images(name: str, settings: Mapping[str, Any]) -> bool:
    if "image_processor" in settings:
        return True
    try:
        found, _ = BaseImageProcessor.get_image_processor_dict(name)
    except (OSError, ValueError):
        return False
    return "feature_extractor_type" not in found or "image_processor_type" in found  # a file of audio alone

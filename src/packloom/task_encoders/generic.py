"""The encoder for processors that no family knows: every fact is measured on the processor, and proved against it."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from packloom.config import SampleConfig
from packloom.errors import CapabilityError, ConfigError, CookError, MaskError, ProcessorError
from packloom.task_encoders.base import TaskEncoder
from packloom.task_encoders.cookers import Cooker, cook
from packloom.task_encoders.family import Family, ImageRule
from packloom.task_encoders.measured_images import MeasuredImageRule, find_joins, measure_images
from packloom.task_encoders.measured_processor import TOKEN_KEYS, Called, plain_image
from packloom.task_encoders.processors import ProcessorParts, whole_processor
from packloom.task_encoders.registry import BUILT_IN
from packloom.task_encoders.template import ChatTemplate, ContentForm
from packloom.task_encoders.text import TextTaskEncoder
from packloom.types import ChatSample, MediaPart, Message, TextPart

_LEAK = (
    "its processor marks image tokens for the model, which may attend both ways inside images and so mix packed samples"
)
_PROVED = (((300, 451),), ((64, 64),), ((513, 300), (90, 400)))


class GenericTaskEncoder(TextTaskEncoder):
    """Any processor: what it makes of an image is measured on it, turn boundaries are read off the template."""

    family = dataclasses.replace(TextTaskEncoder.family, name="generic", content="parts")

    def __init__(self, parts: ProcessorParts, *, config: SampleConfig | None = None, cooker: Cooker = cook) -> None:
        """Raises ProcessorError, with what is missing, for a processor that cannot be measured."""
        try:
            super().__init__(parts, config=config, cooker=cooker)
            if self.image_rule is not None:
                _prove(self)
        except ConfigError:
            raise
        except ProcessorError as error:
            raise type(error)(
                f"{parts.name}: no task encoder for model_type {parts.model_type!r} (processor class"
                f" {parts.processor_class!r}), and its own processor does not pass the self-test of the generic one:"
                f" {error}. Known: {', '.join(sorted(BUILT_IN))}. Pass model_type=..., or declare a family and register"
                " it with packloom.register_task_encoder"
            ) from error

    @classmethod
    def settle(cls, parts: ProcessorParts) -> tuple[ProcessorParts, Family]:
        """Measure the processor; raises CapabilityError where that does not explain what it does."""
        if isinstance(parts.image_processor, _Measured):
            return parts, parts.image_processor.family
        processor = whole_processor(parts)
        parts, family = super().settle(parts)
        marks = _image_marks(parts, family)
        rule = measure_images(processor, marks, parts.name)
        _refuse_multimodal_positions(parts, rule.model_keys)
        types = _token_types(rule.called, parts.name)
        family = dataclasses.replace(
            family,
            image_rule=measured_rule,
            pixel_bounds=no_pixel_bounds,
            media_tokens=tuple(dict.fromkeys((*_added_tokens(parts.tokenizer, rule.text), *marks))),
            media_joins=find_joins(rule, parts.name),
            token_types=types,
            packing_leak=family.packing_leak or (_LEAK if types else ""),
        )
        return dataclasses.replace(parts, image_processor=_Measured(rule=rule, family=family)), family


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Measured:
    """In the place of the image processor: the whole one, and what was measured on it."""

    rule: MeasuredImageRule
    family: Family

    def __call__(self, **options: Any) -> Any:
        return self.rule.called(**options)

    @property
    def backend(self) -> str:
        return self.rule.called.backend

    def save_pretrained(self, folder: str) -> None:
        self.rule.called.save_pretrained(folder)


def measured_rule(parts: ProcessorParts) -> ImageRule:
    """The rule that was measured on these parts."""
    measured: _Measured = parts.image_processor  # type: ignore[assignment]
    return measured.rule


def no_pixel_bounds(parts: ProcessorParts, min_pixels: int | None, max_pixels: int | None) -> ProcessorParts:
    """Raises ConfigError: how bounds reach an unknown processor is unknown."""
    raise ConfigError(
        f"{parts.name}: min_pixels and max_pixels reach every processor in another way, and no family knows this one:"
        " set them on the processor itself"
    )


def _image_marks(parts: ProcessorParts, family: Family) -> list[str]:
    """The tokens that the template writes for an image, and the tokenizer's own name for one first."""
    text, image = TextPart(text="probe"), MediaPart(kind="image", index=0)
    forms: tuple[ContentForm, ...] = ("parts", "string_without_media")
    for content in forms:
        template = ChatTemplate(parts=parts, content=content, variables=dict(family.template_variables))
        try:
            bare, whole = (template.render(_ask(*shown)) for shown in ((text,), (image, text)))
        except CookError:
            continue
        before, after = Counter(_added_tokens(parts.tokenizer, bare)), Counter(_added_tokens(parts.tokenizer, whole))
        marks = [token for token in after if after[token] - before[token] == 1]
        if marks:
            own = getattr(parts.tokenizer, "image_token", None)
            return sorted(marks, key=lambda token: token != own)
    raise CapabilityError(f"{parts.name}: the chat template writes no token of the tokenizer for an image")


def _ask(*shown: TextPart | MediaPart) -> ChatSample:
    return ChatSample(key="probe", messages=(Message(role="user", parts=shown),))


def _added_tokens(tokenizer: Any, text: str) -> list[str]:
    """The added tokens in a text, in order."""
    added = {token.content for token in tokenizer.added_tokens_decoder.values() if token.content.strip()}
    return [token for token in tokenizer.tokenize(text) if token in added]


def _refuse_multimodal_positions(parts: ProcessorParts, keys: Sequence[str]) -> None:
    grids = [key for key in keys if "grid_thw" in key]
    if grids or _holds(parts.config, "mrope_section"):
        why = f"its processor gives {', '.join(grids)}" if grids else "its config.json names an mrope_section"
        raise CapabilityError(
            f"{parts.name}: {why}, so the model's positions may depend on where images stand, and nothing says how:"
            " declare a family with its position rule"
        )


def _holds(data: Any, name: str) -> bool:
    if isinstance(data, Mapping):
        return name in data or any(_holds(value, name) for value in data.values())
    return False


def _token_types(called: Called, name: str) -> str | None:
    """The per-token tensor that marks the media tokens with 1 and all else with 0."""
    made = called.on_texts([f"probe {called.placeholder}"], [[plain_image(300, 451)]])
    found = [key for key in TOKEN_KEYS[2:] if key in made and bool(made[key].any())]
    marked = (made["input_ids"] == called.media_id).to(made["input_ids"].dtype)
    if len(found) > 1 or any(not bool((made[key] == marked).all()) for key in found):
        raise CapabilityError(f"{name}: the processor's {' and '.join(found)} do not just mark the image tokens")
    return found[0] if found else None


def _prove(encoder: TaskEncoder) -> None:
    """Compare ids and token types with the whole processor's, on conversations with images; raises CapabilityError."""
    rule = encoder.image_rule
    if not isinstance(rule, MeasuredImageRule):
        return
    for sizes in _PROVED[: 2 if rule.alone else None]:
        parts = [MediaPart(kind="image", index=number) for number in range(len(sizes))]
        asked = Message(role="user", parts=(TextPart(text="probe"), *parts, TextPart(text="question")))
        answer = Message(role="assistant", parts=(TextPart(text="answer"),))
        chat = ChatSample(key="probe", messages=(asked, answer))
        try:
            compact, _ = encoder.chat.tokenise(chat, [rule.measure(*size, len(sizes)) for size in sizes])
            images = [[plain_image(*size) for size in sizes]]
            theirs = rule.called.on_texts([encoder.template.render(chat)], images)
        except (MaskError, CookError, ValueError) as error:
            raise CapabilityError(f"a conversation with images fails: {error}") from error
        ours = compact.expand(compact.ids).tolist()
        if ours != theirs["input_ids"][0].tolist():
            raise CapabilityError(
                f"for images of {', '.join(f'{w}x{h}' for h, w in sizes)} the processor makes other token ids than were"
                f" measured ({theirs['input_ids'].shape[1]} tokens against {len(ours)})"
            )

"""TaskEncoder: raw samples in, encoded samples, rows and batches out. One subclass per model family."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
from typing_extensions import Unpack

from packloom.collates.collate import collate
from packloom.collates.dummy_media import DummyMedia, check_dummy_media
from packloom.config import SampleConfig, SampleSettings, sample_config
from packloom.errors import CapabilityError, CookError, MaskError, SampleError
from packloom.pixels import expand_pixels as expanded
from packloom.task_encoders import prompt
from packloom.task_encoders.audios import AudioLoader
from packloom.task_encoders.chat_checks import check_chat
from packloom.task_encoders.chat_encoder import ChatEncoder
from packloom.task_encoders.cookers import Cooker, cook
from packloom.task_encoders.dummy import dummy_row
from packloom.task_encoders.family import Family
from packloom.task_encoders.limits import fit_length
from packloom.task_encoders.media import ImageLoader
from packloom.task_encoders.media_choice import choose_media
from packloom.task_encoders.media_loader import MediaLoader
from packloom.task_encoders.pixel_bytes import add_tables, alike
from packloom.task_encoders.processors import ProcessorParts, load_parts, parts_of
from packloom.task_encoders.registry import find_encoder
from packloom.task_encoders.rules import audio_rule_of, image_rule_of, video_rule_of, with_bounds
from packloom.task_encoders.training_template import with_training_template
from packloom.task_encoders.videos import VideoLoader
from packloom.types import Batch, ChatSample, EncodedSample, LabelShift, Layout, RawSample, Row


class TaskEncoder:
    """Turns the rows of one model family into training batches.

    A subclass declares its family's facts in ``family``; the three steps ``encode_sample``, ``batch`` and ``collate``
    then work as they are. Encoders are immutable, picklable, and safe to share between threads and worker processes.
    """

    family: Family  # declared by the class; an instance may know more of its processor, see ``settle``

    def __init__(self, parts: ProcessorParts, *, config: SampleConfig | None = None, cooker: Cooker = cook) -> None:
        """Raises ConfigError for settings that this processor cannot honour, ProcessorError for a wrong processor."""
        self.config = config or SampleConfig()
        self.cooker = cooker
        parts, self.family = self.settle(parts)
        bounded = with_bounds(parts, self.family, self.config)
        self.image_rule = image_rule_of(bounded, self.family)
        self.parts, fast = choose_media(bounded, self.image_rule, self.config, self.family.media_joins)
        exact = ImageLoader(parts=self.parts, rule=self.image_rule)
        exact.prove_geometry(probe_upper_bound=self.config.max_pixels is not None)
        self.images = replace(exact, fast=fast)
        self.video_rule, refusal = video_rule_of(self.parts, self.family, self.config)
        self.audio_rule = audio_rule_of(self.parts, self.family, self.config)
        self.media_loader = MediaLoader(
            images=self.images,
            videos=VideoLoader(
                name=self.parts.name, rule=self.video_rule, refusal=refusal, joins=self.family.media_joins
            ),
            audios=AudioLoader(name=self.parts.name, rule=self.audio_rule, config=self.config.audio),
        )
        self.chat = ChatEncoder(
            self.parts,
            family=self.family,
            config=self.config,
            image_rule=self.image_rule,
            video_rule=self.video_rule,
            audio_rule=self.audio_rule,
        )
        self.template, self.masks = self.chat.template, self.chat.masks
        self.media_id, self.media_ids = self.chat.media_id, self.chat.media_ids

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | Path,
        *,
        model_type: str | None = None,
        chat_template: str | None = None,
        cooker: Cooker = cook,
        **settings: Unpack[SampleSettings],
    ) -> TaskEncoder:
        """Load the processor of a local folder or a hub name, and the encoder of its family.

        The family is found by ``model_type`` (by default the one in config.json), else by the processor's class.
        ``settings`` are the fields of SampleConfig: ``max_length``, ``overlong``, ``min_pixels``, ``max_pixels``,
        ``loss_on``, ``thinking``, ``control_tokens``, ``train_terminator``, ``limits``. Raises ProcessorError if there
        is no such processor or family, ConfigError for settings that cannot work.
        """
        config = sample_config(settings)
        parts = _named(load_parts(name_or_path, chat_template=chat_template), model_type)
        return cls._choose(parts, model_type)(parts, config=config, cooker=cooker)

    @classmethod
    def from_processor(
        cls,
        processor: Any,
        *,
        model_type: str | None = None,
        chat_template: str | None = None,
        cooker: Cooker = cook,
        **settings: Unpack[SampleSettings],
    ) -> TaskEncoder:
        """The encoder for a processor, or a plain tokenizer, that is already loaded; else as ``from_pretrained``."""
        config = sample_config(settings)
        parts = _named(parts_of(processor, chat_template=chat_template), model_type)
        return cls._choose(parts, model_type)(parts, config=config, cooker=cooker)

    @classmethod
    def _choose(cls, parts: ProcessorParts, model_type: str | None) -> type[TaskEncoder]:
        """A subclass stands for itself; the base class looks the family up."""
        if cls is not TaskEncoder:
            return cls
        return find_encoder(
            model_type=model_type or parts.model_type,
            processor_class=None
            if model_type
            else parts.processor_class,  # a type that was asked for is not guessed at
            text_only=parts.image_processor is None,
        )

    @classmethod
    def settle(cls, parts: ProcessorParts) -> tuple[ProcessorParts, Family]:
        """The parts and the family's facts for this very processor; a subclass may read facts off the parts."""
        return with_training_template(replace(parts, processor=None), cls.family), cls.family

    @property
    def max_length(self) -> int | None:
        """The longest sample in tokens, media included."""
        return self.config.max_length

    @property
    def pad_id(self) -> int:
        """The id that fills padding; it never decides what padding is."""
        tokenizer = self.parts.tokenizer
        candidates = (tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
        return int(next(index for index in candidates if index is not None))

    @cached_property
    def dummy(self) -> Row:
        """The smallest medium that the processor makes, without labels; CapabilityError where one does not do."""
        hears = self.audio_rule is not None and self.config.limits.max_audios != 0
        return dummy_row(self, self.family.name, images=self.image_rule is not None, audio=hears)

    def encode_sample(self, raw: RawSample | ChatSample) -> EncodedSample:
        """Cook, render, tokenise, mask and measure one sample; its media stay compressed.

        Raises SampleError, with the sample's key, for anything that is wrong with the sample.
        """
        key = raw.key if isinstance(raw, ChatSample) else str(raw.get("__key__", ""))
        try:
            return self._encode(raw if isinstance(raw, ChatSample) else self._cook(raw))
        except SampleError as error:
            raise error.with_key(key) from error

    def batch(self, samples: Sequence[EncodedSample]) -> list[Row]:
        """Decode and process the media of samples that were selected for one batch.

        Raises SampleError, with the sample's key, if a medium is damaged or came out other than predicted.
        """
        rows = []
        for sample, room in zip(samples, self.media_loader.rooms(samples), strict=True):
            try:
                rows.append(Row(sample=sample, media_tensors=self.media_loader.load(sample.media, room)))
            except SampleError as error:
                raise error.with_key(sample.key) from error
        return rows

    def collate(
        self,
        rows: Sequence[Row],
        *,
        layout: Layout = "packed",
        label_shift: LabelShift = "next_token",
        pad_to_multiple_of: int = 1,
        segment_multiple: int = 1,
        length: int | None = None,
        expand_pixels: bool = True,
        dummy_media: DummyMedia = "off",
    ) -> Batch:
        """Put rows into one batch, see ``docs/architecture.md``; ``length`` fixes T or S.

        ``expand_pixels=False`` leaves pixels as bytes where the fast path made them so, with ``pixel_table`` and
        ``pixel_frames`` for ``packloom.pixels.expand_pixels``; ``models.route`` calls it on the model's device. So too
        those of videos, with ``pixel_table_videos`` and ``pixel_frames_videos``.

        ``dummy_media="per_batch"`` gives a batch without media the encoder's ``dummy``, for towers that must run on
        every rank.

        Raises BatchError, and CapabilityError for a packed layout where a plain model would mix the samples.
        """
        check_dummy_media(dummy_media)
        if layout == "packed" and self.family.packing_leak:
            raise CapabilityError(
                f"rows of the family {self.family.name} cannot be packed: {self.family.packing_leak}."
                " Use layout='padded', or a subclass whose family clears packing_leak if your model handles it"
            )
        batch = collate(
            alike(rows, self.images.fast),
            layout=layout,
            label_shift=label_shift,
            pad_id=self.pad_id,
            pad_to_multiple_of=pad_to_multiple_of,
            segment_multiple=segment_multiple,
            length=length,
            media_joins=self.family.media_joins,
            dummy=self.dummy if dummy_media == "per_batch" else None,
        )
        has_bytes = add_tables(cast(dict[str, Any], batch), self.images.fast, self.video_rule)
        return cast(Batch, expanded(batch)) if expand_pixels and has_bytes else batch

    def collate_fn(
        self, raws: Sequence[RawSample | ChatSample], *, layout: Layout = "padded", label_shift: LabelShift = "none"
    ) -> Batch:
        """All three steps at once, for a map-style DataLoader or an HF Trainer (which shifts labels itself).

        A bad sample raises SampleError: a collate function cannot skip.
        """
        return self.collate(self.batch(list(map(self.encode_sample, raws))), layout=layout, label_shift=label_shift)

    def _cook(self, raw: RawSample) -> ChatSample:
        try:
            return self.cooker(raw)
        except (
            LookupError,
            TypeError,
            ValueError,
            AttributeError,
        ) as error:  # a cooker that meets a row it did not expect
            raise CookError(
                f"the cooker fails on this row: {type(error).__name__}: {error}", code="cook.cooker_failed"
            ) from error

    def _encode(self, chat: ChatSample) -> EncodedSample:
        chat = self.chat.prepare(check_chat(chat))
        media = self.media_loader.measure(chat.media, self.config.limits)
        layouts = [layout for _, layout in media]
        compact, mask = self.chat.tokenise(chat, layouts)
        if not mask.any():
            marked = any(message.loss is False for message in chat.messages)
            why = (
                "every trained turn is marked loss=False" if marked else "the settings of the loss leave out all of it"
            )
            raise MaskError(f"there is nothing to train on: {why}", code="mask.empty")
        sample = EncodedSample(
            key=chat.key,
            source=chat.source,
            input_ids=torch.from_numpy(compact.expand(compact.ids)),
            loss_mask=torch.from_numpy(compact.expand(mask)),
            position_ids=torch.from_numpy(self.family.positions(compact.num_tokens, prompt.media_blocks(compact))),
            token_tensors=self._token_tensors(compact),
            media=tuple(media[index][0] for index in compact.order),  # a template may move one kind before another
        )
        return fit_length(sample, self.config, self.media_ids)

    def _token_tensors(self, compact: prompt.Prompt) -> dict[str, torch.Tensor]:
        if self.family.token_types is None:
            return {}
        return {self.family.token_types: torch.from_numpy(compact.expand(prompt.media_types(compact)))}


def _named(parts: ProcessorParts, model_type: str | None) -> ProcessorParts:
    return replace(parts, model_type=model_type) if model_type else parts

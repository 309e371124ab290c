"""A conversation and the layouts of its images in; its tokens and what of them is trained on, proved, out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from packloom.config import SampleConfig
from packloom.errors import MaskError, ProcessorError
from packloom.task_encoders.chain import choose_method
from packloom.task_encoders.control_tokens import ControlTokens
from packloom.task_encoders.family import AudioRule, Family, ImageLayout, ImageRule, VideoRule
from packloom.task_encoders.masking import AssistantMasks
from packloom.task_encoders.neutral import NeutralTokenizer
from packloom.task_encoders.plain import PlainTokenizer
from packloom.task_encoders.processors import ProcessorParts
from packloom.task_encoders.prompt import Prompt, build_prompt, id_table, prove_origin
from packloom.task_encoders.span_methods import SpanMethod
from packloom.task_encoders.switches import split_switches
from packloom.task_encoders.template import ChatTemplate, ContentForm, fold_system, has_media
from packloom.task_encoders.thinking import renders_reasoning, settle_reasoning
from packloom.types import ChatSample, MediaKind


class ChatEncoder:
    """The text side of an encoder: one tokenizer and chat template with one family's facts and settings.

    ``image_rule`` is None for encoders that take no images, ``video_rule`` and ``audio_rule`` likewise.
    """

    def __init__(
        self,
        parts: ProcessorParts,
        *,
        family: Family,
        config: SampleConfig,
        image_rule: ImageRule | None,
        video_rule: VideoRule | None = None,
        audio_rule: AudioRule | None = None,
    ) -> None:
        """Raises ProcessorError for a template whose turns cannot be told, or a tokenizer of another family."""
        self.parts = parts
        self.family = family
        self.config = config
        self.image_rule, self.audio_rule = image_rule, audio_rule
        self.control_tokens = ControlTokens.of(parts, family)
        rules: dict[MediaKind, ImageRule | VideoRule | AudioRule | None] = {
            "image": image_rule,
            "video": video_rule,
            "audio": audio_rule,
        }
        self._placeholders = {kind: rule.placeholder for kind, rule in rules.items() if rule is not None}
        self.run_ids = {kind: self.token_id(rule.token) for kind, rule in rules.items() if rule is not None}
        self.media_id = self.run_ids.get("image")
        media_tokens = family.media_tokens if self._placeholders else ()
        self.media_ids = np.array([self.token_id(token) for token in media_tokens], dtype=np.int64)
        self._control = id_table(self.control_tokens.ids)
        self.plain = PlainTokenizer(parts.tokenizer)
        self.neutral = NeutralTokenizer(parts.tokenizer, self.control_tokens.texts)
        self.template, self.masks = self._understand_template()
        self.renders_reasoning = renders_reasoning(self.template)

    def prepare(self, chat: ChatSample) -> ChatSample:
        """The conversation as the template is to see it; raises MaskError for texts that spell control tokens."""
        if self.family.system_in_last_user:
            chat = fold_system(chat)
        chat = split_switches(chat, self.family.switches)
        chat = settle_reasoning(chat, self.family.thinking, self.config.thinking, rendered=self.renders_reasoning)
        if self.config.control_tokens == "refuse":
            self.control_tokens.refuse_in(chat)
        return chat

    def tokenise(self, chat: ChatSample, layouts: Sequence[ImageLayout]) -> tuple[Prompt, np.ndarray]:
        """The compact prompt, and [C] bool: what is trained on. Raises MaskError or CookError."""
        return self._tokenise(chat, layouts, self.template, self.masks)

    def token_id(self, token: str) -> int:
        """The id of a token that the family needs; raises ProcessorError."""
        index = self.parts.tokenizer.convert_tokens_to_ids(token)
        if index is None or index == self.parts.tokenizer.unk_token_id:
            raise ProcessorError(
                f"{self.parts.name}: the tokenizer has no token {token!r}, which the family {self.family.name} needs:"
                " pass the right model_type"
            )
        return int(index)

    def _tokenise(
        self, chat: ChatSample, layouts: Sequence[ImageLayout], template: ChatTemplate, masks: AssistantMasks
    ) -> tuple[Prompt, np.ndarray]:
        plan, texts = masks.plan(chat, template.render(chat))
        spelled = self.config.control_tokens == "neutralise" and self.control_tokens.in_texts(chat) is not None
        encode = self.neutral.encode if spelled else self.plain.encode
        compact = build_prompt(encode, plan.skeleton, texts, layouts, media_ids=self.run_ids, control=self._control)
        prove_origin(compact, plan.skeleton)
        mask = masks.mask(compact, plan, chat)
        for media_id in self.media_ids:
            mask &= compact.ids != media_id
        return compact, mask

    def _understand_template(self) -> tuple[ChatTemplate, AssistantMasks]:
        """The form of content in which the template shows everything, and how its assistant turns are found."""
        second: ContentForm = "string_without_media" if self._placeholders else "string"
        refusals: list[ProcessorError] = []
        for content in dict.fromkeys((self.family.content, second, "parts")):
            template = ChatTemplate(parts=self.parts, content=content, variables=dict(self.family.template_variables))
            try:
                return template, self._masks(template, self._choose_method(template))
            except ProcessorError as error:
                refusals.append(error)
        raise refusals[0]

    def _choose_method(self, template: ChatTemplate) -> SpanMethod:
        """The first way to find assistant turns that works on probes with this very processor."""

        def test(method: SpanMethod, probe: ChatSample) -> np.ndarray:
            layouts = [self._probe_layout()] if has_media(probe) else []
            _, mask = self._tokenise(probe, layouts, template, self._masks(template, method))
            if not mask.any():
                raise MaskError("nothing of the probe is trained on", code="mask.empty")
            return mask

        return choose_method(
            template,
            self.family,
            placeholders=self._placeholders,
            special_tokens=sorted(self.control_tokens.texts),
            test=test,
        )

    def _probe_layout(self) -> ImageLayout:
        """Of the medium in a probe: an image, or a second of audio where no images are taken."""
        if self.image_rule is not None:
            return self.image_rule.measure(64, 64)
        if self.audio_rule is not None:
            return self.audio_rule.measure("probe", self.audio_rule.rate)
        raise ProcessorError(f"{self.parts.name}: no medium can stand in a probe, since none is taken")

    def _masks(self, template: ChatTemplate, method: SpanMethod) -> AssistantMasks:
        return AssistantMasks(
            method=method,
            template=template,
            placeholders=self._placeholders,
            terminators={end: self.token_id(end) for end in method.ends},
            media_ids=self.media_ids,
            final_end=self.family.final_end,
            media_label=self.family.media_label,
            config=self.config,
        )

"""A model type or a processor class in, the task encoder of that family out."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from packloom.errors import CapabilityError, ConfigError

if TYPE_CHECKING:
    from packloom.task_encoders.base import TaskEncoder

ENTRY_POINT_GROUP = "packloom.task_encoders"

#: model_type → "module:class" of the built-in encoders.
BUILT_IN = {
    "qwen2_vl": "packloom.task_encoders.qwen_vl:Qwen2VLTaskEncoder",
    "qwen2_5_vl": "packloom.task_encoders.qwen_vl:Qwen2_5VLTaskEncoder",
    "qwen3_vl": "packloom.task_encoders.qwen_vl:Qwen3VLTaskEncoder",
    "qwen3_vl_moe": "packloom.task_encoders.qwen_vl:Qwen3VLTaskEncoder",
    "qwen3_5": "packloom.task_encoders.qwen_vl:Qwen3_5TaskEncoder",
    "qwen3_5_moe": "packloom.task_encoders.qwen_vl:Qwen3_5TaskEncoder",
    "qwen3_5_text": "packloom.task_encoders.qwen_vl:Qwen3_5TaskEncoder",
    "qwen3_5_moe_text": "packloom.task_encoders.qwen_vl:Qwen3_5TaskEncoder",
    "qwen4_exp": "packloom.task_encoders.qwen_vl:Qwen3_5TaskEncoder",
    "gemma3": "packloom.task_encoders.gemma:Gemma3TaskEncoder",
    "gemma3_text": "packloom.task_encoders.gemma:Gemma3TaskEncoder",
    "gemma4": "packloom.task_encoders.gemma:Gemma4TaskEncoder",
    "gemma4_text": "packloom.task_encoders.gemma:Gemma4TaskEncoder",
    "gemma4_unified": "packloom.task_encoders.gemma:Gemma4TaskEncoder",
    "glm4v": "packloom.task_encoders.glm_v:Glm4vTaskEncoder",
    "glm4v_moe": "packloom.task_encoders.glm_v:Glm46vTaskEncoder",
    "glm46v": "packloom.task_encoders.glm_v:Glm46vTaskEncoder",
    "kimi_k25": "packloom.task_encoders.kimi:KimiK25TaskEncoder",
    "kimi_vl": "packloom.task_encoders.kimi:KimiVLTaskEncoder",
    "mistral3": "packloom.task_encoders.mistral:MistralTaskEncoder",
    "ministral3": "packloom.task_encoders.mistral:MistralTaskEncoder",
    "mistral_large4": "packloom.task_encoders.mistral:MistralTaskEncoder",
    "pixtral": "packloom.task_encoders.mistral:PixtralTaskEncoder",
    "nemotron_h_omni": "packloom.task_encoders.nemotron:NemotronOmniTaskEncoder",
    "NemotronH_Nano_VL_V2": "packloom.task_encoders.nemotron:NemotronVL2TaskEncoder",
    "internvl": "packloom.task_encoders.intern_vl:InternVLTaskEncoder",
    "smolvlm": "packloom.task_encoders.smol_vlm:SmolVLMTaskEncoder",
    "idefics3": "packloom.task_encoders.smol_vlm:SmolVLMTaskEncoder",
    "llava": "packloom.task_encoders.llava:LlavaTaskEncoder",
    "llava_next": "packloom.task_encoders.llava:LlavaNextTaskEncoder",
    "llava_onevision": "packloom.task_encoders.llava:LlavaOnevisionTaskEncoder",
    "qwen2_audio": "packloom.task_encoders.qwen_audio:Qwen2AudioTaskEncoder",
    "qwen2_5_omni": "packloom.task_encoders.qwen_audio:Qwen2_5OmniTaskEncoder",
    "qwen2_5_omni_thinker": "packloom.task_encoders.qwen_audio:Qwen2_5OmniTaskEncoder",
}

#: Models whose rows need more than packloom knows → what is missing. A registered encoder goes first.
NOT_YET = dict.fromkeys(
    ("qwen3_omni_moe", "qwen3_omni_moe_thinker"),
    "the token count of its audio (chunks of 100 mel frames, 13 tokens each) and its positions of audio and video",
) | {
    "phi4_multimodal": "the features of its speech extractor and their token count",
    "voxtral": "the 30-second chunks that its processor cuts audio into and their token count",
    "granite_speech": "the features of its speech extractor and their token count",
    "audioflamingo3": "the windows that its processor cuts audio into and their token count",
}

#: Model types that several families' checkpoints share; there the processor class decides.
SHARED_MODEL_TYPES: dict[tuple[str | None, str | None], str] = {("llava", "PixtralProcessor"): "pixtral"}

#: Processor classes that several families share; there config.json decides, where a loaded processor's folder has one.
SHARED_CLASSES = {
    "Qwen3VLProcessor": ("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "qwen4_exp"),
    "PixtralProcessor": ("pixtral", "llava", "mistral3", "mistral_large4"),
    "Glm4vProcessor": ("glm4v", "glm4v_moe"),
    "Gemma4Processor": ("gemma4", "gemma4_unified"),
}

#: For tokenizers whose model is in no table: the boundaries are inferred from the template.
GENERIC_TEXT = "packloom.task_encoders.text:TextTaskEncoder"

#: For processors whose model is in no table: what an image becomes is measured on the processor.
GENERIC = "packloom.task_encoders.generic:GenericTaskEncoder"

#: Processor class → model_type, for processors whose config.json is absent or unknown.
PROCESSOR_CLASSES = {
    "Qwen2VLProcessor": "qwen2_vl",
    "Qwen2_5_VLProcessor": "qwen2_5_vl",
    "Qwen3VLProcessor": "qwen3_vl",
    "Gemma3Processor": "gemma3",
    "Gemma4Processor": "gemma4",
    "Glm4vProcessor": "glm4v",
    "Glm46VProcessor": "glm46v",
    "Kimi_K25Processor": "kimi_k25",
    "KimiVLProcessor": "kimi_vl",
    "PixtralProcessor": "pixtral",
    "NemotronH_Omni_Reasoning_V3Processor": "nemotron_h_omni",
    "InternVLProcessor": "internvl",
    "SmolVLMProcessor": "smolvlm",
    "Idefics3Processor": "idefics3",
    "LlavaProcessor": "llava",
    "LlavaNextProcessor": "llava_next",
    "LlavaOnevisionProcessor": "llava_onevision",
    "Qwen2AudioProcessor": "qwen2_audio",
    "Qwen2_5OmniProcessor": "qwen2_5_omni",
    "Qwen3OmniMoeProcessor": "qwen3_omni_moe",
    "Phi4MultimodalProcessor": "phi4_multimodal",
    "VoxtralProcessor": "voxtral",
    "GraniteSpeechProcessor": "granite_speech",
    "AudioFlamingo3Processor": "audioflamingo3",
}

logger = logging.getLogger(__name__)

_registered: dict[str, type[TaskEncoder]] = {}


def register_task_encoder(model_type: str, encoder: type[TaskEncoder]) -> None:
    """Use ``encoder`` for every processor of this ``model_type``, before the built-in one.

    A package can do the same without a call, with an entry point in the group ``packloom.task_encoders``.
    """
    if not model_type or not isinstance(encoder, type):
        raise ConfigError(f"register_task_encoder takes a model type and a class, got {model_type!r} and {encoder!r}")
    _registered[model_type] = encoder


def shared_model_type(processor_class: str, config: Mapping[str, Any]) -> str | None:
    """The model type that config.json gives, if the processor class is shared and that is one of those that do."""
    model_type = config.get("model_type")
    return model_type if model_type in SHARED_CLASSES.get(processor_class, ()) else None


def find_encoder(*, model_type: str | None, processor_class: str | None, text_only: bool) -> type[TaskEncoder]:
    """Look in the user's registrations, then in entry points, then among the built-ins.

    A tokenizer of an unknown model gets the text encoder, an unknown processor the generic one, which measures it.
    Raises CapabilityError for the models of NOT_YET.
    """
    by_class = PROCESSOR_CLASSES.get(processor_class or "")
    model_type = SHARED_MODEL_TYPES.get((model_type, processor_class), model_type)
    if model_type is None and processor_class in SHARED_CLASSES:
        logger.warning(
            "a %s is taken for %s, but %s share this class: pass model_type to be sure",
            processor_class,
            by_class,
            ", ".join(SHARED_CLASSES[processor_class]),
        )
    for candidate in (model_type, by_class):
        found = _lookup(candidate) if candidate else None
        if found is not None:
            return found
        if candidate in NOT_YET:
            raise CapabilityError(
                f"the model type {candidate!r} is not supported: packloom does not know {NOT_YET[candidate]}. Declare a"
                " family and register it with packloom.register_task_encoder"
            )
    return _load(GENERIC_TEXT if text_only else GENERIC)


def _lookup(model_type: str) -> type[TaskEncoder] | None:
    if model_type in _registered:
        return _registered[model_type]
    for entry in entry_points(group=ENTRY_POINT_GROUP, name=model_type):
        loaded: type[TaskEncoder] = entry.load()
        return loaded
    if model_type not in BUILT_IN:
        return None
    return _load(BUILT_IN[model_type])


def _load(path: str) -> type[TaskEncoder]:
    module, _, attribute = path.partition(":")
    loaded: type[TaskEncoder] = getattr(importlib.import_module(module), attribute)
    return loaded

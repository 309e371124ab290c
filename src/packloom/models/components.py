"""A model goes in; which of its parameters are tower, projector and language model comes out, by real names.

A tower is called "vision" whether it sees or hears.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from torch import nn

from packloom.errors import CapabilityError, ConfigError
from packloom.models.signature import model_config

Component = Literal["vision", "projector", "language"]
COMPONENTS: tuple[Component, ...] = ("vision", "projector", "language")

#: Levels that wrappers (DDP, torch.compile, checkpoint wrappers) put into parameter names.
_WRAPPERS = re.compile(r"(^|\.)(_orig_mod|_checkpoint_wrapped_module|_fsdp_wrapped_module)(?=\.)|^module(?=\.)")


@dataclass(frozen=True, kw_only=True)
class ComponentMap:
    """Name prefixes of each component; a prefix ends at a dot. ``optional`` ones need not occur in every model."""

    vision: tuple[str, ...]
    projector: tuple[str, ...]
    language: tuple[str, ...] = ("model.language_model", "lm_head")
    optional: tuple[str, ...] = ()

    def prefixes(self, component: Component) -> tuple[str, ...]:
        """The prefixes of one component."""
        return {"vision": self.vision, "projector": self.projector, "language": self.language}[component]


def _visual(*vision: str, projector: tuple[str, ...] = ("merger",)) -> ComponentMap:
    """The layout of the Qwen-VL and GLM-V families: tower and projector are both under ``model.visual``."""
    return ComponentMap(
        vision=tuple(f"model.visual.{name}" for name in vision),
        projector=tuple(f"model.visual.{name}" for name in projector),
    )


_QWEN2 = _visual("patch_embed", "blocks")
_QWEN3 = _visual("patch_embed", "pos_embed", "blocks", projector=("merger", "deepstack_merger_list"))
_QWEN3_5 = _visual("patch_embed", "pos_embed", "blocks")
_GLM = _visual(
    "embeddings",
    "patch_embed",
    "blocks",
    "post_conv_layernorm",
    "post_layernorm",
    projector=("merger", "downsample"),
)
_LLAVA = ComponentMap(vision=("model.vision_tower",), projector=("model.multi_modal_projector",))
_LLAVA_NEXT = ComponentMap(
    vision=("model.vision_tower",), projector=("model.multi_modal_projector", "model.image_newline")
)
_IDEFICS = ComponentMap(
    vision=("model.vision_model",), projector=("model.connector",), language=("model.text_model", "lm_head")
)

#: ``model_type`` of the configuration → map, read off the models of transformers 5.24.
COMPONENT_MAPS: Mapping[str, ComponentMap] = {
    "gemma3": _LLAVA,
    "gemma4": ComponentMap(
        vision=("model.vision_tower", "model.audio_tower"),
        projector=("model.embed_vision", "model.embed_audio"),
        optional=("model.audio_tower", "model.embed_audio"),
    ),
    # no tower: its projector reads the patches themselves
    "gemma4_unified": ComponentMap(
        vision=(), projector=("model.embed_vision", "model.embed_audio"), optional=("model.embed_audio",)
    ),
    "glm46v": _GLM,
    "glm4v": _GLM,
    "glm4v_moe": _GLM,
    "idefics3": _IDEFICS,
    "internvl": _LLAVA,
    "kimi_k25": ComponentMap(vision=("model.vision_tower",), projector=("model.mm_projector",)),
    "llava": _LLAVA,
    "llava_next": _LLAVA_NEXT,
    "llava_onevision": _LLAVA_NEXT,
    "mistral3": _LLAVA,
    "mistral_large4": _LLAVA,
    "nemotron_h_omni": ComponentMap(
        vision=("vision_model", "audio_tower"),
        projector=("multi_modal_projector", "embed_audio"),
        language=("language_model",),
        optional=("audio_tower", "embed_audio"),
    ),
    "qwen2_5_omni_thinker": ComponentMap(
        vision=(
            "model.visual.patch_embed",
            "model.visual.blocks",
            *(f"model.audio_tower.{name}" for name in ("conv1", "conv2", "layers", "ln_post", "audio_bos_eos_token")),
        ),
        projector=("model.visual.merger", "model.audio_tower.proj"),
    ),
    "qwen2_5_vl": _QWEN2,
    "qwen2_audio": ComponentMap(vision=("model.audio_tower",), projector=("model.multi_modal_projector",)),
    "qwen2_vl": _QWEN2,
    "qwen3_5": _QWEN3_5,
    "qwen3_5_moe": _QWEN3_5,
    "qwen3_vl": _QWEN3,
    "qwen3_vl_moe": _QWEN3,
    "qwen4_exp": _QWEN3_5,
    "smolvlm": _IDEFICS,
}


def find_components(model: nn.Module) -> ComponentMap:
    """The built-in map of the model's type; CapabilityError for a type without one."""
    config = model_config(model)
    model_type = "" if config is None else str(config.model_type)
    if model_type not in COMPONENT_MAPS:
        raise CapabilityError(
            f"there is no component map for model type {model_type!r} (known: {', '.join(COMPONENT_MAPS)}): pass"
            " components=ComponentMap(vision=(...), projector=(...), language=(...)) with prefixes of parameter names"
        )
    return COMPONENT_MAPS[model_type]


def named_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """All parameters under all of their names (a tied one has several), without the levels that wrappers add."""
    for name, parameter in model.named_parameters(remove_duplicate=False):
        yield without_wrappers(name), parameter


def without_wrappers(name: str) -> str:
    """The name of a parameter or module, without the levels that wrappers add."""
    return _WRAPPERS.sub("", name).lstrip(".")


def assign_components(model: nn.Module, components: ComponentMap | None = None) -> dict[str, Component]:
    """Parameter name → component, for every parameter under every name.

    Raises ConfigError for prefixes that match nothing, parameters that several components claim, and parameters that
    none does: whatever a map does not name would be trained, or frozen, unnoticed.
    """
    found = components or find_components(model)
    names = [name for name, _ in named_parameters(model)]
    _check_prefixes(found, names)
    claims = {name: [item for item in COMPONENTS if _claims(found.prefixes(item), name)] for name in names}
    doubled = {name: claim for name, claim in claims.items() if len(claim) > 1}
    if doubled:
        name, claim = next(iter(doubled.items()))
        raise ConfigError(f"{len(doubled)} parameter(s) belong to several components, e.g. {name} to {claim}")
    left = [name for name, claim in claims.items() if not claim]
    if left:
        raise ConfigError(
            f"{len(left)} parameter(s) belong to no component: {', '.join(left[:5])}: name their prefixes in"
            " components=ComponentMap(...)"
        )
    return {name: claim[0] for name, claim in claims.items()}


def _check_prefixes(components: ComponentMap, names: list[str]) -> None:
    for component in COMPONENTS:
        for prefix in components.prefixes(component):
            if prefix not in components.optional and not any(_claims((prefix,), name) for name in names):
                tops = sorted({".".join(name.split(".")[:2]) for name in names})
                raise ConfigError(
                    f"the {component} prefix {prefix!r} matches no parameter; the model has {', '.join(tops)}"
                )


def _claims(prefixes: tuple[str, ...], name: str) -> bool:
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)

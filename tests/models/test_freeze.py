"""Component maps over real parameter names, and what freezing leaves, refuses and reports."""

from __future__ import annotations

import copy
import dataclasses
import importlib.util
import pickle
from pathlib import Path

import pytest
import torch
import transformers

from packloom.errors import CapabilityError, ConfigError
from packloom.models.components import COMPONENT_MAPS, ComponentMap, assign_components, named_parameters
from packloom.models.freeze import upcast_trainable
from packloom.models.model_kit import apply_freeze_policy
from packloom.task_encoders.registry import BUILT_IN

SPEC = importlib.util.spec_from_file_location("family_models_for_names", Path(__file__).with_name("family_models.py"))
FAMILY_MODELS = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(FAMILY_MODELS)
COMPONENTS = {"vision", "projector", "language"}


def skeleton(family):
    """The model of a family without memory behind its parameters."""
    name, settings = FAMILY_MODELS.MODELS[family]
    model_class = getattr(transformers, name)
    with torch.device("meta"):
        return model_class(model_class.config_class(**settings))


@pytest.mark.parametrize("family", sorted(FAMILY_MODELS.MODELS))
def test_every_parameter_of_every_family_has_one_component(family):
    model = skeleton(family)
    assigned = assign_components(model)
    assert set(assigned.values()) == COMPONENTS
    assert set(assigned) == {name for name, _ in model.named_parameters(remove_duplicate=False)}
    by_word = {
        "vision": ("blocks.0", "encoder.layers.0", "transformer.layers.0", "layers.0", "encoder.layer.0"),
        "projector": ("merger", "projector", "connector", "embed_vision"),
        "language": ("lm_head", "embed_tokens"),
    }
    for component, words in by_word.items():
        own = [name for name, value in assigned.items() if value == component]
        assert any(word in name for name in own for word in words), (component, own)


TWO = {"num_hidden_layers": 2}
#: registered model types that share a processor with one above, or whose processor is not at hand
OTHERS = {
    "gemma4_unified": (TWO | {"layer_types": ["sliding_attention", "full_attention"]}, {}),
    "glm4v_moe": (TWO, {"depth": 2}),
    "idefics3": (TWO | {"model_type": "llama"}, TWO),
    "mistral_large4": (TWO, TWO),
    "nemotron_h_omni": ({"layers_block_type": ["mamba", "attention"]}, TWO | {"video_temporal_patch_size": 2}),
    "qwen3_5_moe": (TWO | {"layer_types": ["linear_attention", "full_attention"]}, {"depth": 2}),
    "qwen3_vl_moe": (TWO, {"depth": 2, "deepstack_visual_indexes": [0]}),
    "qwen4_exp": (TWO, {"depth": 2}),
}


@pytest.mark.parametrize("model_type", sorted(OTHERS))
def test_every_parameter_of_every_other_model_type_has_one_component(model_type):
    text, vision = OTHERS[model_type]
    config = transformers.AutoConfig.for_model(model_type, text_config=text, vision_config=vision)
    with torch.device("meta"):
        model = transformers.AutoModelForImageTextToText.from_config(config)
    assigned = assign_components(model)
    towers = set() if model_type == "gemma4_unified" else {"vision"}  # that one has no tower
    assert set(assigned.values()) == {"projector", "language"} | towers
    for name, component in assigned.items():
        in_language = "language_model." in name or "text_model." in name or name.startswith("lm_head")
        assert in_language == (component == "language"), name
    if not towers:
        with pytest.raises(ConfigError, match="no parameters that are vision"):
            apply_freeze_policy(model, vision=True)


def test_every_registered_model_with_images_has_a_map():
    classes = transformers.models.auto.modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    assert sorted(name for name in BUILT_IN if name in classes and name not in COMPONENT_MAPS) == []
    tried = {skeleton(family).config.model_type for family in FAMILY_MODELS.MODELS} | OTHERS.keys()
    assert tried == COMPONENT_MAPS.keys()


def modes(model):
    return {name: module.training for name, module in model.named_modules()}


def test_a_frozen_tower_stays_in_eval_mode():
    model = torch.nn.ModuleDict(
        {name: torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout()) for name in "abc"}
    )
    model["a"].append(torch.nn.BatchNorm1d(2))
    components = ComponentMap(vision=("a.0", "a.1", "a.2"), projector=("b",), language=("c",))
    components = dataclasses.replace(components, optional=("a.1",))
    apply_freeze_policy(model, vision=True, components=components)
    model = pickle.loads(pickle.dumps(copy.deepcopy(model))).train()
    inputs, before = torch.ones(8, 2), model["a"][2].running_mean.clone()
    assert torch.equal(model["a"](inputs), model["a"](inputs))
    assert torch.equal(model["a"][2].running_mean, before)
    assert not torch.equal(model["b"](inputs), model["b"](inputs))  # the projector is trained
    apply_freeze_policy(model, vision=True, projector=True, components=components)
    model.train()
    assert torch.equal(model["b"](inputs), model["b"](inputs))
    assert not torch.equal(model["c"](inputs), model["c"](inputs))


@pytest.mark.parametrize("frozen", [{"vision": True, "frozen_eval": False}, {"language": True}, {"projector": True}])
def test_what_gradients_pass_through_keeps_its_mode(model, frozen):
    apply_freeze_policy(model.train(), **frozen)
    assert all(modes(model).values())


@pytest.fixture
def model():
    return skeleton("qwen3_vl")


def test_freezing_vision_freezes_its_position_embedding(model):
    report = apply_freeze_policy(model, vision=True)
    assert not model.model.visual.pos_embed.weight.requires_grad
    assert not any(p.requires_grad for p in model.model.visual.blocks.parameters())
    assert all(p.requires_grad for p in model.model.visual.merger.parameters())
    assert all(p.requires_grad for p in model.model.language_model.parameters())
    assert set(report.frozen_names) == {name for name, p in model.named_parameters() if not p.requires_grad}
    assert report.frozen["vision"] > 0
    assert report.trained["vision"] == report.frozen["language"] == 0
    total = sum(p.numel() for p in model.parameters())
    assert sum(report.frozen.values()) + sum(report.trained.values()) == total
    line = f"vision     {report.frozen['vision']:>15,} {0:>15}"
    assert line in str(report).splitlines()


def changed(**prefixes):
    return dataclasses.replace(COMPONENT_MAPS["qwen3_vl"], **prefixes)


@pytest.mark.parametrize(
    ("components", "message"),
    [
        (changed(vision=("model.visual.patch_embed", "model.visual.blocks")), "pos_embed.weight: name their prefixes"),
        (changed(vision=("model.vision_tower",)), "vision prefix 'model.vision_tower' matches no parameter"),
        (changed(vision=("model.visual",)), r"several components, e\.g\. model\.visual\.merger"),
        (changed(language=("model.language_mode", "lm_head")), "'model.language_mode' matches no parameter"),
    ],
)
def test_maps_that_do_not_fit(model, components, message):
    with pytest.raises(ConfigError, match=message):
        apply_freeze_policy(model, vision=True, components=components)


def test_something_must_be_left(model):
    with pytest.raises(ConfigError, match="freezing vision, projector, language leaves no parameter"):
        apply_freeze_policy(model, vision=True, projector=True, language=True)
    assert all(p.requires_grad for p in model.parameters())


def test_a_tied_parameter_is_frozen_under_all_its_names_or_none():
    model = skeleton("qwen2_vl")
    model.lm_head.weight = model.model.language_model.embed_tokens.weight
    assert {"lm_head.weight", "model.language_model.embed_tokens.weight"} <= {n for n, _ in named_parameters(model)}
    split = dataclasses.replace(
        COMPONENT_MAPS["qwen2_vl"],
        language=("model.language_model",),
        projector=("model.visual.merger", "lm_head"),
    )
    with pytest.raises(ConfigError, match="are one tied parameter: freeze both or none"):
        apply_freeze_policy(model, language=True, components=split)
    report = apply_freeze_policy(model, language=True)
    assert not model.lm_head.weight.requires_grad
    assert report.frozen["language"] == sum(p.numel() for p in model.model.language_model.parameters())


def test_a_model_of_an_unknown_type_needs_a_map():
    with pytest.raises(CapabilityError, match="no component map for model type ''"):
        apply_freeze_policy(torch.nn.Linear(2, 2), vision=True)


def test_names_are_those_without_wrappers():
    model = torch.nn.Sequential()
    model.module = torch.nn.Sequential()
    model.module.tower = torch.nn.Sequential()
    model.module.tower._orig_mod = torch.nn.Linear(2, 2, bias=False)
    model.module.gate = torch.nn.Linear(2, 2, bias=False)
    model.module.head = torch.nn.Linear(2, 2, bias=False)
    components = ComponentMap(vision=("tower",), projector=("gate",), language=("head",))
    assert assign_components(model, components) == {
        "tower.weight": "vision",
        "gate.weight": "projector",
        "head.weight": "language",
    }


def test_only_trained_parameters_are_cast():
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 2)).to(torch.bfloat16)
    model[0].requires_grad_(False)
    assert upcast_trainable(model) == 8
    assert [p.dtype for p in model.parameters()] == [torch.bfloat16] * 2 + [torch.float32] * 2

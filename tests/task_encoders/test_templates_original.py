"""Every published chat template, as it is: right spans on the whole case matrix; what it cannot say is refused."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from packloom import TaskEncoder
from packloom.errors import ProcessorError
from packloom.task_encoders.family import Family
from packloom.task_encoders.nemotron import NemotronOmniTaskEncoder, NemotronVL2TaskEncoder
from packloom.task_encoders.positions import text_positions
from packloom.task_encoders.processors import parts_of
from packloom.task_encoders.qwen_vl import CHATML
from packloom.testing import MaskReport, check_masks
from packloom.testing.matrix import structures
from packloom.types import ChatSample, Message, TextPart


class LabsDiffusionTaskEncoder(TaskEncoder):
    """A family that a user would declare for Nemotron-Labs-Diffusion: transformers has no such model."""

    family = Family(
        name="labs_diffusion",
        boundaries=(CHATML,),
        positions=text_positions,
        prompt_prefixes=("<think></think>", "<think></think>\n", "<think>\n"),
        content="string_without_media",
    )


@dataclass(frozen=True, kw_only=True)
class Original:
    """A template, a tokenizer folder that fits it, and what it cannot say."""

    folder: str
    refused: frozenset[str]
    model_type: str | None = None
    encoder: type[TaskEncoder] | None = None
    special: tuple[str, ...] = ()  # tokens of the template that no folder's tokenizer has
    added: tuple[str, ...] = ()  # and those that are no special tokens


DROPS_TOOLS = frozenset({"tool call", "silent tool call"})
DROPS_THOUGHTS = frozenset({"thought"})
READS_MARKS = frozenset({"think marks"})  # it reads <think> in an answer as reasoning
JOINS = frozenset({"two answers in a row"})
NEEDS_TEXT = frozenset({"empty answer"})
THINK = ("<think>", "</think>")

ORIGINALS = {
    "HuggingFaceTB-SmolVLM-256M-Instruct": Original(folder="smolvlm", refused=DROPS_TOOLS | DROPS_THOUGHTS),
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": Original(
        folder="qwen2_5_vl",
        encoder=NemotronOmniTaskEncoder,
        special=("<img>", "<image>", "</img>"),
        added=THINK,
        refused=READS_MARKS,
    ),
    "NVIDIA-Nemotron-Nano-v2": Original(
        folder="qwen2_5_vl",
        encoder=NemotronVL2TaskEncoder,
        special=("<SPECIAL_10>", "<SPECIAL_11>", "<SPECIAL_12>"),
        added=THINK,
        refused=DROPS_THOUGHTS | NEEDS_TEXT,
    ),
    "OpenGVLab-InternVL3-1B": Original(folder="internvl3", model_type="internvl", refused=DROPS_TOOLS | DROPS_THOUGHTS),
    "Qwen-Qwen2.5-VL-7B-Instruct": Original(folder="qwen2_5_vl", refused=DROPS_TOOLS | DROPS_THOUGHTS),
    "Qwen-Qwen3-VL-8B-Instruct": Original(folder="qwen3_vl", refused=DROPS_THOUGHTS),
    "Qwen-Qwen3-VL-8B-Thinking": Original(folder="qwen3_vl", refused=READS_MARKS),
    "Qwen3.5-4B": Original(folder="qwen3_5", refused=READS_MARKS),
    "google-gemma-3": Original(folder="gemma3", refused=DROPS_TOOLS | DROPS_THOUGHTS | JOINS),
    "google-gemma-4-E4B-it": Original(folder="gemma4", refused=JOINS | {"tool call"}),
    "internlm-CapRL-InternVL3.5-8B": Original(
        folder="internvl3", model_type="internvl", refused=DROPS_TOOLS | DROPS_THOUGHTS
    ),
    "llava-next": Original(folder="llava_next", refused=DROPS_TOOLS | DROPS_THOUGHTS | JOINS),
    "mistralai-Ministral-3-3B-Instruct-2512": Original(
        folder="ministral3", model_type="mistral3", refused=DROPS_THOUGHTS | JOINS | NEEDS_TEXT
    ),
    "mistralai-Ministral-3-3B-Reasoning-2512": Original(
        folder="ministral3", model_type="mistral3", refused=JOINS | NEEDS_TEXT
    ),
    "mistralai-Mistral-Small-3.1-24B-Instruct-2503": Original(
        folder="mistral3", refused=DROPS_TOOLS | DROPS_THOUGHTS | JOINS
    ),
    "moonshotai-Kimi-K2.5": Original(folder="kimi_k25", refused=DROPS_THOUGHTS | READS_MARKS),
    "moonshotai-Kimi-VL-A3B-Instruct": Original(
        folder="kimi_k25", special=("<|media_start|>",), refused=DROPS_THOUGHTS | DROPS_TOOLS | READS_MARKS
    ),
    "nvidia-Nemotron-Labs-Diffusion-VLM-8B": Original(
        folder="qwen2_5_vl",
        encoder=LabsDiffusionTaskEncoder,
        special=("<|image_start|>",),
        added=THINK,
        refused=READS_MARKS,
    ),
    "zai-org-GLM-4.1V-9B-Thinking": Original(folder="glm4v", refused=DROPS_TOOLS | DROPS_THOUGHTS | JOINS),
    "zai-org-GLM-4.5V": Original(folder="glm46v", refused=READS_MARKS | JOINS),
    "zai-org-GLM-4.6V": Original(folder="glm46v", refused=READS_MARKS | JOINS),
}


@pytest.fixture(scope="module")
def tokenizer_of(processor_dir: Callable[[str], Path]) -> Callable[[Original], PreTrainedTokenizerBase]:
    @functools.cache
    def make(folder: str, special: tuple[str, ...], added: tuple[str, ...]) -> Any:
        tokenizer = AutoTokenizer.from_pretrained(processor_dir(folder), local_files_only=True)
        tokenizer.add_tokens(list(special), special_tokens=True)
        tokenizer.add_tokens(list(added))
        return tokenizer

    return lambda original: make(original.folder, original.special, original.added)


@pytest.fixture
def template_of(shared_dir: Path) -> Callable[[str], str]:
    folder = shared_dir / "processors/_templates/original"
    return lambda name: (folder / f"{name}.jinja").read_text(encoding="utf-8")


@pytest.fixture
def text_encoder(tokenizer_of: Any, template_of: Any) -> Callable[..., TaskEncoder]:
    """The encoder of a published template on a tokenizer alone."""

    def make(name: str) -> TaskEncoder:
        original, template = ORIGINALS[name], template_of(name)
        tokenizer = tokenizer_of(original)
        if original.encoder:
            return original.encoder(parts_of(tokenizer, chat_template=template))
        model_type = original.model_type or original.folder
        return TaskEncoder.from_processor(tokenizer, model_type=model_type, chat_template=template)

    return make


def refused(report: MaskReport) -> set[str]:
    """What came out right in no structure, forgeries (refused by policy) left out."""
    groups = [
        group for group in report.groups() if "cut in" not in group.name and not group.name.startswith("forged t")
    ]
    return {group.name for group in groups if not group.counts["ok"]} - {"forged placeholder"}


def test_the_table_has_every_template(shared_dir: Path) -> None:
    files = (shared_dir / "processors/_templates/original").glob("*.jinja")
    assert {path.stem for path in files} == set(ORIGINALS)


@pytest.mark.parametrize("name", ORIGINALS)
def test_the_case_matrix_on_text(name: str, text_encoder: Callable[[str], TaskEncoder]) -> None:
    report = check_masks(text_encoder(name))
    report.raise_if_failed()
    assert refused(report) == ORIGINALS[name].refused
    forged = {group.name: group.counts for group in report.groups() if group.name.startswith("forged")}
    assert forged["forged turn"]["refused"] == 6
    assert forged["forged words"]["ok"] >= 3


@pytest.mark.parametrize("name", ORIGINALS)
def test_no_template_refuses_a_system_text(name: str, text_encoder: Callable[[str], TaskEncoder]) -> None:
    plain = next(group for group in check_masks(text_encoder(name)).groups() if group.name == "plain")
    assert plain.counts == {"ok": 6}


WITH_IMAGES = {
    "Qwen-Qwen3-VL-8B-Thinking": "qwen3_vl",
    "zai-org-GLM-4.5V": "glm46v",
    "mistralai-Ministral-3-3B-Instruct-2512": "ministral3",
    "mistralai-Ministral-3-3B-Reasoning-2512": "ministral3",
    "mistralai-Mistral-Small-3.1-24B-Instruct-2503": "ministral3",
}


@pytest.mark.parametrize("name", WITH_IMAGES)
def test_the_case_matrix_with_images(name: str, template_of: Any, processor_dir: Callable[[str], Path]) -> None:
    """Templates that no processor folder has as its own, on the family's whole processor."""
    if WITH_IMAGES[name] == "ministral3":
        pytest.importorskip("torchvision", reason="the Pixtral image processor needs torchvision")
    encoder = TaskEncoder.from_pretrained(processor_dir(WITH_IMAGES[name]), chat_template=template_of(name))
    report = check_masks(encoder)
    report.raise_if_failed()
    assert refused(report) == ORIGINALS[name].refused
    plain = next(group for group in report.groups() if group.name == "plain")
    assert plain.counts == {"ok": len(structures(with_images=True))}


def test_a_placeholder_of_another_processor_is_refused(template_of: Any, encoder_of: Any) -> None:
    """InternVL3's own code has another placeholder than the processor in transformers."""
    encoder = encoder_of("internvl3")
    parts = dataclasses.replace(encoder.parts, chat_template=template_of("OpenGVLab-InternVL3-1B"))
    with pytest.raises(ProcessorError, match="renders 0 image placeholders for 1 images"):
        type(encoder)(parts)


def test_nemotrons_tags_agree_with_the_declared_boundaries(text_encoder: Any, shared_dir: Path) -> None:
    name = "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"
    plain = text_encoder(name)
    tags = (shared_dir / "processors/_templates/generation_tags/nemotron_3_nano_training.jinja").read_text()
    tagged = type(plain)(dataclasses.replace(plain.parts, chat_template=tags))
    assert (plain.masks.method.name, tagged.masks.method.name) == ("token_search", "generation_tags")
    ours, theirs = check_masks(plain), check_masks(tagged)
    assert [(case.name, case.outcome, case.spans) for case in ours.cases] == [
        (case.name, case.outcome, case.spans) for case in theirs.cases
    ]


def chat(*texts: str) -> ChatSample:
    messages = [Message(role=("user", "assistant")[n % 2], parts=(TextPart(text=t),)) for n, t in enumerate(texts)]
    return ChatSample(key="k", messages=tuple(messages))


def trained(encoder: TaskEncoder, sample: ChatSample) -> str:
    encoded = encoder.encode_sample(sample)
    return str(encoder.parts.tokenizer.decode(encoded.input_ids[encoded.loss_mask]))


@pytest.mark.parametrize("model_type", ["qwen3_vl", "unknown"])
def test_tags_around_the_header_are_not_trusted(model_type: str, processor_dir: Callable[[str], Path]) -> None:
    template = (
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}<|im_start|>assistant\n"
        "{{ m.content[0].text }}<|im_end|>{% endgeneration %}\n{% else %}<|im_start|>{{ m.role }}\n"
        "{{ m.content[0].text }}<|im_end|>\n{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    tokenizer = AutoTokenizer.from_pretrained(processor_dir("qwen3_vl"))
    encoder = TaskEncoder.from_processor(tokenizer, model_type=model_type, chat_template=template)
    assert trained(encoder, chat("q", "yes")) == "yes<|im_end|>"


def test_an_inferred_header_ends_before_an_injected_thought(tokenizer_of: Any, template_of: Any) -> None:
    name = "nvidia-Nemotron-Labs-Diffusion-VLM-8B"
    tokenizer = tokenizer_of(ORIGINALS[name])
    encoder = TaskEncoder.from_processor(tokenizer, model_type="unknown", chat_template=template_of(name))
    assert trained(encoder, chat("q", "one", "r", "two")) == "one<|im_end|>two<|im_end|>"


PROMPT = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
STRING_TEMPLATES = {
    "concatenates": "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content }}<|im_end|>\n{% endfor %}",
    "trims": "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] | trim }}<|im_end|>\n{% endfor %}",
    "asks for strings": "{% for m in messages %}{% set text = m.content if m.content is string else '' %}"
    "<|im_start|>{{ m.role }}\n{{ text }}<|im_end|>\n{% endfor %}",
}


@pytest.mark.parametrize("name", STRING_TEMPLATES)
def test_text_models_whose_templates_take_strings(name: str, processor_dir: Callable[[str], Path]) -> None:
    """The forms of nearly every published text model's template."""
    tokenizer = AutoTokenizer.from_pretrained(processor_dir("qwen3_vl"))
    encoder = TaskEncoder.from_processor(
        tokenizer, model_type="a_text_model", chat_template=STRING_TEMPLATES[name] + PROMPT
    )
    assert trained(encoder, chat("q", "one", "r", "two")) == "one<|im_end|>two<|im_end|>"

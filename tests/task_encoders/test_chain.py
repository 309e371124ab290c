"""The chain: generation tags, declared boundaries, inferred boundaries, or an error that says why."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from packloom import TaskEncoder
from packloom.errors import MaskError, ProcessorError
from packloom.task_encoders.family import Family
from packloom.task_encoders.positions import text_positions
from packloom.task_encoders.qwen_vl import Qwen2_5VLTaskEncoder

TALK = [
    {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
    {"role": "assistant", "content": [{"type": "text", "text": "Hello there"}]},
    {"role": "user", "content": [{"type": "text", "text": "Bye"}]},
    {"role": "assistant", "content": [{"type": "text", "text": "See you"}]},
]


class NoFacts(TaskEncoder):
    """A family that declares nothing about turns."""

    family = Family(name="unknown", boundaries=(), positions=text_positions)


def trained(encoder: TaskEncoder, messages: list = TALK, **parts: bytes) -> list[str]:
    sample = encoder.encode_sample({"__key__": "k", "json": {"messages": messages}, **parts})
    tokens = zip(sample.input_ids.tolist(), sample.loss_mask.tolist(), strict=True)
    groups = itertools.groupby(tokens, key=lambda pair: pair[1])
    return [encoder.parts.tokenizer.decode([i for i, _ in group]) for yes, group in groups if yes]


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl", "gemma3"])
def test_generation_tags_give_the_same_masks_but_for_the_newline(family, encoder_of, shared_dir, picture):
    tagged_text = (shared_dir / f"processors/_templates/generation_tags/{family}_training.jinja").read_text()
    plain = encoder_of(family)
    tagged = type(plain)(dataclasses.replace(plain.parts, chat_template=tagged_text))
    assert (plain.masks.method.name, tagged.masks.method.name) == ("token_search", "generation_tags")
    images = [{"type": "image"}, *TALK[0]["content"]]
    for talk, parts in ((TALK, {}), ([{**TALK[0], "content": images}, *TALK[1:]], {"0.png": picture(70, 60)})):
        assert trained(tagged, talk, **parts) == trained(plain, talk, **parts)
        assert len(trained(plain, talk, **parts)) == 2

    theirs = plain.parts.tokenizer.apply_chat_template(
        TALK, chat_template=tagged_text, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
    )
    ours = tagged.encode_sample({"__key__": "k", "json": {"messages": TALK}})
    assert ours.input_ids.tolist() == theirs["input_ids"]
    newline = plain.parts.tokenizer("\n", add_special_tokens=False)["input_ids"][0]
    for token, mine, other in zip(theirs["input_ids"], ours.loss_mask.tolist(), theirs["assistant_masks"], strict=True):
        assert mine == bool(other) or token == newline
    assert sum(theirs["assistant_masks"]) - int(ours.loss_mask.sum()) in (0, 2)


@pytest.mark.parametrize("broken", ["{% generation %}{% endgeneration %}", "{% generation %}"])
def test_wrong_tags_are_not_trusted(broken, encoder_of, caplog):
    right = encoder_of("qwen2_5_vl").parts
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n"
        "{% for c in m.content %}{% if c.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
        "{% else %}{{ c.text }}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
    )
    tags = "{% generation %}x{% endgeneration %}" if broken == "{% generation %}" else broken
    encoder = Qwen2_5VLTaskEncoder(dataclasses.replace(right, chat_template=tags.replace("x", "") + template))
    assert encoder.masks.method.name == "token_search"
    assert "generation tags: " in caplog.text
    assert trained(encoder) == ["Hello there<|im_end|>", "See you<|im_end|>"]


ODD_TEMPLATES = {
    "a prompt header and special ends": (
        "{% for m in messages %}<|object_ref_start|>{{ {'user': 'Q', 'assistant': 'A'}[m.role] }}: "
        "{{ m.content[0].text }}<|object_ref_end|>{% endfor %}"
        "{% if add_generation_prompt %}<|object_ref_start|>A:{% endif %}",
        "<|object_ref_end|>",
        " ",
    ),
    "no generation prompt, trimmed texts": (
        "{% for m in messages %}{% if m.role == 'assistant' %}=> {{ m.content[0].text | trim }}<|endoftext|>"
        "{% else %}## {{ m.content[0].text | trim }}\n{% endif %}{% endfor %}",
        "<|endoftext|>",
        " ",
    ),
    "nothing but ends": ("{% for m in messages %}{{ m.content[0].text }}<|im_end|>{% endfor %}", "<|im_end|>", ""),
    "one token between all turns": (
        "{% for m in messages %}<|box_start|>{{ m.role }}<|box_end|>{{ m.content[0].text }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}<|box_start|>assistant<|box_end|>{% endif %}",
        "<|im_end|>",
        "",
    ),
}


@pytest.mark.parametrize("name", ODD_TEMPLATES)
def test_boundaries_are_inferred_from_a_template_never_seen(name, encoder_of):
    template, end, space = ODD_TEMPLATES[name]
    parts = dataclasses.replace(encoder_of("qwen2_5_vl").parts, chat_template=template, image_processor=None)
    encoder = NoFacts(parts)
    assert encoder.masks.method.name == "inferred_boundaries"
    assert trained(encoder) == [f"{space}Hello there{end}", f"{space}See you{end}"]
    trailing = [*TALK, {"role": "user", "content": [{"type": "text", "text": "A: => x"}]}]
    assert trained(encoder, trailing) == trained(encoder)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (
            "{% for m in messages %}{{ m.role }}: {{ m.content[0].text }}\n{% endfor %}",
            "no special token stands behind",
        ),
        ("{% for m in messages %}{{ m.role }}<|im_end|>{% endfor %}", "drops the text"),
        ("{{ raise_exception('not today') }}", "not today"),
    ],
)
def test_a_template_that_cannot_be_understood_is_refused_with_the_reason(template, reason, encoder_of):
    parts = dataclasses.replace(encoder_of("qwen2_5_vl").parts, chat_template=template, image_processor=None)
    with pytest.raises(ProcessorError, match=f"cannot tell where the assistant speaks.*{reason}"):
        NoFacts(parts)


def test_a_text_only_tokenizer_without_a_family_works(encoder_of):
    parts = encoder_of("qwen3_vl").parts
    encoder = TaskEncoder.from_processor(parts.tokenizer, model_type="some_text_model")
    assert trained(encoder) == ["Hello there<|im_end|>", "See you<|im_end|>"]


def test_dated_templates_are_followed(encoder_of):
    template = (
        "{{ now.day }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content[0].text }}<|im_end|>\n{% endfor %}"
    )

    class Dated(TaskEncoder):
        family = Family(
            name="dated",
            boundaries=Qwen2_5VLTaskEncoder.family.boundaries,
            positions=text_positions,
            template_variables=(("now", {"day": "1"}),),
        )

    parts = dataclasses.replace(encoder_of("qwen2_5_vl").parts, chat_template=template, image_processor=None)
    encoder = Dated(parts)
    assert trained(encoder) == ["Hello there<|im_end|>", "See you<|im_end|>"]
    encoder.template.variables["now"]["day"] = "22"
    assert trained(encoder) == ["Hello there<|im_end|>", "See you<|im_end|>"]


def test_a_template_that_rewrites_by_content_is_refused(encoder_of):
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n"
        "{{ m.content[0].text.replace('Hello', 'Bye') }}<|im_end|>\n{% endfor %}"
    )
    parts = dataclasses.replace(encoder_of("qwen2_5_vl").parts, chat_template=template, image_processor=None)
    with pytest.raises(MaskError, match=r"rewrites the text of message 1 \(assistant\)"):
        trained(Qwen2_5VLTaskEncoder(parts))


def test_a_template_that_moves_images_says_so_once(encoder_of, picture, caplog):
    parts = {"0.png": picture(40, 40)}
    question = {"role": "user", "content": [{"type": "text", "text": "Describe:"}, {"type": "image"}]}
    for family, count in (("llava_next", 1), ("qwen2_vl", 0)):
        caplog.clear()
        encoder = encoder_of(family, max_length=5000)
        for answer in ("One.", "Two."):
            talk = [question, {"role": "assistant", "content": answer}, *TALK]
            assert len(trained(encoder, talk, **parts)) == 3
        assert sum("moves images" in record.getMessage() for record in caplog.records) == count

"""What comes from cookers of users' own: media by index, odd texts, odd tools, and failures of the cooker itself."""

from __future__ import annotations

import dataclasses

import pytest

import packloom
from packloom.errors import ConfigError, CookError, MaskError, ProcessorError, SampleError
from packloom.task_encoders.chat_checks import check_chat
from packloom.types import ChatSample, Media, MediaPart, Message, TextPart


def image(index: int) -> MediaPart:
    return MediaPart(kind="image", index=index)


def chat(*parts: object, media: tuple[Media, ...] = (), **answer: object) -> ChatSample:
    reply = Message(role="assistant", parts=(TextPart(text="a"),), **answer)
    return ChatSample(
        key="c", messages=(Message(role="user", parts=parts or (TextPart(text="q"),)), reply), media=media
    )


def test_media_stand_where_their_index_says(encoder_of, picture):
    small = Media(kind="image", name="small", data=picture(28, 28))
    wide = Media(kind="image", name="wide", data=picture(56, 280))
    row = chat(image(1), TextPart(text="then"), image(0), media=(small, wide))
    sample = encoder_of("qwen2_5_vl").encode_sample(row)
    assert [item.media.name for item in sample.media] == ["wide", "small"]
    [made] = encoder_of("qwen2_5_vl").batch([sample])
    assert made.media_tensors["image_grid_thw"].tolist() == [[1, 4, 20], [1, 4, 4]]
    twice = encoder_of("qwen2_5_vl").encode_sample(chat(image(0), image(0), media=(wide,)))
    assert [item.media.name for item in twice.media] == ["wide", "wide"]


@pytest.mark.parametrize(
    ("parts", "count"), [((image(3),), 0), ((image(0),), 0), ((image(0),), 2), ((TextPart(text="x"),), 1)]
)
def test_places_and_media_must_agree(parts, count):
    media = tuple(Media(kind="image", name=str(n), data=b"x") for n in range(count))
    with pytest.raises(CookError, match=r"the parts place the media .*, but the sample has"):
        check_chat(chat(*parts, media=media))
    with pytest.raises(CookError, match="medium 0 is audio, its place is for image"):
        check_chat(chat(image(0), media=(Media(kind="audio", name="0", data=b""),)))


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (chat(TextPart(text="\ud800")), "no valid Unicode"),
        (chat(TextPart(text=7)), "a text is int"),
        (chat(tool_calls=({"function": "f"},)), "no function with a name"),
        (dataclasses.replace(chat(), tools=({"function": {"name": "f", "x": {1, 2}}},)), "not JSON"),
        (dataclasses.replace(chat(), messages=()), "no messages"),
    ],
)
def test_what_cannot_be_right_is_refused_with_the_key(broken, reason, encoder_of):
    with pytest.raises(CookError, match=reason) as error:
        encoder_of("qwen3_vl").encode_sample(broken)
    assert error.value.key == "c"


def test_a_cooker_that_fails_is_a_bad_sample_and_one_that_returns_something_else_a_bug(encoder_of):
    parts = encoder_of("qwen3_vl").parts
    kind = type(encoder_of("qwen3_vl"))
    failing = kind(parts, cooker=lambda raw: raw["absent"])
    with pytest.raises(CookError, match="the cooker fails on this row: KeyError: 'absent'") as error:
        failing.encode_sample({"__key__": "k"})
    assert error.value.key == "k"
    with pytest.raises(ConfigError, match="must return a ChatSample, got NoneType"):
        kind(parts, cooker=lambda raw: None).encode_sample({"__key__": "k"})


CALL = {"type": "function", "function": {"name": "start", "arguments": {"job": "build-42"}}}


def test_calls_and_tools_must_be_written_in_full(encoder_of):
    starting = Message(role="assistant", parts=(TextPart(text="Starting."),), tool_calls=(CALL,))
    row = ChatSample(key="c", messages=(Message(role="user", parts=(TextPart(text="start"),)), starting))
    with pytest.raises(MaskError, match="drops the tool call 'start'"):
        encoder_of("qwen2_5_vl").encode_sample(row)
    assert encoder_of("qwen3_vl").encode_sample(row).num_tokens > 20
    nameless = ChatSample(key="c", messages=(row.messages[0], dataclasses.replace(starting, parts=())))
    with pytest.raises(SampleError):
        encoder_of("smolvlm").encode_sample(nameless)
    tools = ({"type": "function", "function": {"name": "start", "parameters": {}}},)
    with pytest.raises(MaskError, match="drops the tool 'start'"):
        encoder_of("qwen2_5_vl").encode_sample(dataclasses.replace(chat(), tools=tools))


def test_settings_of_a_wrong_kind_are_named():
    for settings, message in [
        ({"max_length": "x"}, "max_length must be"),
        ({"limits": {"max_images": 1}}, "limits must be a SampleLimits"),
        ({"foo": 1}, "an encoder has no setting foo; known: max_length"),
        ({"thinking": "maybe"}, "thinking must be one of"),
    ]:
        with pytest.raises(ConfigError, match=message):
            packloom.TaskEncoder.from_pretrained("nowhere", **settings)


def test_a_processor_of_another_family_is_named(processor_dir):
    with pytest.raises(ProcessorError, match="is not of the family gemma3"):
        packloom.TaskEncoder.from_pretrained(processor_dir("qwen2_5_vl"), model_type="gemma3")


STRING_TEMPLATES = {
    "joined": "{{ m.content }}",
    "trimmed": "{{ m.content | trim }}",
    "strings alone": "{% if m.content is string %}{{ m.content }}{% endif %}",
}


@pytest.mark.parametrize("body", STRING_TEMPLATES.values(), ids=STRING_TEMPLATES)
def test_templates_that_take_strings(body, encoder_of):
    template = "{% for m in messages %}<|im_start|>{{ m.role + '\\n' }}" + body + "<|im_end|>\n{% endfor %}"
    tokenizer = encoder_of("qwen3_vl").parts.tokenizer
    encoder = packloom.TaskEncoder.from_processor(tokenizer, model_type="some_text_model", chat_template=template)
    sample = encoder.encode_sample(chat())
    assert encoder.parts.tokenizer.decode(sample.input_ids[sample.loss_mask]) == "a<|im_end|>"
    assert "[{" not in encoder.parts.tokenizer.decode(sample.input_ids)

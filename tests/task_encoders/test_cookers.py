"""cook: each row schema gives the conversation that it means, or a refusal with the sample's key and a code."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from packloom.errors import CookError
from packloom.task_encoders.cookers import cook
from packloom.types import ChatSample, MediaPart, Message, TextPart

IMAGE = [{"type": "image"}]


def raw(row: Any = None, *images: str, **parts: Any) -> dict[str, Any]:
    """A raw sample: the row as JSON bytes, and images whose bytes are their own names."""
    sample: dict[str, Any] = {"__key__": "k/000", "__url__": "s.tar"}
    if row is not None:
        sample["json"] = json.dumps(row).encode()
    return {**sample, **{name: name.encode() for name in images}, **parts}


def chat(content: Any = "hi", **message: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content, **message}, {"role": "assistant", "content": "yo"}]}


def llava(*values: str, **row: Any) -> dict[str, Any]:
    turns = [{"from": ("human", "gpt")[place % 2], "value": value} for place, value in enumerate(values)]
    return {"conversations": turns, **row}


def shape(sample: ChatSample) -> list[tuple[str, Any]]:
    """Role and parts of each message; a medium shows the name of the part that it is bound to."""
    return [
        (m.role, [p.text if isinstance(p, TextPart) else [sample.media[p.index].name] for p in m.parts])
        for m in sample.messages
    ]


def refusal(sample: dict[str, Any]) -> CookError:
    with pytest.raises(CookError) as caught:
        cook(sample)
    assert caught.value.key == "k/000"
    return caught.value


def test_openai_row() -> None:
    sample = cook(raw(chat([{"type": "text", "text": "see"}, {"type": "image", "image": "0.jpg"}]), "0.jpg"))
    user = Message(role="user", parts=(TextPart(text="see"), MediaPart(kind="image", index=0)))
    assert sample.messages == (user, Message(role="assistant", parts=(TextPart(text="yo"),)))
    assert [(m.kind, m.name, m.data) for m in sample.media] == [("image", "0.jpg", b"0.jpg")]
    assert (sample.key, sample.source, sample.tools) == ("k/000", "s.tar", ())


def test_the_shared_cases(cases: list[dict[str, Any]]) -> None:
    refused = {}
    for case in cases:
        row = {"messages": case["messages"], "tools": case.get("tools")}
        try:
            sample = cook(raw(row, *(f"{number}.jpg" for number in range(case["images"]))))
        except CookError as error:
            refused[case["id"]] = error.code
            continue
        assert len(sample.media) == case["images"]
        assert [m.role for m in sample.messages if m.role == "assistant"] or case["id"] == "no-assistant"
        if case["supervised"] is not None and case["outcome"] == "ok":
            texts = [m.text for m in sample.messages if m.role == "assistant"]
            assert texts[: len(case["supervised"])] == case["supervised"]
    assert refused == {"missing-image": "cook.image_count", "surplus-image": "cook.image_count"}


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image", "image": "0.jpg"},
        {"type": "image", "image": "0.JPG", "text": None, "video": None},
        {"type": "image", "image": "/data/train/0.jpg"},
        {"type": "image", "image": "..\\0.jpg"},
        {"type": "image", "image": "000.0.jpg"},  # <key>.<part>, the member's own name
        {"type": "image", "image": {"path": "0.jpg", "bytes": None}},
        {"type": "image"},
        {"image": "0.jpg"},
        {"type": None, "image": "0.jpg", "text": None},
        {"type": "image_url", "image_url": {"url": "0.jpg"}},
        {"type": "image_url", "image_url": "https://host/dir/0.jpg?size=2"},
    ],
)
def test_ways_to_name_an_image(part: dict[str, Any]) -> None:
    assert shape(cook(raw(chat([part, {"type": "text", "text": "hi"}]), "0.jpg")))[0] == ("user", [["0.jpg"], "hi"])


@pytest.mark.parametrize(
    "part", [{"type": "text", "text": "hi", "image": None, "video": None}, {"text": "hi", "image": None}, "hi"]
)
def test_none_valued_keys_are_no_media(part: Any) -> None:
    assert shape(cook(raw(chat([part])))) == [("user", ["hi"]), ("assistant", ["yo"])]


def test_unnamed_places_take_the_files_in_natural_order() -> None:
    sample = cook(raw(chat(IMAGE * 3), "10.jpg", "2.png", "1.webp"))
    assert shape(sample)[0] == ("user", [["1.webp"], ["2.png"], ["10.jpg"]])


def test_unnamed_places_take_the_files_that_the_row_lists_in_its_order() -> None:
    row = chat(IMAGE * 2, images=None) | {"images": ["b.jpg", "dir/a.jpg"]}
    assert shape(cook(raw(row, "a.jpg", "b.jpg")))[0] == ("user", [["b.jpg"], ["a.jpg"]])


def test_a_part_named_twice_stands_in_both_places() -> None:
    parts = [{"type": "image", "image": name} for name in ("1.jpg", "0.jpg", "1.jpg")]
    assert shape(cook(raw(chat(parts), "0.jpg", "1.jpg")))[0] == ("user", [["1.jpg"], ["0.jpg"], ["1.jpg"]])


def test_a_data_uri_brings_its_own_bytes() -> None:
    sample = cook(raw(chat([{"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}])))
    assert [(m.kind, m.data) for m in sample.media] == [("image", b"hi")]


def test_video_and_audio_parts_are_bound_in_the_same_way() -> None:
    parts = [
        {"type": "video", "video": "0.mp4"},
        {"type": "image"},
        {"type": "audio_url", "audio_url": {"url": "0.wav"}},
    ]
    sample = cook(raw(chat(parts), "0.mp4", "0.jpg", "0.wav"))
    assert [(m.kind, m.name) for m in sample.media] == [("video", "0.mp4"), ("image", "0.jpg"), ("audio", "0.wav")]
    assert refusal(raw(chat("hi"), "0.mp4")).code == "cook.video_count"


@pytest.mark.parametrize(
    ("row", "images", "code", "words"),
    [
        (chat([{"type": "image", "image": "0.jpg"}]), [], "cook.image_count", "1 image place in .*, 0 image files"),
        (chat("hi"), ["0.jpg"], "cook.image_count", r"0 image places in .*, 1 image file in .*\(0.jpg\)"),
        (chat(IMAGE), ["0.jpg", "1.jpg"], "cook.image_count", "1 image place in .*, 2 image files"),
        (chat(IMAGE * 2), ["0.jpg"], "cook.image_count", "2 image places in .*, 1 image file"),
        (chat([{"type": "image", "image": "1.jpg"}]), ["0.jpg", "1.jpg"], "cook.image_count", "place refers to 0.jpg"),
        (chat([{"type": "image", "image": "9.jpg"}]), ["0.jpg"], "cook.media_name", "no part .* named '9.jpg'"),
        (chat([{"type": "image", "image": "json"}]), [], "cook.image_count", "no part"),
        (chat([*IMAGE, {"type": "image", "image": "0.jpg"}]), ["0.jpg", "1.jpg"], "cook.part", "name all or none"),
        (chat([{"type": "image", "image": "0.mp4"}]), ["0.mp4"], "cook.media_name", "is video"),
        (chat([{"type": "image", "image": 3}]), ["0.jpg"], "cook.part", "got 3"),
        (chat([{"type": "image_url", "image_url": "https://h/x.jpg"}]), [], "cook.image_count", "not fetched"),
        (chat([{"type": "image", "image": "data:image/png;base64,***"}]), [], "cook.media_bytes", "not base64"),
        (chat([{"type": "image", "image": "data:audio/wav;base64,aGk="}]), [], "cook.media_name", "audio"),
    ],
)  # fmt: skip
def test_places_and_files_must_fit(row: dict[str, Any], images: list[str], code: str, words: str) -> None:
    error = refusal(raw(row, *images))
    assert error.code == code
    with pytest.raises(CookError, match=words):
        raise error


def test_media_must_be_bytes_and_names_must_differ_by_more_than_case() -> None:
    assert refusal(raw(chat(IMAGE), **{"0.jpg": "text"})).code == "cook.media_bytes"
    assert refusal(raw(chat(IMAGE), "0.jpg", "0.JPG")).code == "cook.media_name"


def test_the_file_system_is_never_reached(tmp_path: Any) -> None:
    secret = tmp_path / "secret.jpg"
    secret.write_bytes(b"secret")
    assert refusal(raw(chat([{"type": "image", "image": str(secret)}]))).code == "cook.image_count"


@pytest.mark.parametrize(
    ("tag", "role"),
    [("human", "user"), ("User", "user"), (" gpt ", "assistant"), ("model", "assistant"), ("bot", "assistant"),
     ("function", "tool"), ("observation", "tool"), ("ipython", "tool"), ("developer", "system")],
)  # fmt: skip
def test_roles_are_normalised(tag: str, role: str) -> None:
    assert cook(raw({"messages": [{"role": tag, "content": "x"}]})).messages[0].role == role


@pytest.mark.parametrize("tag", ["narrator", "", None, 3])
def test_an_unknown_role_is_refused_with_the_known_ones(tag: Any) -> None:
    error = refusal(raw({"messages": [{"role": tag, "content": "x"}]}))
    assert error.code == "cook.role"
    assert "known: system, developer, user, human, assistant" in error.reason


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ({"messages": []}, "cook.messages"),
        ({"messages": {}}, "cook.messages"),
        ({"messages": ["hi"]}, "cook.messages"),
        ({"messages": [{"role": "user"}]}, "cook.content"),
        ({"messages": [{"role": "user", "content": None}]}, "cook.content"),
        ({"messages": [{"role": "user", "content": {"text": "hi"}}]}, "cook.content"),
        ({"messages": [{"role": "user", "content": "a", "value": "b"}]}, "cook.content"),
        (chat([3]), "cook.part"),
        (chat([{"type": "sticker", "sticker": 1}]), "cook.part"),
        (chat([{}]), "cook.part"),
        (chat([{"text": "a", "image": "0.jpg"}]), "cook.part"),
        (chat([{"type": "text", "text": "a", "image": "0.jpg"}]), "cook.part"),
        (chat([{"type": "image", "image": "0.jpg", "text": "a"}]), "cook.part"),
        (chat([{"type": "text"}]), "cook.part"),
        (chat([{"type": "text", "text": 5}]), "cook.text"),
        (chat("half a pair \ud83d"), "cook.text"),
        (chat(tool_calls=[{"name": "f"}]), "cook.role"),
        (chat(reasoning="hm"), "cook.role"),
        (chat(loss=True), "cook.loss"),
        (chat(loss="no"), "cook.loss"),
        (chat(loss=False, weight=1), "cook.loss"),
        (chat() | {"tools": {"name": "f"}}, "cook.tools"),
        (chat() | {"tools": "not json"}, "cook.tools"),
        (chat() | {"tools": [{"name": "\udc00"}]}, "cook.text"),
        (chat() | {"conversations": [{"from": "human", "value": "x"}]}, "cook.schema"),
        (chat() | {"images": [None]}, "cook.media_list"),
        (chat() | {"images": ["0.jpg"], "image": "1.jpg"}, "cook.media_list"),
        ({"messages": [{"role": "system", "content": "a"}], "system": "b"}, "cook.system"),
        ({"text": "hi"}, "cook.schema"),
        ({}, "cook.schema"),
        ([], "cook.json"),
    ],
)
def test_malformed_rows_are_refused(row: Any, code: str) -> None:
    assert refusal(raw(row)).code == code


@pytest.mark.parametrize(
    "part", [b"{", b"\xff{}", b"", b"[" * 100_000, b'{"messages": ' + b"[" * 900 + b"]" * 900 + b"}", 5]
)
def test_a_json_part_that_cannot_be_read(part: Any) -> None:
    assert refusal(raw(json=part)).code in ("cook.json", "cook.messages")


@pytest.mark.parametrize("key", [None, "", 5])
def test_a_sample_needs_a_key(key: Any) -> None:
    with pytest.raises(CookError, match="__key__"):
        cook({"__key__": key, "txt": b"x"})


def test_the_raw_sample_is_not_changed_and_not_shared() -> None:
    row = chat() | {"tools": [{"name": "f", "parameters": {"x": 1}}]}
    row["messages"][1]["tool_calls"] = [{"function": {"name": "f", "arguments": {"x": 1}}, "id": None}]
    given = {"__key__": "k", "json": row, "0.txt": b"x"}
    before = copy.deepcopy(given)
    sample = cook(given)
    sample.tools[0]["parameters"]["x"] = 2
    sample.messages[1].tool_calls[0]["function"]["arguments"]["x"] = 2
    assert given == before


def test_tool_calls_tools_reasoning_and_loss() -> None:
    call = {"id": None, "type": "function", "function": {"name": "f", "arguments": '{"b": 1, "a": null}'}}
    assistant = {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "hm", "weight": 0}
    raw_text = {"name": "g", "arguments": "plain words"}
    rows = [
        assistant,
        {"role": "tool", "content": "3", "name": "f", "tool_call_id": "1"},
        {"role": "assistant", "content": "ok", "tool_calls": [raw_text]},
    ]
    rows += [{"role": "assistant", "content": "x", "thinking": "a", "reasoning": "a", "loss": True}]
    sample = cook(raw({"messages": rows, "tools": '[{"name": "f"}]'}))
    first, result, third, last = sample.messages
    assert (result.name, result.tool_call_id, first.name) == ("f", "1", None)
    assert first.tool_calls == ({"type": "function", "function": {"name": "f", "arguments": {"b": 1, "a": None}}},)
    assert (first.parts, first.reasoning, first.loss) == ((), "hm", False)
    assert third.tool_calls == ({"name": "g", "arguments": "plain words"},)
    assert (last.reasoning, last.loss, third.loss) == ("a", True, None)
    assert sample.tools == ({"name": "f"},)


def test_different_reasoning_texts_are_refused() -> None:
    message = {"role": "assistant", "content": "x", "thinking": "a", "reasoning": "b"}
    assert refusal(raw({"messages": [message]})).code == "cook.reasoning"


def test_the_image_tag_is_literal_in_openai_rows() -> None:
    text = "What does <image> mean?"
    assert shape(cook(raw(chat(text))))[0] == ("user", [text])
    typed = [*IMAGE, {"type": "text", "text": text}]
    assert shape(cook(raw(chat(typed) | {"images": ["0.jpg"]}, "0.jpg")))[0] == ("user", [["0.jpg"], text])


def test_the_image_tag_is_a_place_where_a_row_of_strings_lists_images() -> None:
    row = chat("<image>Who?") | {"images": ["a/0.jpg"]}
    row["messages"][1]["content"] = "an <image> tag"
    assert shape(cook(raw(row, "0.jpg"))) == [("user", [["0.jpg"], "Who?"]), ("assistant", ["an <image> tag"])]


@pytest.mark.parametrize("image", [{}, {"image": "coco/train/000.jpg"}, {"images": ["x.jpg"]}, {"image": None}])
def test_llava_row(image: dict[str, Any]) -> None:
    sample = cook(raw(llava("<image>\nWhat is it?", "A cat.", "Sure?", "Write <image>.", **image), "jpg"))
    assert shape(sample) == [
        ("user", [["jpg"], "\nWhat is it?"]),
        ("assistant", ["A cat."]),
        ("user", ["Sure?"]),
        ("assistant", ["Write <image>."]),
    ]


def test_sharegpt_row_with_system_and_images() -> None:
    row = {"system": "Be brief.", "images": ["x/b.png", "x/a.png"], "id": 3}
    row["conversations"] = [{"role": "user", "value": "<image>or<image>?"}, {"from": "gpt", "content": "b"}]
    assert shape(cook(raw(row, "0.png", "1.png"))) == [
        ("system", ["Be brief."]),
        ("user", [["0.png"], "or", ["1.png"], "?"]),
        ("assistant", ["b"]),
    ]


@pytest.mark.parametrize(
    ("row", "images", "words"),
    [
        (llava("<image> <image>", "a", image="x.jpg"), ["jpg"], "2 image places .*, 1 image file "),
        (llava("no tag", "a", image="x.jpg"), ["jpg"], "0 image places .*, 1 image file "),
        (llava("<image>", "a", image="x.jpg"), [], "1 image place .*, 0 image files"),
        (llava("<image>", "a"), [], "1 image place .*, 0 image files"),
        (llava("hi", "<image>"), ["jpg"], "0 image places .*, 1 image file "),
        (llava("<image><image>", "a", images=["x.jpg"]), ["0.jpg", "1.jpg"], "1 listed in the row"),
        (llava("<image><image>", "a", images=["0.jpg", "x.jpg"]), ["0.jpg", "1.jpg"], "no part .* named 'x.jpg'"),
        (llava("<image><image>", "a", images=["x.jpg", "y.jpg"]), ["b.jpg", "a.jpg"], "no part .* named 'x.jpg'"),
    ],
)
def test_llava_places_and_images_must_fit(row: dict[str, Any], images: list[str], words: str) -> None:
    with pytest.raises(CookError, match=words) as caught:
        cook(raw(row, *images))
    assert caught.value.code in ("cook.image_count", "cook.media_name")


def test_html_tags_are_literal_without_such_a_file() -> None:
    assert shape(cook(raw(llava("Explain <video> and <audio>", "ok"))))[0] == ("user", ["Explain <video> and <audio>"])
    assert shape(cook(raw(llava("<video>What?", "ok"), "0.mp4")))[0] == ("user", [["0.mp4"], "What?"])


def test_vqa_rows() -> None:
    assert shape(cook(raw({"question": "Colour?", "answer": "red"}, "1.jpg", "0.jpg"))) == [
        ("user", [["0.jpg"], ["1.jpg"], "Colour?"]),
        ("assistant", ["red"]),
    ]
    annotators = [{"answer": "dark"}, {"answer": "red"}, {"answer": "red"}]
    assert shape(cook(raw({"question": "<image>?", "answers": annotators}, "jpg"))) == [
        ("user", [["jpg"], "?"]),
        ("assistant", ["red"]),
    ]
    assert refusal(raw({"question": "Colour?", "answer": "red"})).code == "cook.image_count"
    assert refusal(raw({"question": "Colour?"}, "jpg")).code == "cook.answer"
    assert refusal(raw({"question": "Colour?", "answers": [1]}, "jpg")).code == "cook.text"
    assert refusal(raw({"question": "Colour?", "answer": ""}, "jpg")).code == "cook.answer"


def test_caption_rows() -> None:
    expected = [("user", [["jpg"]]), ("assistant", ["Ein Café"])]
    assert shape(cook(raw(None, "jpg", txt="Ein Café\n".encode()))) == expected
    metadata = {"url": "http://x", "caption": "older", "width": 3}
    assert shape(cook(raw(metadata, "jpg", txt="Ein Café".encode()))) == expected
    assert shape(cook(raw({"caption": "Ein Café"}, "jpg"))) == expected
    assert refusal(raw(None, "jpg", txt=b" \n")).code == "cook.text"
    assert refusal(raw(None, "jpg", txt=b"\xff")).code == "cook.json"
    assert refusal(raw(None, txt=b"x")).code == "cook.image_count"
    assert refusal(raw(None, "jpg")).code == "cook.schema"

"""cook on rows of messages: the conversation that they mean, or a refusal with the sample's key and a code."""

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


@pytest.mark.parametrize(
    "option", [{"fps": 2.0}, {"nframes": 8}, {"video_start": 1.0, "video_end": 2.0}, {"max_pixels": 784}, {"fps": 0}]
)
@pytest.mark.parametrize("kind", ["video", "image"])
def test_settings_of_single_media_are_not_left_out_without_a_word(kind: str, option: dict[str, Any]) -> None:
    part = {"type": kind, kind: "0.jpg", **option}
    row = {"messages": [{"role": "user", "content": [part]}, {"role": "assistant", "content": "A cat."}]}
    with pytest.raises(CookError, match=f"part 0 of message 0 sets {', '.join(option)}") as caught:
        cook({"__key__": "k", "json": row, "0.jpg": b"x"})
    assert caught.value.code == "cook.option"


@pytest.mark.parametrize("fps", [5e-324, 1e-9, 1e308, float("nan"), 0, True])
def test_a_rate_of_listed_frames_must_be_one_that_somebody_may_have_taken(fps: float) -> None:
    part = {"type": "video", "video": ["0.jpg", "1.jpg"], "fps": fps}
    row = {"messages": [{"role": "user", "content": [part]}, {"role": "assistant", "content": "A cat."}]}
    with pytest.raises(CookError, match="must be a number from 1e-05 to 1e"):
        cook({"__key__": "k", "json": row, "0.jpg": b"x", "1.jpg": b"x"})


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

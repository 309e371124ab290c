"""cook on LLaVA, ShareGPT, VQA and caption rows, and where ``<image>`` in a text is a place and where it is not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from packloom.errors import CookError
from packloom.task_encoders.cookers import cook
from packloom.types import ChatSample, TextPart

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
        (llava("no tag", "a", images=["x.jpg"]), [], "0 image places .*, 1 listed in the row"),
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
    assert refusal(raw({"question": "Colour?"}, "jpg")).code == "cook.answer"
    assert refusal(raw({"question": "Colour?", "answers": [1]}, "jpg")).code == "cook.text"
    assert refusal(raw({"question": "Colour?", "answer": ""}, "jpg")).code == "cook.answer"


@pytest.mark.parametrize("image", [{}, {"image": None}, {"images": []}])
def test_a_question_may_be_of_text_alone(image: dict[str, Any]) -> None:
    """As rows are whose table has a column of images with nulls in it."""
    row = {"question": "2 <b>+</b> 2 <video>?", "answer": "4", "system": "Count.", **image}
    assert shape(cook(raw(row))) == [
        ("system", ["Count."]),
        ("user", ["2 <b>+</b> 2 <video>?"]),
        ("assistant", ["4"]),
    ]


def test_a_question_that_wants_an_image_is_refused_without_one() -> None:
    assert refusal(raw({"question": "<image>\nColour?", "answer": "red"})).code == "cook.image_count"
    assert refusal(raw({"question": "Colour?", "answer": "red", "image": "a.jpg"})).code == "cook.image_count"
    assert refusal(raw({"question": "", "answer": "red"})).code == "cook.text"
    with pytest.raises(CookError, match=r"0 image files .* \(of no known kind: 0.raw\)"):
        cook(raw({"question": "Colour?", "answer": "red"}, "0.raw"))


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

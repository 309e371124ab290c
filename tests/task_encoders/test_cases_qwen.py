"""Every row of the shared cases, and every shared image, with the outcome that it must have."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from packloom.errors import BudgetError, MediaError, SampleError
from packloom.types import EncodedSample

FAMILIES = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"]


def spans(sample: EncodedSample, tokenizer: Any) -> list[str]:
    """The text of each run of trained tokens."""
    tokens = zip(sample.input_ids.tolist(), sample.loss_mask.tolist(), strict=True)
    groups = itertools.groupby(tokens, key=lambda pair: pair[1])
    return [tokenizer.decode([token for token, _ in group]) for trained, group in groups if trained]


def raw(case: dict[str, Any], picture: bytes) -> dict[str, Any]:
    images = {f"{index}.jpg": picture for index in range(case["images"])}
    return {"__key__": case["id"], "json": {"messages": case["messages"], "tools": case.get("tools")}, **images}


def outcome(encoder: Any, row: dict[str, Any]) -> tuple[EncodedSample | None, SampleError | None]:
    try:
        return encoder.encode_sample(row), None
    except SampleError as error:
        return None, error


@pytest.mark.parametrize("family", FAMILIES)
def test_shared_conversations(family, cases, encoder_of, shared_dir):
    picture = (shared_dir / "cases/images/hopper_orientation_6.jpg").read_bytes()
    encoder = encoder_of(family)
    seen = dict.fromkeys(("ok", "refused", "ok-or-refused"), 0)
    for case in cases:
        if case["outcome"] not in seen or case["id"] == "image-past-max-length":
            continue
        expected = [text + "<|im_end|>" for text in case["supervised"] or []]
        sample, error = outcome(encoder, raw(case, picture))
        if error is not None:
            assert case["outcome"] != "ok", f"{case['id']}: {error}"
            assert error.key == case["id"]
            assert error.reason
        else:
            assert case["outcome"] != "refused", case["id"]
            assert spans(sample, encoder.parts.tokenizer) == expected, case["id"]
        seen[case["outcome"]] += 1
    assert seen["ok"] >= 12
    assert seen["refused"] >= 3
    assert seen["ok-or-refused"] >= 8


@pytest.mark.parametrize("family", FAMILIES)
def test_over_long_rows_by_policy(family, cases, encoder_of, picture):
    by_id = {case["id"]: raw(case, picture(300, 451)) for case in cases}
    drop, cut = encoder_of(family, max_length=512), encoder_of(family, max_length=512, overlong="truncate")

    with pytest.raises(BudgetError, match=r"\d+ tokens; max_length is 512") as error:
        drop.encode_sample(by_id["long-answer-truncated"])
    assert error.value.code == "budget.length"
    whole = encoder_of(family).encode_sample(by_id["long-answer-truncated"])
    sample = cut.encode_sample(by_id["long-answer-truncated"])
    assert sample.num_tokens == 512
    assert sample.input_ids.tolist() == whole.input_ids[:512].tolist()
    assert sample.position_ids.tolist() == whole.position_ids[:, :512].tolist()
    [span] = spans(sample, encoder_of(family).parts.tokenizer)
    assert set(span.split()) == {"word"}  # and no terminator

    for encoder in (drop, cut):
        with pytest.raises(BudgetError):
            encoder.encode_sample(by_id["image-past-max-length"])


@pytest.mark.parametrize("family", FAMILIES)
def test_reasoning_and_tools(family, cases, encoder_of, picture):
    by_id = {case["id"]: raw(case, picture(60, 60)) for case in cases}
    encoder = encoder_of(family)
    # none of the three templates renders reasoning_content: it is lost by the user's own word only
    with pytest.raises(SampleError, match=r"drops the reasoning.*thinking='drop'"):
        encoder.encode_sample(by_id["reasoning-content"])
    answers = encoder_of(family, thinking="drop").encode_sample(by_id["reasoning-content"])
    assert spans(answers, encoder.parts.tokenizer) == ["6<|im_end|>", "20<|im_end|>"]
    if family != "qwen3_vl":
        with pytest.raises(SampleError, match=r"drops the tool (call )?'get_weather'"):
            encoder.encode_sample(by_id["tool-call-and-result"])
        return
    call, answer = spans(encoder.encode_sample(by_id["tool-call-and-result"]), encoder.parts.tokenizer)
    assert call == (
        'Let me look.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call><|im_end|>'
    )
    assert answer == "It is 3 °C.<|im_end|>"


GOOD = {
    "hopper_orientation_6.jpg": (128, 128),
    "pil_sample_cmyk.jpg": (100, 100),
    "16bit.cropped.tif": (64, 64),
    "rgb_trns.png": (64, 64),
    "p_trns_single.png": (64, 64),
    "dispose_none.gif": (100, 100),
    "hopper.webp": (128, 128),
    "multiple_exif.jpg": (1, 1),
}
BAD = ["truncated_jpeg.jpg", "broken.png", "apng_no_fctl.png", "decompression_bomb.gif"]


def one_image(name: str, data: bytes) -> dict[str, Any]:
    part = name.replace("16bit.cropped.tif", "0.tif")
    messages = [
        {"role": "user", "content": [{"type": "image", "image": part}, {"type": "text", "text": "What?"}]},
        {"role": "assistant", "content": "This."},
    ]
    return {"__key__": name, "json": {"messages": messages}, part: data}


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("family", FAMILIES)
def test_shared_good_images(family, name, encoder_of, shared_dir):
    encoder = encoder_of(family)
    sample = encoder.encode_sample(one_image(name, (shared_dir / "cases/images" / name).read_bytes()))
    [row] = encoder.batch([sample])
    [medium] = sample.media
    assert (medium.height, medium.width) == GOOD[name]
    assert tuple(row.media_tensors["image_grid_thw"][0].tolist()) == medium.grid_thw
    assert int((sample.input_ids == encoder.media_id).sum()) == medium.num_tokens


@pytest.mark.parametrize("name", BAD)
def test_shared_bad_images_are_refused_with_their_key(name, encoder_of, shared_dir):
    encoder = encoder_of("qwen2_5_vl")
    row = one_image(name, (shared_dir / "cases/images" / name).read_bytes())
    with pytest.raises(MediaError) as error:
        encoder.batch([encoder.encode_sample(row)])
    assert error.value.key == name
    assert name in error.value.reason

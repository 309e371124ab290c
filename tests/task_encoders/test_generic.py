"""Processors that no family knows: measured, proved against themselves, and equal to what their own family declares."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from packloom import TaskEncoder
from packloom.errors import CapabilityError, ConfigError, MediaError, ProcessorError
from packloom.task_encoders.generic import GenericTaskEncoder
from packloom.task_encoders.measured_images import GRID, measure_images
from packloom.testing import check_masks

#: family → whether its processor tells the length of one run, or writes the same tokens for every image
MEASURED = {"llava": "fixed", "llava_next": "told", "internvl3": "told"}
REFUSED = {
    "qwen2_5_vl": r"gives image_grid_thw, so the model's positions may depend on where images stand",
    "pixtral": r"what stands between an image's tokens depends on its size",
}


@pytest.fixture(scope="module")
def processor_of(processor_dir: Callable[[str], Path]) -> Callable[[str], Any]:
    pytest.importorskip("torchvision", reason="transformers loads whole processors only with torchvision")
    from transformers import AutoProcessor  # noqa: PLC0415 - after torchvision was made importable

    return lambda family: AutoProcessor.from_pretrained(processor_dir(family))


@pytest.mark.parametrize("family", MEASURED)
def test_a_measured_processor_equals_its_family(
    family: str, processor_of: Callable[[str], Any], chat_row: Callable[..., Any]
) -> None:
    processor = processor_of(family)
    generic = TaskEncoder.from_processor(processor, model_type="martian", media="exact_hf")
    known = TaskEncoder.from_processor(processor, media="exact_hf")
    assert (type(generic), type(known)) == (GenericTaskEncoder, type(known))
    assert type(known) is not GenericTaskEncoder
    assert (generic.image_rule.runs is not None) == (MEASURED[family] == "fixed")
    rows = [chat_row(sizes) for sizes in ([], [(130, 90)], [(64, 200), (64, 64)])]
    if family == "llava_next":  # its template moves images to the front of a turn
        for row in rows:
            row["json"]["messages"][0]["content"].sort(key=lambda item: item["type"] == "text")
    made, expected = ([e.batch([e.encode_sample(row)])[0] for row in rows] for e in (generic, known))
    for mine, other in zip(made, expected, strict=True):
        assert mine.sample.input_ids.tolist() == other.sample.input_ids.tolist()
        assert mine.sample.loss_mask.tolist() == other.sample.loss_mask.tolist()
        assert mine.sample.token_tensors == {}
        assert set(mine.media_tensors) == set(other.media_tensors)
        for name, tensor in other.media_tensors.items():
            assert torch.equal(mine.media_tensors[name], tensor), name
    batch = generic.collate(made, layout="packed")
    for name, tensor in known.collate(expected, layout="packed").items():
        assert torch.equal(batch[name], tensor) if isinstance(tensor, torch.Tensor) else batch[name] == tensor


@pytest.mark.parametrize("family", REFUSED)
def test_what_cannot_be_measured_is_refused(family: str, processor_of: Callable[[str], Any]) -> None:
    why = rf"no task encoder for model_type 'martian'.*self-test of the generic one: .*{REFUSED[family]}.*register"
    with pytest.raises(CapabilityError, match=why):
        TaskEncoder.from_processor(processor_of(family), model_type="martian")


@pytest.fixture(scope="module")
def llava(processor_of: Callable[[str], Any]) -> Any:
    return processor_of("llava")


@pytest.fixture(scope="module")
def measured(llava: Any) -> TaskEncoder:
    return TaskEncoder.from_processor(llava, model_type="martian")


def test_its_masks_pass_the_case_matrix(measured: TaskEncoder) -> None:
    check_masks(measured).raise_if_failed()


def test_it_is_found_by_folder_too(measured: TaskEncoder, processor_dir: Callable[[str], Path], tmp_path: Path) -> None:
    encoder = TaskEncoder.from_pretrained(processor_dir("llava"), model_type="martian")
    assert encoder.image_rule.runs == measured.image_rule.runs == (576,)
    copy = pickle.loads(pickle.dumps(encoder))
    assert copy.image_rule.measure(9, 9) == encoder.image_rule.measure(9, 9)
    with pytest.raises(ConfigError, match="set them on the processor itself"):
        TaskEncoder.from_pretrained(processor_dir("llava"), model_type="martian", max_pixels=10_000)


def test_a_rule_that_does_not_hold_for_an_image_refuses_the_row(
    measured: TaskEncoder, llava: Any, chat_row: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = measured.encode_sample(chat_row([(77, 60)]))
    original = type(llava).replace_image_token

    def odd(self: Any, image_inputs: Any, image_idx: int = 0, **options: Any) -> str:
        return str(original(self, image_inputs, image_idx=image_idx, **options)) + "<image>"

    monkeypatch.setattr(type(llava), "replace_image_token", odd)
    with pytest.raises(MediaError, match=r"\(576,\) was predicted from the header, but the processor made \(577,\)"):
        measured.batch([sample])


def test_a_count_that_is_told_wrong_is_found(processor_of: Callable[[str], Any], monkeypatch: Any) -> None:
    processor = processor_of("internvl3")
    original = type(processor)._get_num_multimodal_tokens

    def wrong(self: Any, image_sizes: Any = None, **options: Any) -> Any:
        made = original(self, image_sizes=image_sizes, **options)
        made.num_image_tokens = [made.num_image_tokens[0] + (image_sizes[0] == GRID[-1])]
        return made

    monkeypatch.setattr(type(processor), "_get_num_multimodal_tokens", wrong)
    with pytest.raises(CapabilityError, match="_get_num_multimodal_tokens is wrong for this processor's settings"):
        measure_images(processor, ["<IMG_CONTEXT>"], "x")
    monkeypatch.setattr(type(processor), "_get_num_multimodal_tokens", lambda *_, **__: 1 / 0)
    with pytest.raises(CapabilityError, match="has no _get_num_multimodal_tokens that tells it"):
        measure_images(processor, ["<IMG_CONTEXT>"], "x")


def test_token_types_keep_it_from_packing(llava: Any, chat_row: Callable[..., Any], monkeypatch: Any) -> None:
    original = type(llava).__call__

    def typed(self: Any, *inputs: Any, **options: Any) -> Any:
        made = original(self, *inputs, **options)
        made["token_type_ids"] = (made["input_ids"] == self.image_token_id).to(torch.int64)
        return made

    monkeypatch.setattr(type(llava), "__call__", typed)
    encoder = TaskEncoder.from_processor(llava, model_type="martian")
    [row] = encoder.batch([encoder.encode_sample(chat_row([(64, 64)]))])
    assert int(row.sample.token_tensors["token_type_ids"].sum()) == 576
    with pytest.raises(CapabilityError, match=r"generic cannot be packed: .*attend both ways inside images"):
        encoder.collate([row], layout="packed")


def test_a_template_without_a_place_for_images_is_refused(llava: Any) -> None:
    template = "{% for m in messages %}{{ m.role }}: {{ m.content[-1].text }}</s>{% endfor %}"
    with pytest.raises(ProcessorError, match="the chat template writes no token of the tokenizer for an image"):
        TaskEncoder.from_processor(llava, model_type="martian", chat_template=template)


def test_idefics3_is_registered(processor_dir: Callable[[str], Path], picture: Callable[[int, int], bytes]) -> None:
    from transformers import AutoTokenizer, Idefics3ImageProcessorPil, Idefics3Processor  # noqa: PLC0415

    tokenizer = AutoTokenizer.from_pretrained(processor_dir("smolvlm"))
    template = (processor_dir("smolvlm") / "chat_template.jinja").read_text(encoding="utf-8")
    processor = Idefics3Processor(Idefics3ImageProcessorPil(), tokenizer, chat_template=template)
    encoder = TaskEncoder.from_processor(processor)
    content = [{"type": "image", "image": "0.png"}, {"type": "text", "text": "What?"}]
    answer = {"role": "assistant", "content": [{"type": "text", "text": "Noise."}]}
    messages = [{"role": "user", "content": content}, answer]
    data = picture(60, 90)
    sample = encoder.encode_sample({"__key__": "k", "json": {"messages": messages}, "0.png": data})
    text = encoder.template.render(encoder.cooker({"__key__": "k", "json": {"messages": messages}, "0.png": data}))
    theirs = processor(text=[text], images=[[Image.open(io.BytesIO(data))]], add_special_tokens=False)
    assert sample.input_ids.tolist() == theirs["input_ids"][0]
    assert tokenizer.decode(sample.input_ids[sample.loss_mask]) == " Noise.<end_of_utterance>"

"""Work goes in; a torch DataLoader with a Hugging Face processor in its collate, as people write it, comes out.

``hf`` pads 8 rows and searches the assistant's turns, as fine-tuning scripts do. ``template_mask`` asks transformers
for the assistant's mask. ``repacked`` does so too, and then cuts the padding out again to join the rows, as
Megatron-Bridge's collate does that packs within a batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
from torch.utils.data import DataLoader
from transformers import AutoImageProcessor, AutoProcessor

from contenders.workload import (
    BATCH_SIZE,
    MAX_PIXELS,
    MIN_PIXELS,
    Sample,
    TarSamples,
    Work,
    assistant_mask,
    counted,
    image_of,
    messages_of,
)

#: ChatML with the tags by which transformers knows what the assistant writes.
_TAGGED = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] + '<|im_end|>\n' }}"
    "{% endgeneration %}"
    "{% elif message['content'] is string %}{{ message['content'] + '<|im_end|>\n' }}"
    "{% else %}{% for part in message['content'] %}{% if part['type'] == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part['text'] }}{% endif %}{% endfor %}<|im_end|>\n"
    "{% endif %}{% endfor %}"
)


class ProcessorCollate:
    """Raw samples in, a padded batch with float pixels out."""

    def __init__(self, work: Work, backend: Literal["torchvision", "pil"]) -> None:
        self.processor: Any = load_processor(work, backend)
        tokenizer = self.processor.tokenizer
        self.start = tokenizer("<|im_start|>assistant\n")["input_ids"]
        self.end = tokenizer.convert_tokens_to_ids("<|im_end|>")

    def __call__(self, samples: Sequence[Sample]) -> dict[str, Any]:
        batch = self.padded(samples)
        labels = torch.full_like(batch["input_ids"], -100)
        for row, ids in enumerate(batch["input_ids"]):
            mask = assistant_mask(ids, self.start, self.end)
            labels[row, mask] = ids[mask]
        return counted({**batch, "labels": labels}, samples=len(samples), tokens=int(batch["attention_mask"].sum()))

    def padded(self, samples: Sequence[Sample]) -> dict[str, Any]:
        """Ids, attention mask, pixels and grids."""
        texts = [self.processor.apply_chat_template(messages_of(sample), tokenize=False) for sample in samples]
        images = [image_of(sample) for sample in samples]
        return dict(self.processor(text=texts, images=images, padding=True, return_tensors="pt"))


class TemplateMaskCollate(ProcessorCollate):
    """The mask is transformers' own, from a template with generation tags."""

    def __call__(self, samples: Sequence[Sample]) -> dict[str, Any]:
        chats = [_with_image(messages_of(sample), image_of(sample)) for sample in samples]
        batch = dict(
            self.processor.apply_chat_template(
                chats,
                chat_template=_TAGGED,
                tokenize=True,
                return_dict=True,
                return_tensors="pt",
                return_assistant_tokens_mask=True,
                processor_kwargs={"padding": True},
            )
        )
        mask = torch.as_tensor(batch.pop("assistant_masks")).bool()
        labels = torch.where(mask, batch["input_ids"], -100)
        return counted({**batch, "labels": labels}, samples=len(samples), tokens=int(batch["attention_mask"].sum()))


class RepackedCollate(TemplateMaskCollate):
    """Rows padded to the longest, with the mask of transformers, then cut and joined to one row [1, T]."""

    def __call__(self, samples: Sequence[Sample]) -> dict[str, Any]:
        padded = super().__call__(samples)
        keep = padded["attention_mask"].bool()
        flat = {name: padded[name][keep][None] for name in ("input_ids", "labels")}
        lengths = keep.sum(dim=1)
        boundaries = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]).to(torch.int32)
        media = {name: padded[name] for name in ("pixel_values", "image_grid_thw")}
        return counted(
            {**flat, **media, "cu_seqlens": boundaries}, samples=len(samples), tokens=flat["input_ids"].numel()
        )


def _with_image(messages: list[dict[str, Any]], image: Any) -> list[dict[str, Any]]:
    first = {**messages[0], "content": [{"type": "image", "image": image}, messages[0]["content"][1]]}
    return [first, *messages[1:]]


def load_processor(work: Work, backend: str) -> Any:
    """The whole processor with the pixel bounds; raises ImportError where the backend is not installed."""
    if backend == "torchvision":
        import torchvision  # noqa: F401, PLC0415 - transformers would quietly take Pillow instead
    # "backend" given to AutoProcessor would reach its tokenizer and its video processor too, and fail there
    bounds = {"min_pixels": MIN_PIXELS, "max_pixels": MAX_PIXELS}
    processor: Any = AutoProcessor.from_pretrained(work.processor, **bounds)
    processor.image_processor = AutoImageProcessor.from_pretrained(work.processor, backend=backend, **bounds)
    found = getattr(processor.image_processor, "backend", "pil")
    if found != backend:
        raise ImportError(f"transformers loads its {found} backend, {backend} was asked for")
    return processor


def _loader(work: Work, collate: ProcessorCollate) -> Iterable[Any]:
    return DataLoader(TarSamples(work.shards), batch_size=BATCH_SIZE, num_workers=work.num_workers, collate_fn=collate)


def hf_torchvision(work: Work) -> Iterable[Any]:
    return _loader(work, ProcessorCollate(work, "torchvision"))


def hf_pillow(work: Work) -> Iterable[Any]:
    return _loader(work, ProcessorCollate(work, "pil"))


def template_mask(work: Work) -> Iterable[Any]:
    return _loader(work, TemplateMaskCollate(work, "torchvision"))


def repacked(work: Work) -> Iterable[Any]:
    return _loader(work, RepackedCollate(work, "torchvision"))

"""Work goes in; a megatron-energon loader with a Hugging Face processor in its encoder, and packing, comes out."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from megatron import energon
from megatron.energon import edataclass
from PIL import Image

from contenders.collates import ProcessorCollate
from contenders.workload import BUFFER, PACK_LENGTH, Work, assistant_mask, counted

warnings.filterwarnings("ignore", message=".*pin_memory.*")  # Energon always asks for it, with or without a GPU


@edataclass
class Chat(energon.Sample):
    """A conversation and its photograph as bytes."""

    json: bytes
    image: bytes


@edataclass
class Encoded(energon.Sample):
    """Ids [L], labels [L] and the processor's tensors of one sample, or of a pack."""

    input_ids: torch.Tensor
    labels: torch.Tensor
    pixel_values: torch.Tensor
    image_grid_thw: torch.Tensor
    lengths: list[int]


@energon.stateless
def cook(raw: dict[str, Any]) -> Chat:
    """Both parts as they are."""
    return Chat(**energon.basic_sample_keys(raw), json=raw["json"], image=raw["0.jpg"])


class Encoder(energon.DefaultTaskEncoder):
    """Processes each sample, holds ``BUFFER`` of them, and joins those that fill a pack best."""

    cookers = [energon.Cooker(cook)]  # noqa: RUF012 - Energon's interface
    decoder = None

    def __init__(self, collate: ProcessorCollate) -> None:
        super().__init__()
        self._collate = collate

    @energon.stateless
    def encode_sample(self, sample: Chat) -> Encoded:
        """Render, decode, process, mask."""
        processor = self._collate.processor
        text = processor.apply_chat_template(json.loads(sample.json)["messages"], tokenize=False)
        image = Image.open(io.BytesIO(sample.image)).convert("RGB")
        made = processor(text=[text], images=[image], return_tensors="pt")
        ids = made["input_ids"][0]
        labels = torch.where(assistant_mask(ids, self._collate.start, self._collate.end), ids, -100)
        media = {name: made[name] for name in ("pixel_values", "image_grid_thw")}
        return Encoded.derive_from(sample, input_ids=ids, labels=labels, lengths=[len(ids)], **media)

    def select_samples_to_pack(self, samples: list[Encoded]) -> list[list[Encoded]]:
        """Best fit, longest first."""
        packs: list[list[Encoded]] = []
        room: list[int] = []
        for sample in sorted(samples, key=lambda item: -item.lengths[0]):
            fitting = [place for place, left in enumerate(room) if left >= sample.lengths[0]]
            place = min(fitting, key=room.__getitem__, default=len(packs))
            if place == len(packs):
                packs.append([])
                room.append(PACK_LENGTH)
            packs[place].append(sample)
            room[place] -= sample.lengths[0]
        return packs

    @energon.stateless
    def pack_selected_samples(self, samples: list[Encoded]) -> Encoded:
        """One row of all."""
        names = ("input_ids", "labels", "pixel_values", "image_grid_thw")
        joined = {name: torch.cat([getattr(sample, name) for sample in samples]) for name in names}
        return Encoded.derive_from(samples[0], lengths=[len(sample.input_ids) for sample in samples], **joined)

    def batch(self, samples: list[Encoded]) -> dict[str, Any]:
        """[1, T]; room that is left in the pack is filled up, as packloom's fill is counted."""
        [pack] = samples
        batch = {name: getattr(pack, name) for name in ("pixel_values", "image_grid_thw")}
        batch |= {"input_ids": pack.input_ids[None], "labels": pack.labels[None]}
        return counted(batch, samples=len(pack.lengths), tokens=sum(pack.lengths))


class _Endless:
    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loader)


def energon_packing(work: Work) -> Iterable[Any]:
    """The savable loader of training; slices are shuffled, samples are not (packloom shuffles both)."""
    dataset = energon.get_train_dataset(
        str(work.shards),
        worker_config=energon.WorkerConfig(rank=0, world_size=1, num_workers=work.num_workers),
        batch_size=1,
        packing_buffer_size=BUFFER,
        shuffle_buffer_size=None,
        max_samples_per_sequence=100,
        task_encoder=Encoder(ProcessorCollate(work, "torchvision")),
    )
    return _Endless(energon.get_savable_loader(dataset))

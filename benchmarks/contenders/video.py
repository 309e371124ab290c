"""Work with videos goes in; packloom's loader, a Hugging Face collate and a decode-only floor over it come out.

The collate reads clips as transformers does with PyAV, and gives the chosen frames to the whole processor, whose video
processor needs torchvision. The floor decodes the frames that are taken, and does nothing with them.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from contenders.collates import load_processor
from contenders.workload import PACK_LENGTH, Sample, TarSamples, Work, assistant_mask, counted, messages_of
from packloom import TaskEncoder, build_loader
from packloom.config_video import VideoConfig
from packloom.task_encoders.video import decode_frames, read_clip
from packloom.types import Media

FPS, MAX_FRAMES, MIN_PIXELS, MAX_PIXELS = 2.0, 16, 3136, 1003520
VIDEO = VideoConfig(fps=FPS, max_frames=MAX_FRAMES, min_pixels=MIN_PIXELS, max_pixels=MAX_PIXELS)
ROWS = 4  # of a padded batch
_PART = "0.mp4"


def packloom_video(work: Work) -> Any:
    return build_loader(work.shards, _encoder(work), pack_length=PACK_LENGTH, num_workers=work.num_workers)


def hf_video(work: Work) -> Iterable[Any]:
    return DataLoader(
        TarSamples(work.shards), batch_size=ROWS, num_workers=work.num_workers, collate_fn=VideoCollate(work)
    )


def decode_floor(work: Work) -> Iterable[Any]:
    return DataLoader(_Decode(work), batch_size=None, num_workers=work.num_workers)


class VideoCollate:
    """Raw samples in, a padded batch with float pixels out."""

    def __init__(self, work: Work) -> None:
        self.processor: Any = load_processor(work, "torchvision")
        tokenizer = self.processor.tokenizer
        self.start = tokenizer("<|im_start|>assistant\n")["input_ids"]
        self.end = tokenizer.convert_tokens_to_ids("<|im_end|>")

    def __call__(self, samples: Sequence[Sample]) -> dict[str, Any]:
        from transformers.video_utils import read_video_pyav  # noqa: PLC0415 - needs torchvision in part

        choose = partial(self.processor.video_processor.sample_frames, fps=FPS, max_frames=MAX_FRAMES)
        read = [read_video_pyav(io.BytesIO(sample[_PART]), choose) for sample in samples]
        batch = dict(
            self.processor(
                text=[self.processor.apply_chat_template(messages_of(sample), tokenize=False) for sample in samples],
                videos=[frames for frames, _ in read],
                video_metadata=[metadata for _, metadata in read],
                do_sample_frames=False,
                videos_kwargs={
                    "size": {"shortest_edge": MIN_PIXELS, "longest_edge": MAX_PIXELS},
                    "cap_pixels_per_frame": False,
                },
                padding=True,
                return_tensors="pt",
            )
        )
        labels = torch.full_like(batch["input_ids"], -100)
        for row, ids in enumerate(batch["input_ids"]):
            mask = assistant_mask(ids, self.start, self.end)
            labels[row, mask] = ids[mask]
        return counted({**batch, "labels": labels}, samples=len(samples), tokens=int(batch["attention_mask"].sum()))


class _Decode(IterableDataset[Any]):
    """Gives the counts of a sample and an empty tensor; its tokens were counted beforehand."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self._samples, encoder = TarSamples(work.shards), _encoder(work)
        self._rule = encoder.video_rule
        self._tokens: dict[bytes, int] = {}
        for sample in self._samples:
            if sample["json"] in self._tokens:
                break
            raw = {"__key__": "counted", "json": {"messages": messages_of(sample)}, _PART: sample[_PART]}
            self._tokens[sample["json"]] = encoder.encode_sample(raw).num_tokens

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(self._work, self._samples)

    def _work(self, sample: Sample) -> dict[str, Any]:
        media = Media(kind="video", name=_PART, data=sample[_PART])
        clip = read_clip(media)
        if self._rule is not None:
            decode_frames(media, clip, self._rule.sample(clip).indices)
        counts = {"source_sample_num": 1, "num_input_tokens": self._tokens[sample["json"]], "num_loss_tokens": 0}
        return {"input_ids": torch.empty(0), **counts}


def _encoder(work: Work) -> TaskEncoder:
    return TaskEncoder.from_pretrained(work.processor, max_length=PACK_LENGTH, video=VIDEO)

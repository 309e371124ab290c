"""What is done to a sample at random follows from (seed, epoch, key, stage): not from ranks, workers or a resume."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import torch

from packloom.loader import build_loader, merge_states
from packloom.rng import derive, derive_seed, sample_generator
from packloom.types import EncodedSample

Fixture = Callable[..., Any]
SETTINGS = {"epochs": 2, "num_lanes": 4, "min_lane_samples": 5, "open_packs": 2, "buffer_size": 4}


def augmenting(encoder_class: type[Any]) -> type[Any]:
    """An encoder that draws tokens in its cooker and pixels where media are loaded."""

    class Augmenting(encoder_class):
        def encode_sample(self, raw: Any) -> Any:
            token = sample_generator(raw, "token").randrange(10**6)
            row = {**json.loads(raw["json"]), "token": token}
            return super().encode_sample({**raw, "json": json.dumps(row).encode()})

        def batch(self, samples: Any) -> Any:
            jitter = [sample_generator(sample, "jitter").randrange(250) for sample in samples]
            rows = super().batch(samples)
            return [
                replace(row, media_tensors={"pixel_values": row.media_tensors["pixel_values"] + shift})
                for row, shift in zip(rows, jitter, strict=True)
            ]

    return Augmenting


def test_the_same_on_any_number_of_ranks_and_resumed(
    write: Fixture, encoder_class: Any, build_ranks: Fixture, interleave: Fixture
) -> None:
    kind = augmenting(encoder_class)
    path = write([1 + place % 8 for place in range(30)], media=True)
    [single] = build_ranks(path, kind(), **SETTINGS)
    reference = interleave(list(single))
    ranks = build_ranks(path, kind(), 2, num_workers=1, **SETTINGS)
    assert interleave(*map(list, ranks)) == reference
    ranks = build_ranks(path, kind(), 2, **SETTINGS)
    got = interleave(*(list(islice(rank, 3)) for rank in ranks))
    [resumed] = build_ranks(path, kind(), **SETTINGS)
    resumed.load_state_dict(merge_states([rank.state_dict() for rank in ranks]))
    assert got + interleave(list(resumed)) == reference
    [other] = build_ranks(path, kind(), **SETTINGS, seed=1)
    runs = reference, interleave(list(other))
    drawn = [{token for _, numbers in run for token in numbers if token > 250} for run in runs]
    assert len(drawn[0]) > 55  # other ones in each epoch
    assert len(drawn[0] & drawn[1]) < 10


def test_streams_too(write: Fixture, encoder_class: Any, view: Fixture) -> None:
    path = write([4] * 10, media=True, indexed=False)
    runs = []
    for num_workers in (0, 1):
        loader = build_loader(path, augmenting(encoder_class)(4), num_workers=num_workers, epochs=2)
        runs.append([view(batch) for batch in loader])
    assert runs[0] == runs[1]
    assert len(set(runs[0])) == 20


def test_a_generator_per_stage_and_what_it_is_made_of() -> None:
    raw = {"__key__": "k", "__seed__": derive_seed(3, 1, "k")}
    numbers = [sample_generator(raw, stage).getrandbits(63) for stage in ("crop", "jitter", "crop")]
    assert numbers[0] == numbers[2] != numbers[1]
    assert numbers[0] == derive(derive_seed(3, 1, "k"), "crop").getrandbits(63)
    # Outside of the loader: seed 0, epoch 0.
    plain = {"__key__": "k"}
    assert sample_generator(plain, "crop").random() == derive(derive_seed(0, 0, "k"), "crop").random()
    tensor = torch.zeros(1, dtype=torch.int64)
    sample = EncodedSample(key="k", input_ids=tensor, loss_mask=tensor.bool(), position_ids=tensor[None])
    assert sample_generator(sample, "crop").random() == sample_generator(plain, "crop").random()
    seeded = replace(sample, seed=raw["__seed__"])
    assert sample_generator(seeded, "crop").getrandbits(63) == numbers[0]


def test_global_generators_are_left_alone(write: Fixture, encoder_class: Any) -> None:
    path = write([1 + place % 8 for place in range(30)], media=True)
    before = random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()  # noqa: NPY002
    for settings in ({"layout": "padded"}, {"num_workers": 1}):
        loader = build_loader(path, augmenting(encoder_class)(), epochs=1, **settings)
        list(loader)
    assert (random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()) == before  # noqa: NPY002

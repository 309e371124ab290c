"""The demo's samples: images of installed packages go in, raw shard samples come out, a few of them damaged on purpose.

Two sources, both read from installed packages: the pictures and questions of easy-vqa (one conversation per picture,
one turn per question) and the photos in the scikit-image wheel, with captions written for this demo.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from packloom import rng
from packloom.demo.extras import require
from packloom.errors import ConfigError
from packloom.types import RawSample

#: Photo in scikit-image's data folder → caption.
CAPTIONS = {
    "astronaut.png": "A smiling astronaut in an orange suit stands before a flag and a model of a space shuttle.",
    "brick.png": "A wall of bricks, seen straight on.",
    "camera.png": "A man in a dark coat looks through a camera on a tripod; a lawn and towers lie behind him.",
    "cell.png": "A single cell under a microscope, bright on a grey ground.",
    "chelsea.png": "The face of a tabby cat with green eyes.",
    "clock_motion.png": "A round thing on a grey ground, blurred by motion.",
    "coffee.png": "A cup of espresso on a red saucer with a spoon, on a wooden table.",
    "coins.png": "Old coins laid out in rows on a dark cloth.",
    "grass.png": "A lawn from above, blade by blade.",
    "gravel.png": "Small stones, close together.",
    "horse.png": "The black outline of a horse.",
    "hubble_deep_field.jpg": "Hundreds of distant galaxies on a black sky.",
    "ihc.png": "Stained tissue under a microscope, brown and blue.",
    "moon.png": "The surface of the moon with a crater.",
    "motorcycle_left.png": "A motorcycle stands in a garage full of tools.",
    "page.png": "A printed page about the segmentation of images.",
    "retina.jpg": "The back of a human eye with its blood vessels.",
    "rocket.jpg": "A rocket stands on its launch pad at dusk, lit by lamps.",
    "text.png": "Formulas in handwriting on ruled paper.",
}
REQUESTS = ("Describe the picture.", "What can be seen here?", "Give this photo a caption.")


def demo_samples(num_samples: int, *, seed: int = 0) -> Iterator[RawSample]:
    """``num_samples`` good samples and the damaged ones among them, in an order that the seed fixes."""
    photos = list(photo_samples())
    if num_samples < 2 * len(photos):
        photos = photos[: num_samples // 2]
    pictures = list(vqa_samples(num_samples - len(photos), seed=seed))
    samples = [*photos, *pictures, *damaged_samples()]
    rng.derive(seed, "demo", "order").shuffle(samples)
    yield from samples


def vqa_samples(num_samples: int, *, seed: int = 0) -> Iterator[RawSample]:
    """One conversation per easy-vqa picture, 1 to 8 questions each; pictures are drawn by the seed."""
    package = require("easy_vqa")
    questions: dict[int, list[tuple[str, str]]] = defaultdict(list)
    for question, answer, picture in zip(*package.get_train_questions(), strict=True):
        questions[picture].append((question, answer))
    paths: dict[int, str] = package.get_train_image_paths()
    if num_samples > len(questions):
        raise ConfigError(f"easy-vqa has {len(questions)} pictures, {num_samples} were asked for: lower --samples")
    for picture in rng.derive(seed, "demo", "pictures").sample(sorted(questions), num_samples):
        draw = rng.derive(seed, "demo", picture)
        turns = draw.sample(questions[picture], min(len(questions[picture]), draw.randint(1, 8)))
        yield _sample(f"vqa-{picture:04d}", turns, {"0.png": Path(paths[picture]).read_bytes()})


def photo_samples() -> Iterator[RawSample]:
    """Each photo once per request, with its caption as the answer, and one pair of photos."""
    for name, caption in CAPTIONS.items():
        stem, suffix = name.split(".")
        for number, request in enumerate(REQUESTS):
            yield _sample(f"photo-{stem}-{number}", [(request, caption)], {f"0.{suffix}": _photo(name)})
    pair = {"0.png": _photo("motorcycle_left.png"), "1.png": _photo("motorcycle_right.png")}
    yield _sample("photo-pair", [("What changed?", "The camera moved a little to the side.")], pair)


def damaged_samples() -> list[RawSample]:
    """What datasets hold in the wild, each refused for another reason."""
    rocket = _photo("rocket.jpg")
    turns = [("Describe the picture.", CAPTIONS["rocket.jpg"])]
    return [
        _sample("damaged-cut-off-jpeg", turns, {"0.jpg": rocket[: len(rocket) // 2]}),
        _sample("damaged-not-an-image", turns, {"0.jpg": b"<html>404 Not Found</html>"}),
        _sample("damaged-image-missing", turns, {"0.jpg": None}),
        _sample("damaged-no-answer", [("Describe the picture.", None)], {"0.jpg": rocket}),
        _sample("damaged-too-long", [(turns[0][0], " ".join([turns[0][1]] * 200))], {"0.jpg": rocket}),
    ]


def _photo(name: str) -> bytes:
    return (resources.files(require("skimage")) / "data" / name).read_bytes()


def _sample(key: str, turns: list[tuple[str, Any]], images: Mapping[str, bytes | None]) -> RawSample:
    """A raw sample in the shard layout: OpenAI-style messages, their image parts name the files beside them.

    An answer or an image that is None is left out.
    """
    messages: list[dict[str, Any]] = []
    for question, answer in turns:
        messages.append({"role": "user", "content": [{"type": "text", "text": question}]})
        if answer is not None:
            messages.append({"role": "assistant", "content": [{"type": "text", "text": answer}]})
    messages[0]["content"][:0] = [{"type": "image", "image": name} for name in images]
    content = json.dumps({"messages": messages}, ensure_ascii=False).encode()
    return {"__key__": key, "json": content, **{name: data for name, data in images.items() if data is not None}}

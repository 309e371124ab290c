"""A gallery of samples goes in; one HTML file that needs nothing else, and no network, comes out."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
from importlib import resources
from pathlib import Path
from typing import Any

from packloom.datasets.files import write_file
from packloom.inspect import printable
from packloom.report.gallery import Gallery
from packloom.report.grids import Grid, media_grids
from packloom.report.preview import frame_previews, previews
from packloom.report.samples import spread
from packloom.report.tokens import Token, position_runs, tokens_of
from packloom.testing.spans import Reader
from packloom.testing.traits import Traits
from packloom.types import EncodedMedia, EncodedSample, Frames

#: What a page may have at most, in bytes; images get what its text leaves of it.
_MAX_BYTES = 16 << 20
_LEAST_FOR_IMAGES = 1 << 20
#: Of a video, at most.
_MAX_FRAMES = 32

#: How a kind of token is written in the data of the page.
_LETTERS = {"text": "x", "control": "c", "terminator": "e", "media": "m"}

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; script-src '{script_hash}'; \
style-src '{style_hash}'; base-uri 'none'; form-action 'none'">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<noscript>This page draws itself with the script that it holds: allow scripts for it.</noscript>
<script type="application/json" id="data">{data}</script>
<script>{script}</script>
</body>
</html>
"""


def write_page(gallery: Gallery, path: str | os.PathLike[str]) -> int:
    """Write the page, whole or not at all; the number of its bytes."""
    data = render_page(gallery).encode("utf-8")
    write_file(os.fspath(Path(path)), data)
    return len(data)


def render_page(gallery: Gallery) -> str:
    """The page as text. What comes from the dataset is data in it: none of it is read as HTML or as script."""
    content = page_data(gallery)
    room = max(_LEAST_FOR_IMAGES, _MAX_BYTES - len(_as_json(content).encode()))
    _add_pictures(gallery, content, room)
    assets = resources.files("packloom.report") / "assets"
    style, script = (assets.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    return _PAGE.format(
        title=html.escape(f"packloom inspect · {content['dataset']}"),
        style=style,
        style_hash=_hash(style),
        script=script,
        script_hash=_hash(script),
        data=_as_json(content),
    )


def _add_pictures(gallery: Gallery, content: dict[str, Any], room: int) -> None:
    """Put small copies of all images and shown frames into the data of the page; together they take ``room`` bytes."""
    pairs = [
        (item, entry)
        for sample, page in zip(gallery.samples, content["samples"], strict=True)
        for item, entry in zip(sample.media, page["media"], strict=True)
    ]
    images = [(item.media, entry) for item, entry in pairs if item.media.kind == "image"]
    videos = [(item, entry) for item, entry in pairs if item.frames is not None]
    share = room // max(1, len(images) + sum(len(entry["frames"]) for _, entry in videos))
    shown = previews([media for media, _ in images], max_bytes=share * len(images))
    for (_, entry), uri in zip(images, shown, strict=True):
        entry["src"] = uri
    for item, entry in videos:
        places = [place for place, *_ in entry["frames"]]
        for frame, uri in zip(
            entry["frames"], frame_previews(item, places, max_bytes=share * len(places)), strict=True
        ):
            frame.append(uri)


def page_data(gallery: Gallery) -> dict[str, Any]:
    """All that the page shows but the pixels, as plain data."""
    reader = Reader.of(gallery.encoder, Traits.of(gallery.encoder))
    return {
        "dataset": printable(", ".join(gallery.data.path)),
        "processor": printable(gallery.encoder.parts.name),
        "family": gallery.encoder.family.name,
        "total": gallery.total,
        "packLength": gallery.choice.pack_length,
        "samples": [
            _sample(gallery, reader, sample, place)
            for sample, place in zip(gallery.samples, gallery.places, strict=True)
        ],
        "packs": [
            [[place, gallery.samples[place].num_tokens, gallery.costs[place].tokens] for place in pack.members]
            for pack in gallery.packs
        ],
        "skipped": [
            [printable(text) for text in (item.key, item.place, item.code, item.reason, item.next_move)]
            for item in gallery.skipped
        ],
    }


def _sample(gallery: Gallery, reader: Reader, sample: EncodedSample, place: str) -> dict[str, Any]:
    grids = media_grids(gallery.encoder, sample)
    return {
        "key": printable(sample.key),
        "place": printable(place),
        "numTokens": sample.num_tokens,
        "numTrained": int(sample.loss_mask.sum()),
        "tokens": [_token(token) for token in tokens_of(reader, sample)],
        "positions": [position_runs(axis) for axis in sample.position_ids.tolist()],
        "media": [_medium(item, grid) for item, grid in zip(sample.media, grids, strict=True)],
    }


def _medium(item: EncodedMedia, grid: Grid) -> dict[str, Any]:
    found: dict[str, Any] = {
        "kind": item.media.kind,
        "name": printable(item.media.name),
        "width": item.width,
        "height": item.height,
        "numTokens": item.num_tokens,
        "rows": grid.rows,
        "columns": grid.columns,
        "runs": grid.runs,
    }
    if item.frames is not None:
        found |= {"numFrames": len(item.frames.indices), "steps": grid.steps, "seconds": round(item.frames.duration, 3)}
        found["frames"] = _shown_frames(item.frames, grid.steps)
    if item.sound is not None:
        found |= {"seconds": round(item.sound.seconds, 3), "rate": item.sound.rate}
    return found


def _shown_frames(frames: Frames, steps: int) -> list[list[Any]]:
    """(place among the taken frames, number in the clip, second, step) of whole steps, evenly spread over the video."""
    count = len(frames.indices)
    each = -(-count // (steps or count))
    chosen = spread(-(-count // each), max(1, _MAX_FRAMES // each))
    places = [place for step in chosen for place in range(step * each, min(count, (step + 1) * each))]
    return [[place, frames.indices[place], round(frames.seconds[place], 3), place // each] for place in places]


def _token(token: Token) -> list[Any]:
    """start, ids, count, text, kind's letter, trained on (0 or 1)."""
    return [token.start, list(token.ids), token.count, _visible(token.text), _LETTERS[token.kind], int(token.trained)]


def _visible(text: str) -> str:
    """Ends of lines and what has no shape, spelled out."""
    return "".join("⏎\n" if letter == "\n" else printable(letter) for letter in text)


def _as_json(content: object) -> str:
    """JSON that cannot end the element which it stands in."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"

"""A folder of images with captions enters, a source with one row per image leaves."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from packloom.datasets.convert.json_source import JsonSource, find_json
from packloom.datasets.convert.source import Column, SourceRow, digest
from packloom.errors import SampleError, ShardError

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif", ".heic"})
_TABLES = ("metadata.jsonl", "metadata.csv")


@dataclass(frozen=True, kw_only=True)
class FolderSource:
    """Images in the order of their paths; ``a.jpg`` has its caption in ``a.txt`` beside it."""

    folder: Path
    listing: JsonSource  # {"image": path below the folder, "caption": path} per row; either may be missing
    identity: str
    kind: str = "folder"
    columns: tuple[Column, ...] = (Column(name="image", type="text"), Column(name="caption", type="text"))
    keeps_unknown: bool = False
    segments: None = None

    @property
    def num_rows(self) -> int:
        return self.listing.num_rows

    @property
    def media_root(self) -> str:
        return str(self.folder)

    def rows(self, numbers: np.ndarray, columns: Sequence[str]) -> Iterator[SourceRow | SampleError]:
        return (self._with_caption(row) for row in self.listing.rows(numbers, columns))

    def _with_caption(self, row: SourceRow | SampleError) -> SourceRow | SampleError:
        if isinstance(row, SampleError):
            return row
        image, caption = row.values.get("image"), row.values.get("caption")
        if image is None or caption is None:
            there, lacking = (image, "caption file") if caption is None else (caption, "image")
            reason = f"{there} has no {lacking} beside it"
            return SampleError(reason, code="convert.missing_file", hint="a.jpg goes with a.txt")
        path = self.folder / caption
        try:
            text = path.read_text(encoding="utf-8-sig").strip()
        except UnicodeDecodeError as error:
            return SampleError(f"{caption} is not UTF-8: {error}", code="convert.utf8")
        except FileNotFoundError:
            return SampleError(f"{caption} is no longer there", code="convert.missing_file")
        except OSError as error:
            raise ShardError(f"{path} cannot be read: {error.strerror or error}") from error
        return replace(row, values={"image": image, "caption": text})


def find_folder(folder: Path, scratch: Path) -> FolderSource | JsonSource:
    """Images with caption files, or with a ``metadata.jsonl`` or ``.csv`` whose ``file_name`` names them."""
    tables = [folder / name for name in _TABLES if (folder / name).exists()]
    scratch.mkdir(parents=True, exist_ok=True)
    if tables:
        path = tables[0] if tables[0].suffix == ".jsonl" else _csv_as_rows(tables[0], scratch / "metadata.jsonl")
        return find_json(path, scratch, media_root=str(folder))
    names = scratch / "listing.jsonl"
    with names.open("w", encoding="ascii") as file:
        for row in _pairs(folder):
            file.write(json.dumps(row) + "\n")
    listing = find_json(names, scratch)
    return FolderSource(folder=folder, listing=listing, identity=digest("folder", listing.identity))


def holds_images(folder: Path) -> bool:
    """Whether the folder, or one below it, holds an image."""
    return any(os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES for _, _, names in os.walk(folder) for name in names)


def _pairs(folder: Path) -> Iterator[dict[str, str | int]]:
    """One row per image, and one per caption without image; the sizes make the listing's digest tell more."""
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        below = os.path.relpath(root, folder)
        captions = {os.path.splitext(name)[0]: name for name in names if name.endswith(".txt")}
        used: set[str] = set()
        for name in sorted(names):
            stem, suffix = os.path.splitext(name)
            if suffix.lower() not in IMAGE_SUFFIXES or name.startswith("."):
                continue
            row: dict[str, str | int] = {"image": os.path.normpath(os.path.join(below, name))}
            row["size"] = os.path.getsize(os.path.join(root, name))
            if stem in captions:
                row["caption"] = os.path.normpath(os.path.join(below, captions[stem]))
                row["caption_size"] = os.path.getsize(os.path.join(root, captions[stem]))
                used.add(stem)
            yield row
        for stem in sorted(captions.keys() - used):
            yield {"caption": os.path.normpath(os.path.join(below, captions[stem]))}


def _csv_as_rows(path: Path, target: Path) -> Path:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file, target.open("w", encoding="ascii") as out:
            for row in csv.DictReader(file):
                out.write(json.dumps({name: value for name, value in row.items() if name is not None}) + "\n")
    except (UnicodeDecodeError, csv.Error) as error:
        raise ShardError(f"{path} cannot be read as CSV in UTF-8: {error}") from error
    return target

"""A Hugging Face dataset enters, on disk or by its name, a source of its rows with undecoded media leaves."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from packloom.datasets.convert.arrow_rows import arrow_columns, table_rows
from packloom.datasets.convert.source import Column, SourceRow, digest, in_chunks
from packloom.errors import CapabilityError, ConfigError, SampleError, ShardError

#: What one mapping of the files may bring into memory before they are mapped anew.
_MAPPED_BYTES = 64 << 20


@dataclass(frozen=True, kw_only=True)
class HfSource:
    """Rows of one split in its order."""

    name: str
    subset: str | None
    split: str | None
    on_disk: bool
    num_rows: int
    identity: str
    columns: tuple[Column, ...]
    kind: str = "hf"
    keeps_unknown: bool = False
    segments: None = None
    media_root: None = None

    def rows(self, numbers: np.ndarray, columns: Sequence[str]) -> Iterator[SourceRow | SampleError]:
        dataset: Any = None
        mapped = 0

        def read(chunk: np.ndarray) -> tuple[list[SourceRow], int]:
            nonlocal dataset, mapped
            if dataset is None or mapped > _MAPPED_BYTES:  # pages of a mapping stay in memory as long as it does
                dataset, mapped = _load(self.name, self.subset, self.split, on_disk=self.on_disk), 0
                dataset = dataset.select_columns(list(columns)).with_format("arrow")
            wanted = chunk.tolist()
            try:
                table = dataset[wanted]
                values = list(table_rows(table, wanted))
            except (OSError, ValueError) as error:  # pyarrow's errors are either
                raise ShardError(f"rows {wanted[0]} ff. of {self.name} cannot be read: {error}") from error
            mapped += table.nbytes
            rows = zip(wanted, values, strict=True)
            return [SourceRow(number=number, values=row) for number, row in rows], table.nbytes

        return in_chunks(numbers, read)


def find_hf(name: str, *, subset: str | None, split: str | None) -> HfSource:
    """The split of a dataset that ``save_to_disk`` wrote, or that the Hub has under a name. Raises ShardError."""
    on_disk = os.path.isdir(name)
    dataset = _load(name, subset, split, on_disk=on_disk)
    files = [os.path.getsize(item["filename"]) for item in dataset.cache_files]
    state = Path(name, "state.json")
    text = state.read_text(encoding="utf-8") if on_disk and state.exists() else ""
    return HfSource(
        name=name,
        subset=subset,
        split=split,
        on_disk=on_disk,
        num_rows=len(dataset),
        identity=digest("hf", len(dataset), dataset.features, *files, text),
        columns=arrow_columns(dataset.features.arrow_schema),
    )


def is_hf_folder(path: Path) -> bool:
    """Whether ``save_to_disk`` wrote the folder."""
    return (path / "dataset_info.json").exists() or (path / "dataset_dict.json").exists()


def _load(name: str, subset: str | None, split: str | None, *, on_disk: bool) -> Any:
    hf = _import()
    try:
        found = hf.load_from_disk(name) if on_disk else hf.load_dataset(name, subset, split=split)
    except (OSError, ValueError, hf.exceptions.DatasetsError) as error:
        raise ShardError(f"the dataset {name!r} cannot be loaded: {error}") from error
    if isinstance(found, hf.DatasetDict):
        splits = list(found)
        chosen = split or (splits[0] if len(splits) == 1 else None)
        if chosen not in splits:
            raise ConfigError(f"the dataset {name!r} has the splits {', '.join(splits)}: choose one with --split")
        found = found[chosen]
    elif split is not None and on_disk:
        raise ConfigError(f"the dataset {name!r} on disk has no splits: leave --split {split} out")
    return found


def _import() -> Any:
    try:
        import datasets  # noqa: PLC0415 - optional

        return datasets
    except ImportError as error:
        reason = "a Hugging Face dataset needs the package `datasets`: pip install 'packloom[hf]'"
        raise CapabilityError(f"{reason} ({error})") from error

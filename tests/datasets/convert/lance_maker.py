"""Run as a script, so that no test process opens Lance: writes the rows of a JSON file as Lance datasets.

``python lance_maker.py rows.json out/``: rows hold ``id``, ``conversations`` and ``images`` (paths); out/ gets one
dataset per way in which Lance can store images. The images of a row are null, or none, where ``images`` says so.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def main(rows_file: str, out: str) -> None:
    import lance  # noqa: PLC0415 - in this process only
    import pyarrow as pa  # noqa: PLC0415

    rows = json.loads(Path(rows_file).read_text())
    base: dict[str, Any] = {
        "id": pa.array([row["id"] for row in rows]),
        "conversations": pa.array([row["conversations"] for row in rows]),
    }
    lists = [None if row["images"] is None else [Path(p).read_bytes() for p in row["images"]] for row in rows]
    first = [images[0] if images else None for images in lists]
    empty = [b"" if images == [] else image for images, image in zip(lists, first, strict=True)]
    blob = pa.field("image", pa.large_binary(), metadata={"lance-encoding:blob": "true"})

    def write(name: str, field: Any, values: Any, **options: Any) -> Any:
        schema = pa.schema([*pa.table(base).schema, field])
        table = pa.table([*base.values(), values], schema=schema)
        return lance.write_dataset(table, f"{out}/{name}.lance", max_rows_per_file=700, **options)

    write("binary", pa.field("image", pa.binary()), pa.array(empty, pa.binary()))
    write("list", pa.field("images", pa.list_(pa.binary())), pa.array(lists, pa.list_(pa.binary())))
    write("blob_v1", blob, pa.array(empty, pa.large_binary()), data_storage_version="2.1")
    write("blob_v2", lance.blob_field("image"), lance.blob_array(empty), data_storage_version="2.2")
    struct = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    pairs = [None if image is None else {"bytes": image, "path": "x.jpg"} for image in first]
    write("struct", pa.field("image", struct), pa.array(pairs, struct))
    paths = [row["images"][0] if row["images"] else None for row in rows]
    write("path", pa.field("image", pa.string()), pa.array([p and Path(p).name for p in paths]))
    keys = [None if row["images"] is None else [Path(p).name for p in row["images"]] for row in rows]
    dataset = write("keys", pa.field("images", pa.list_(pa.string())), pa.array(keys, pa.list_(pa.string())))
    dataset.delete("id = 'row.3'")
    names = sorted({name for names in keys for name in names or ()})
    folder = Path(next(path for path in paths if path)).parent
    media = pa.table({"name": names, "data": pa.array([(folder / n).read_bytes() for n in names], pa.binary())})
    lance.write_dataset(media, f"{out}/media.lance")


if __name__ == "__main__":
    main(*sys.argv[1:])

"""The name of a tar member enters, the key of its sample and the name of its part leave, by webdataset's rule."""

from __future__ import annotations


def split_name(name: str) -> tuple[str, str] | None:
    """``a.b/0001.0.jpg`` → (``a.b/0001``, ``0.jpg``): the key ends at the first dot of the last piece. Else None.

    Exactly what ``webdataset.tariterators.base_plus_ext`` does, odd names included (tests compare them); webdataset
    itself imports torch, for which whoever only reads, converts or indexes need not wait.
    """
    end = name.find(".", name.rfind("/") + 1)
    if end < 1:
        return None
    key, part = name[:end], name[end + 1 :]
    line_end = key.find("\n")  # folders end there, and what follows may have no dot
    last = end - 1 if line_end < 0 else min(line_end, end - 1)
    return None if "." in key[key.rfind("/", 0, last) + 1 :] else (key, part)

"""A dataset path or url as a user writes it enters, a plain spelling of it, its folder and its name leave."""

from __future__ import annotations

import os
import re
from pathlib import Path

from braceexpand import braceexpand

from packloom.errors import ShardError

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")  # two letters or more: a single one is a drive
#: Those that only read and write bytes. Others of fsspec's run commands or chain one file system into another.
SCHEMES = frozenset({"s3", "s3a", "gs", "gcs", "http", "https", "memory", "az", "abfs", "abfss", "hf"})


def is_url(path: str) -> bool:
    """Whether fsspec has to read the path; ``normalise`` has turned ``file://`` into a plain path before."""
    return _URL.match(path) is not None


def normalise(path: str | os.PathLike[str]) -> str:
    """The path or url in one spelling. Raises ShardError for a url that is not read."""
    text = os.fspath(path)
    scheme = _URL.match(text)
    if scheme is None:
        if text == "-" or "::" in text or _SCHEME.match(text):
            raise ShardError(f"{text!r} is a stream, a command or a chain of urls, which have no index")
        return str(Path(text)) if text else ""
    if scheme[1].lower() == "file":
        return str(Path(text[len("file://") :]))
    if scheme[1].lower() not in SCHEMES or "::" in text or "${" in text:
        raise ShardError(f"{text!r} is not read; what is: local paths and {', '.join(sorted(SCHEMES))}")
    return text.rstrip("/")


def join(folder: str, name: str) -> str:
    """A file below a folder. Raises ShardError for a name that would leave it."""
    pieces = name.split("/")
    if not name or name.startswith("/") or "\\" in name or "\0" in name or any(p in ("", ".", "..") for p in pieces):
        raise ShardError(f"{name!r} is no plain relative name, so it is not looked for in {folder}")
    return f"{folder}/{name}" if is_url(folder) else str(Path(folder, name))


def split(path: str) -> tuple[str, str]:
    """The folder and the name of a file."""
    folder, _, name = path.rpartition("/")
    return folder or ("/" if path.startswith("/") else "."), name


def expand_braces(path: str) -> list[str]:
    """The paths that a brace pattern stands for. Raises ShardError for a malformed one."""
    if "${" in path:
        raise ShardError(f"{path!r} names an environment variable, which is not read: write the path out")
    try:
        return list(braceexpand(path)) if "{" in path else [path]
    except ValueError as error:
        raise ShardError(f"brace pattern {path!r} is malformed: {error}") from error

"""Standard input and urls without an index: read forwards, once, and without a state."""

from __future__ import annotations

import io
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pytest

from packloom.errors import ConfigError, ShardError, StateError
from packloom.loader import build_loader

Write = Callable[..., str]
NUMBERED = [f"{place:04d}" for place in range(12)]


def keys(batches: Any) -> list[str]:
    return [key for batch in batches for key in batch["sample_keys"]]


@pytest.fixture
def tars(write: Write) -> list[Path]:
    """Three shards of four samples, of which one fails."""
    return sorted(Path(write([1 + place % 8 for place in range(12)], {5: "cook"}, 4, indexed=False)).glob("*.tar"))


@pytest.fixture
def stdin(tars: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    stream = SimpleNamespace(
        buffer=io.BytesIO(b"".join(path.read_bytes() for path in tars)), closed=False, isatty=lambda: False
    )
    monkeypatch.setattr(sys, "stdin", stream)


def test_stdin_is_read_once(stdin: None, encoder_class: Any, caplog: Any) -> None:
    with caplog.at_level(logging.WARNING):
        loader = build_loader("-", encoder_class(), epochs=1, seed=3)
    assert "- has no index: it is read as a stream, without exact resume" in caplog.text
    got = keys(loader)
    assert sorted(got) == [key for key in NUMBERED if key != "0005"]
    assert [(record.key, record.source) for record in loader.skip_records] == [("0005", "-")]
    with pytest.raises(StateError, match=r"- has no index, .* Store what comes from standard input as shards"):
        loader.state_dict()
    with pytest.raises(ShardError, match="standard input was read already"):
        list(loader)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": 1, "num_workers": 2}, "num_workers is 2, and must be 0"),
        ({"epochs": 1, "dp_rank": 0, "dp_size": 2}, "dp_size is 2, and must be 1"),
        ({}, "epochs is None, and must be 1"),
    ],
)
def test_what_would_read_stdin_twice_is_refused(encoder_class: Any, settings: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"standard input can be read by one process and once: {message}"):
        build_loader("-", encoder_class(), **settings)


def test_stdin_that_is_none(encoder_class: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(closed=False, isatty=lambda: True))
    loader = build_loader("-", encoder_class(), epochs=1, on_error="raise")
    with pytest.raises(Exception, match="standard input is a terminal"):
        list(loader)


@pytest.fixture
def bucket(tars: list[Path]) -> Iterator[str]:
    system = fsspec.filesystem("memory")
    for path in tars:
        system.pipe_file(f"memory://plain/{path.name}", path.read_bytes())
    yield "memory://plain"
    system.rm("memory://plain", recursive=True)


@pytest.mark.parametrize("name", ["", "/shard-{000000..000002}.tar"])
def test_urls_without_an_index(bucket: str, encoder_class: Any, name: str) -> None:
    loader = build_loader(bucket + name, encoder_class(), epochs=1)
    assert sorted(keys(loader)) == [key for key in NUMBERED if key != "0005"]
    with pytest.raises(StateError, match="Run `packloom index` on its folder"):
        loader.state_dict()
    with pytest.raises(ShardError, match="is not read"):
        build_loader("ssh://host/x.tar", encoder_class())
    with pytest.raises(ShardError, match="which are not read"):
        build_loader("pipe:cat x.tar", encoder_class())


@pytest.fixture
def server(tars: list[Path]) -> Iterator[str]:
    """An http server that knows no ranges."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

    running = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tars[0].parent)))
    threading.Thread(target=running.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{running.server_port}"
    running.shutdown()
    running.server_close()


def test_an_http_server_that_cannot_seek(server: str, encoder_class: Any) -> None:
    pytest.importorskip("aiohttp")
    urls = [f"{server}/shard-00000{number}.tar" for number in range(2)]
    signed = f"{server}/shard-000002.tar?token=a/b"
    seen: list[str] = []
    for rank in range(2):  # ranks share the shards item by item
        loader = build_loader([*urls, signed], encoder_class(), epochs=1, dp_rank=rank, dp_size=2, num_workers=rank)
        seen += keys(loader)
    assert sorted(seen) == [key for key in NUMBERED if key != "0005"]
    loader = build_loader(f"{server}/absent.tar", encoder_class(), epochs=1, on_error="raise")
    with pytest.raises(Exception, match=r"absent\.tar.*cannot be opened"):
        list(loader)

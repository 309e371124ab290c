"""split_name: webdataset's own rule, for every name that a tar can hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from webdataset.tariterators import base_plus_ext

from packloom.datasets.naming import split_name


@given(st.one_of(st.text("ab./\n", max_size=12), st.text(max_size=20)))
def test_names_are_split_as_webdataset_does(name: str) -> None:
    key, part = base_plus_ext(name)
    assert split_name(name) == (None if key is None else (key, part))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("0001.jpg", ("0001", "jpg")),
        ("a.b/0001.0.JPG", ("a.b/0001", "0.JPG")),
        ("a/.hidden", ("a/", "hidden")),
        (".hidden", None),
        ("a.b/plain", None),
        ("a.b\nc/d.txt", None),
        ("key.", ("key", "")),
    ],
)
def test_names(name: str, expected: tuple[str, str] | None) -> None:
    assert split_name(name) == expected

"""The package's public names."""

from __future__ import annotations

import subprocess
import sys

import pytest

import packloom


def test_every_public_name_is_there_and_sorted():
    assert packloom.__all__ == sorted(packloom.__all__)
    assert set(packloom.__all__) == set(packloom._HOMES)
    assert all(getattr(packloom, name) is not None for name in packloom.__all__)
    assert set(packloom.__all__) <= set(dir(packloom))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = packloom.nothing


@pytest.mark.parametrize("module", ["packloom", "packloom.datasets", "packloom.datasets.convert.task", "packloom.cli"])
def test_who_only_reads_or_converts_does_not_wait_for_torch(module: str) -> None:
    heavy = "sorted({'torch', 'transformers'} & set(sys.modules))"
    code = f"import sys, packloom.task_encoders.cookers, {module}; print({heavy})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

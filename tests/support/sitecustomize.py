"""Makes ``import torchvision`` work beside a CPU-only torch whose operator library does not load.

Python reads a module of this name at start. tests/conftest.py puts this folder on the path, here and in the processes
that tests start, and only where the plain import fails: the first ``import torchvision`` then declares the two operator
schemas that torchvision's Python layer wants to see. Nothing is imported before that.
"""

from __future__ import annotations

import importlib.abc
import sys
from typing import Any

_kept: list[Any] = []  # a torch.library.Library withdraws its schemas when it is freed


class DeclareOperatorsFirst(importlib.abc.MetaPathFinder):
    """Finds nothing; declares the operators when torchvision is first looked for."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name != "torchvision" or _kept:
            return
        import torch  # noqa: PLC0415 - late, so that a process without torch stays without it

        library = torch.library.Library("torchvision", "DEF")
        _kept.append(library)
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


sys.meta_path.insert(0, DeclareOperatorsFirst())

"""One media tensor per row in; the batch's tensor, joined by a named rule that the model's forward accepts, out.

Axes: I images · tiles of one image · C H W.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType

import torch
from torch import Tensor

from packloom.errors import BatchError


def join(name: str, tensors: Sequence[Tensor]) -> Tensor:
    """Join rows in their order by the rule ``name``, one of JOINS.

    Raises BatchError for an unknown name, for no tensors at all, and for dtypes, ranks or shapes that do not go
    together: nothing is broadcast, cast or padded beyond what the rule says.
    """
    if name not in JOINS:
        raise BatchError(f"no join of media tensors is called {name!r}; known: {', '.join(JOINS)}")
    if not tensors:
        raise BatchError(f"{name}: there is no media tensor to join")
    first = tensors[0]
    for index, tensor in enumerate(tensors):
        if tensor.dtype != first.dtype or tensor.ndim != first.ndim:
            raise BatchError(
                f"{name}: the first media tensor is {first.dtype} of rank {first.ndim}, number {index} is"
                f" {tensor.dtype} of rank {tensor.ndim}: all rows of a batch must come from one encoder"
            )
    return JOINS[name](name, tensors)


def _concat(name: str, tensors: Sequence[Tensor]) -> Tensor:
    """[n, ...] → [sum of n, ...]; nothing is copied where the tensors already lie in memory one behind the other."""
    _require_equal(name, tensors, [axis for axis in range(tensors[0].ndim) if axis != 0])
    if not _are_neighbours(tensors):
        return torch.cat(list(tensors))
    first = tensors[0]
    size = (sum(len(tensor) for tensor in tensors), *first.shape[1:])
    return first.as_strided(size, first.stride(), first.storage_offset())


def _are_neighbours(tensors: Sequence[Tensor]) -> bool:
    """Whether each tensor begins where the one before it ends, in one piece of memory."""
    storage, end = tensors[0].untyped_storage().data_ptr(), tensors[0].storage_offset()
    for tensor in tensors:
        if tensor.untyped_storage().data_ptr() != storage or tensor.storage_offset() != end:
            return False
        if not tensor.is_contiguous():
            return False
        end += tensor.numel()
    return len(tensors) > 1


def _concat_tiles(name: str, tensors: Sequence[Tensor]) -> Tensor:
    """[1, tiles, ...] → [1, sum of tiles, ...]: for models that flatten both axes, so nothing is padded."""
    _require_rank(name, tensors, at_least=2)
    if any(tensor.shape[0] != 1 for tensor in tensors):
        raise BatchError(f"{name}: every row must be [1, tiles, ...], got {_shapes(tensors)}")
    _require_equal(name, tensors, range(2, tensors[0].ndim))
    return torch.cat(list(tensors), dim=1)


def _pad_tiles(name: str, tensors: Sequence[Tensor]) -> Tensor:
    """[I, tiles, ...] → [sum of I, most tiles, ...], missing tiles are zero."""
    _require_rank(name, tensors, at_least=2)
    _require_equal(name, tensors, range(2, tensors[0].ndim))
    return _pad_and_concat(tensors)


def _pad_images(name: str, tensors: Sequence[Tensor]) -> Tensor:
    """[I, C, H, W] → [sum of I, C, largest H, largest W], zero below and to the right of smaller images."""
    _require_rank(name, tensors, at_least=4)
    _require_equal(name, tensors, range(1, tensors[0].ndim - 2))
    return _pad_and_concat(tensors)


def _pad_and_concat(tensors: Sequence[Tensor]) -> Tensor:
    largest = [max(sizes) for sizes in zip(*(tensor.shape[1:] for tensor in tensors), strict=True)]
    out = tensors[0].new_zeros((sum(tensor.shape[0] for tensor in tensors), *largest))
    start = 0
    for tensor in tensors:
        own = out[start : start + tensor.shape[0]]
        own[tuple(slice(size) for size in tensor.shape)] = tensor
        start += tensor.shape[0]
    return out


def _require_rank(name: str, tensors: Sequence[Tensor], *, at_least: int) -> None:
    if tensors[0].ndim < at_least:
        raise BatchError(f"{name}: needs tensors of rank {at_least} or more, got {_shapes(tensors)}")


def _require_equal(name: str, tensors: Sequence[Tensor], axes: Sequence[int]) -> None:
    if len({tuple(tensor.shape[axis] for axis in axes) for tensor in tensors}) > 1:
        raise BatchError(
            f"{name}: the shapes {_shapes(tensors)} differ outside the joined axes: all rows of a batch must come from"
            " one encoder, and this family may need another join"
        )


def _shapes(tensors: Sequence[Tensor]) -> str:
    return ", ".join(str(list(tensor.shape)) for tensor in tensors)


#: name → rule
JOINS: MappingProxyType[str, Callable[[str, Sequence[Tensor]], Tensor]] = MappingProxyType(
    {"concat": _concat, "concat_tiles": _concat_tiles, "pad_tiles": _pad_tiles, "pad_images": _pad_images}
)

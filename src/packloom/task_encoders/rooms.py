"""A dtype and a shape go in; an empty tensor, in memory that a worker process hands over without a copy, comes out."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.data import get_worker_info


def hand_over_room(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Uninitialised [*shape]; in a worker of a DataLoader its memory is shared, elsewhere it is ordinary memory.

    A worker's queue moves every tensor into shared memory, unless it is there already.
    """
    if get_worker_info() is None:
        return torch.empty(shape, dtype=dtype)
    num_bytes = torch.empty(shape, dtype=dtype, device="meta").nbytes
    # as torch's own default_collate does
    storage = torch.UntypedStorage._new_shared(num_bytes)  # type: ignore[no-untyped-call]
    return torch.empty(0, dtype=dtype).set_(storage).view(shape)

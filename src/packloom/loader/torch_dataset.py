"""A loader goes in; a torch IterableDataset over its batches comes out, for frameworks that take nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from packloom.errors import ConfigError
from packloom.loader.loader import Loader
from packloom.types import Batch


class LoaderDataset(IterableDataset[Batch]):
    """The batches of a loader, and its state by torchdata's StatefulDataLoader protocol.

    For ``StatefulDataLoader(LoaderDataset(loader), batch_size=None, num_workers=0)``, whose own ``state_dict`` then
    holds the loader's. The loader has workers of its own, and knows its rank: a DataLoader around it must have no
    workers, and nothing may shard it a second time (see docs/peers.md).
    """

    def __init__(self, loader: Loader) -> None:
        super().__init__()
        self.loader = loader

    def __iter__(self) -> Iterator[Batch]:
        """Raises ConfigError in a worker process of a DataLoader, and what ``Loader.__iter__`` raises."""
        if get_worker_info() is not None:
            raise ConfigError(
                "a packloom loader cannot run in the workers of a DataLoader, where each would give all batches: pass"
                " num_workers=0 there, and num_workers to build_loader"
            )
        return iter(self.loader)

    def state_dict(self) -> dict[str, Any]:
        return self.loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loader.load_state_dict(state)

"""An indexed dataset and the settings of its order go in; what each lane draws, draw by draw, comes out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, TypedDict

from typing_extensions import Unpack

from packloom.datasets.aux_media import AuxShelf
from packloom.datasets.dataset import ShardDataset
from packloom.datasets.epoch_order import EpochOrder
from packloom.errors import ReadError
from packloom.types import RawSample

#: Orders that are kept: lanes cross from one epoch to the next at different times.
_KEPT_ORDERS = 4


class LaneFeed(Protocol):
    """What lanes draw from. A draw is a number that counts on through all epochs of a lane."""

    @property
    def fingerprint(self) -> str: ...

    @property
    def num_samples(self) -> int: ...  # per epoch, over all lanes

    @property
    def num_lanes(self) -> int: ...

    def epoch_length(self, lane: int) -> int:
        """The draws of a lane per epoch, the same in each and at least one."""

    def epoch_of(self, lane: int, draw: int) -> int:
        """The epoch that a draw belongs to."""

    def sample_of(self, lane: int, draw: int) -> int:
        """The sample of a draw, as a number below ``num_samples``; in constant time."""

    def samples_from(self, lane: int, draw: int) -> Iterator[int]:
        """The samples of this draw and of all that follow, without end."""

    def read(self, sample: int) -> RawSample:
        """All parts of a sample, and the finder of its aux media under ``"__aux__"``; raises ReadError."""

    def read_parts(self, samples: Sequence[int], parts: Sequence[str]) -> list[RawSample | ReadError]:
        """Some parts of several samples."""

    def place_of(self, sample: int) -> str:
        """Where a sample comes from, for records."""

    def offset_of(self, sample: int) -> int | None:
        """The byte where it begins there, as far as it is known."""

    def leaf_of(self, sample: int) -> str:
        """The leaf of the blend that it belongs to; "" where there is no blend."""


class OrderSettings(TypedDict, total=False):
    """The settings of an order; their defaults are OrderedFeed's."""

    seed: int
    shuffle: bool
    block: int
    window: int
    turn: int  # samples that a lane takes at a time where nothing is shuffled


class OrderedFeed:
    """The draws of lanes over one order of all samples; what reads them is a subclass's."""

    def __init__(
        self,
        total: int,
        fingerprint: str,
        *,
        num_lanes: int,
        seed: int = 0,
        shuffle: bool = True,
        block: int = 16,
        window: int = 1000,
        turn: int = 1,
    ) -> None:
        self.num_samples = total
        self.fingerprint = fingerprint
        self.num_lanes = num_lanes
        self._settings = {"seed": seed, "block_size": block, "window": window, "turn": turn}
        self._shuffle = shuffle
        self._orders: dict[int, EpochOrder] = {}

    def epoch_length(self, lane: int) -> int:
        return self._order(0).lane_length(lane)

    def epoch_of(self, lane: int, draw: int) -> int:
        return draw // self.epoch_length(lane)

    def sample_of(self, lane: int, draw: int) -> int:
        epoch, place = divmod(draw, self.epoch_length(lane))
        return self._order(epoch).at(place, lane)

    def samples_from(self, lane: int, draw: int) -> Iterator[int]:
        epoch, place = divmod(draw, self.epoch_length(lane))
        while True:
            yield from self._order(epoch).iterate(lane, place)
            epoch, place = epoch + 1, 0

    def leaf_of(self, sample: int) -> str:
        return ""

    def _order(self, epoch: int) -> EpochOrder:
        if epoch not in self._orders:
            while len(self._orders) >= _KEPT_ORDERS:
                del self._orders[next(iter(self._orders))]
            self._orders[epoch] = EpochOrder(
                total=self.num_samples,
                fingerprint=self.fingerprint,
                epoch=epoch,
                shuffle=self._shuffle,
                num_lanes=self.num_lanes,
                **self._settings,
            )
        return self._orders[epoch]


class DatasetFeed(OrderedFeed):
    """A single dataset, and the aux datasets that its samples name media of. Pickles as far as they do."""

    def __init__(
        self,
        dataset: ShardDataset,
        *,
        num_lanes: int,
        aux: AuxShelf | None = None,
        **settings: Unpack[OrderSettings],
    ) -> None:
        super().__init__(len(dataset), dataset.fingerprint, num_lanes=num_lanes, **settings)
        self.dataset = dataset
        self._aux = aux

    def read(self, sample: int) -> RawSample:
        return self.with_aux(self.dataset.read(*self.dataset.locate(sample)))

    def with_aux(self, raw: RawSample) -> RawSample:
        """The sample with the finder of its aux media, if there are any."""
        return raw if self._aux is None else {**raw, "__aux__": self._aux}

    def read_parts(self, samples: Sequence[int], parts: Sequence[str]) -> list[RawSample | ReadError]:
        return self.dataset.read_many(samples, parts=parts)

    def place_of(self, sample: int) -> str:
        return self.dataset.shard_path(self.dataset.locate(sample)[0])

    def offset_of(self, sample: int) -> int | None:
        return self.dataset.offset(*self.dataset.locate(sample))

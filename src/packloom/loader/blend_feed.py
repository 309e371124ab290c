"""An opened blend and the settings of its order go in; what each lane draws of which leaf comes out.

The samples of a leaf follow one another in an endless stream: the order of its first epoch, of its second, and so on.
Lanes take turns in that stream, so that no sample comes a second time long before another comes a first, however few a
leaf has. Each leaf counts its own epochs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from packloom.config import SourceConfig
from packloom.datasets.blend_data import BlendData
from packloom.datasets.blend_schedule import SplitSchedule, WeightedSchedule
from packloom.errors import ReadError
from packloom.loader.feed import OrderedFeed
from packloom.rng import derive_seed
from packloom.types import RawSample

#: Positions of a stream that are worked out together.
_MAX_PIECE = 1024
#: Leaves that a hint names.
_MAX_TOLD = 8


class _LeafStream:
    """The samples of one leaf, epoch after epoch."""

    def __init__(self, total: int, identity: str, source: SourceConfig, *, num_lanes: int, turn: int) -> None:
        self.total = total
        share = max(1, total // num_lanes)  # of a lane, per epoch
        # A lane reads on in blocks that lie together, unless its share is so small that all of them do.
        window = min(source.shuffle_window, share) if share >= source.shuffle_block else source.shuffle_window
        self.turn = min(source.shuffle_window, share) if source.shuffle else turn
        self._order = OrderedFeed(
            total,
            identity,
            num_lanes=1,
            seed=source.seed,
            shuffle=source.shuffle,
            block=source.shuffle_block,
            window=window,
        )
        self._pieces: dict[int, list[int]] = {}
        self._kept_pieces = 2 * num_lanes  # for each lane that which it reads, and one more
        self._piece_length = min(self.turn, _MAX_PIECE)

    def at(self, position: int) -> int:
        """The place in the leaf of a position in the stream; in constant time."""
        piece, place = divmod(position, self._piece_length)
        if piece not in self._pieces:
            while len(self._pieces) >= self._kept_pieces:
                del self._pieces[next(iter(self._pieces))]
            self._pieces[piece] = self._read_piece(piece * self._piece_length)
        return self._pieces[piece][place]

    def _read_piece(self, start: int) -> list[int]:
        """The places of a piece of the stream, made together, which is many times faster than one by one."""
        return list(islice(self._order.samples_from(0, start), self._piece_length))


class _BlendReader:
    """Samples by number."""

    _data: BlendData

    def read(self, sample: int) -> RawSample:
        return self._data.read(sample)

    def read_parts(self, samples: Sequence[int], parts: Sequence[str]) -> list[RawSample | ReadError]:
        return self._data.read_many(samples, parts)

    def place_of(self, sample: int) -> str:
        return self._data.shard_path(sample)

    def offset_of(self, sample: int) -> int | None:
        return self._data.offset(sample)

    def leaf_of(self, sample: int) -> str:
        return self._data.leaves[self._data.locate(sample)[0]].name


class ConcatFeed(_BlendReader, OrderedFeed):
    """All leaves as one dataset: not shuffled, one leaf comes behind the other."""

    def __init__(self, data: BlendData, source: SourceConfig, *, num_lanes: int, turn: int) -> None:
        super().__init__(
            len(data),
            data.fingerprint,
            num_lanes=num_lanes,
            seed=source.seed,
            shuffle=source.shuffle,
            block=source.shuffle_block,
            window=source.shuffle_window,
            turn=turn,
        )
        self._data = data


class _BlendFeed(_BlendReader):
    """What the feeds of all kinds share; they say where a draw stands in the stream of which leaf."""

    def __init__(self, data: BlendData, source: SourceConfig, *, num_lanes: int, turn: int) -> None:
        self.num_lanes = num_lanes
        self._data = data
        self._streams = [
            _LeafStream(leaf.num_samples, leaf.identity, source, num_lanes=num_lanes, turn=turn) for leaf in data.leaves
        ]

    @property
    def fingerprint(self) -> str:
        return self._data.fingerprint

    @property
    def num_samples(self) -> int:
        return len(self._data)

    def epoch_of(self, lane: int, draw: int) -> int:
        """That of the leaf."""
        leaf, position = self._position(lane, draw)
        return position // self._streams[leaf].total

    def sample_of(self, lane: int, draw: int) -> int:
        leaf, position = self._position(lane, draw)
        return self._data.number(leaf, self._streams[leaf].at(position))

    def samples_from(self, lane: int, draw: int) -> Iterator[int]:
        while True:
            yield self.sample_of(lane, draw)
            draw += 1

    def _position(self, lane: int, draw: int) -> tuple[int, int]:
        """(leaf, position in its stream) of a draw."""
        raise NotImplementedError


class WeightedFeed(_BlendFeed):
    """A weighted blend: without end, and without epochs of its own."""

    def __init__(self, data: BlendData, source: SourceConfig, *, num_lanes: int, turn: int) -> None:
        super().__init__(data, source, num_lanes=num_lanes, turn=turn)
        self._schedule = WeightedSchedule([leaf.share for leaf in data.leaves], seed=source.seed)
        #: Draws of a lane in which every leaf has come whole.
        self._long = max(-(-leaf.num_samples * 2 // leaf.share) for leaf in data.leaves)

    def epoch_length(self, lane: int) -> int:
        return self._long

    def repetitions_hint(self) -> str:
        """Which repetitions give the leaves the same shares, where the least drawn one comes once."""
        rates = [leaf.share / leaf.num_samples for leaf in self._data.leaves]
        told = [
            f"{leaf.name} {float(rate / min(rates)):.4g}" for leaf, rate in zip(self._data.leaves, rates, strict=True)
        ]
        rest = [f"and {len(told) - _MAX_TOLD} more"] if len(told) > _MAX_TOLD else []
        return f"Repetitions for the same shares: {', '.join([*told[:_MAX_TOLD], *rest])}"

    def _position(self, lane: int, draw: int) -> tuple[int, int]:
        leaf, rank = self._schedule.at(lane, draw)
        turn = self._streams[leaf].turn
        turns, place = divmod(rank, turn)
        return leaf, (turns * self.num_lanes + lane) * turn + place


class EpochizedFeed(_BlendFeed):
    """An epochised blend: over all lanes, each epoch holds the next ``num_drawn`` samples of each leaf's stream."""

    def __init__(self, data: BlendData, source: SourceConfig, *, num_lanes: int, turn: int) -> None:
        super().__init__(data, source, num_lanes=num_lanes, turn=turn)
        self._seed = source.seed
        # What is left where lanes get equal shares is dealt on from where the leaf before stopped.
        drawn = [leaf.num_drawn for leaf in data.leaves]
        self._first = [sum(drawn[:leaf]) % num_lanes for leaf in range(len(drawn))]
        self._schedules: dict[int, SplitSchedule] = {}

    def epoch_length(self, lane: int) -> int:
        return self._schedule(lane).length

    def _position(self, lane: int, draw: int) -> tuple[int, int]:
        schedule = self._schedule(lane)
        epoch, place = divmod(draw, schedule.length)
        leaf, rank = schedule.at(place)
        drawn = self._data.leaves[leaf].num_drawn
        return leaf, epoch * drawn + self._share(leaf, lane)[0] + rank

    def _share(self, leaf: int, lane: int) -> tuple[int, int]:
        """(first, count) of a lane's draws among those of a leaf in one epoch."""
        least, rest = divmod(self._data.leaves[leaf].num_drawn, self.num_lanes)
        turn = (lane - self._first[leaf]) % self.num_lanes
        return turn * least + min(turn, rest), least + (turn < rest)

    def _schedule(self, lane: int) -> SplitSchedule:
        if lane not in self._schedules:
            counts = tuple(self._share(leaf, lane)[1] for leaf in range(len(self._streams)))
            self._schedules[lane] = SplitSchedule(counts=counts, seed=derive_seed(self._seed, "blend", lane))
        return self._schedules[lane]

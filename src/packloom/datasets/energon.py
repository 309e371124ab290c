"""An encoder enters, a task encoder for megatron-energon's own loader leaves (extra ``energon``).

Energon then reads, shuffles, packs, restores and handles errors in its own way; packloom does what is between a raw
sample and a finished batch. The folder is prepared as crude data (``energon prepare --sample-type CrudeWebdataset``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar, cast

from packloom.errors import CapabilityError, ConfigError
from packloom.types import Batch, EncodedSample, LabelShift, Layout, RawSample, Row

try:
    from megatron import energon
    from megatron.energon.errors import FatalSampleError
except ImportError as error:
    raise CapabilityError(f"megatron-energon cannot be imported ({error}): pip install 'packloom[energon]'") from error

#: The lengths of a buffer of samples go in, groups of their positions come out; each position is in one group.
GroupLengths = Callable[[Sequence[int]], Sequence[Sequence[int]]]


class Encoder(Protocol):
    """What is needed of an encoder; ``packloom.TaskEncoder`` is one."""

    def encode_sample(self, raw: RawSample) -> EncodedSample: ...

    def batch(self, samples: Sequence[EncodedSample]) -> list[Row]: ...

    def collate(
        self, rows: Sequence[Row], *, layout: Layout, label_shift: LabelShift, pad_to_multiple_of: int,
        segment_multiple: int,
    ) -> Batch: ...  # fmt: skip


_F = TypeVar("_F", bound=Callable[..., Any])


def _stateless(function: _F) -> _F:
    """Energon's mark of a function that may be run again when a state is restored."""
    return cast(_F, energon.stateless(function))


class EnergonBatch(dict[str, Any]):
    """A packloom batch with what Energon wants to know of its samples beside it, as attributes."""

    def __init__(self, batch: Mapping[str, Any], samples: Sequence[EnergonSample]) -> None:
        super().__init__(batch)
        self.__key__ = [sample.__key__ for sample in samples]
        self.__restore_key__: tuple[Any, ...] = ()  # Energon sets it
        self.__subflavors__ = [sample.__subflavors__ for sample in samples]
        self.__sources__ = tuple(source for sample in samples for source in sample.__sources__ or ())


@energon.edataclass
class EnergonSample(energon.Sample):  # type: ignore[misc]
    """One sample on its way: a raw sample, then an EncodedSample, then a Row; of a pack, its EnergonBatch."""

    content: Any


@_stateless
def cook_crude(raw: dict[str, Any]) -> EnergonSample:
    """The parts in bytes under the names that packloom's readers give; ``__url__`` is the shard's name."""
    parts = {name: value for name, value in raw.items() if not name.startswith("__")}
    facts = {"__key__": raw["__key__"], "__url__": raw["__shard__"], "__subflavors__": raw["__subflavors__"]}
    return EnergonSample(**energon.basic_sample_keys(raw), content={**facts, **parts})


def as_energon(
    encoder: Encoder,
    *,
    layout: Layout = "padded",
    label_shift: LabelShift = "next_token",
    pad_to_multiple_of: int = 1,
    segment_multiple: int = 1,
    group_lengths: GroupLengths | None = None,
) -> Any:
    """A ``task_encoder`` for ``get_train_dataset`` and ``get_val_dataset``, whose batches are packloom's.

    Each batch is made of ``batch_size`` samples, in either layout. With ``group_lengths`` the samples of Energon's
    packing buffer are grouped by it, and each group is one packed batch: then give ``packing_buffer_size``, and
    ``batch_size=None``. Media are decoded behind Energon's buffers.

    A bad sample raises SampleError, which Energon's error handler logs and skips, one sample at a time. A group that
    names no sample, one twice or leaves one out ends the run, where Energon would lose the whole buffer.

    Raises ConfigError for ``group_lengths`` with the padded layout.
    """
    if group_lengths is not None and layout != "packed":
        raise ConfigError(f"group_lengths makes packs, and layout is {layout!r}: pass layout='packed'")
    settings = {
        "layout": layout,
        "label_shift": label_shift,
        "pad_to_multiple_of": pad_to_multiple_of,
        "segment_multiple": segment_multiple,
    }
    return _Batches(encoder, settings) if group_lengths is None else _Packs(encoder, settings, group_lengths)


class _Encoding(energon.TaskEncoder):  # type: ignore[misc]
    """What both kinds share; parts stay bytes until the encoder reads them."""

    cookers = [energon.Cooker(cook_crude)]  # noqa: RUF012 - Energon's interface
    decoder = None

    def __init__(self, encoder: Encoder, settings: Mapping[str, Any]) -> None:
        super().__init__()
        self._encoder = encoder
        self._settings = settings

    def _encoded(self, sample: EnergonSample) -> EnergonSample:
        return replace(sample, content=self._encoder.encode_sample(sample.content))

    def _loaded(self, sample: EnergonSample) -> EnergonSample:
        [row] = self._encoder.batch([sample.content])
        return replace(sample, content=row)

    def _collated(self, samples: Sequence[EnergonSample]) -> EnergonBatch:
        return EnergonBatch(self._encoder.collate([sample.content for sample in samples], **self._settings), samples)


class _Batches(_Encoding):
    """Batches of neighbours."""

    @_stateless
    def encode_sample(self, sample: EnergonSample) -> EnergonSample:
        return self._loaded(self._encoded(sample))

    @_stateless
    def batch(self, samples: list[EnergonSample]) -> EnergonBatch:
        return self._collated(samples)


class _Packs(_Encoding):
    """Packs that are chosen by length, in Energon's packing buffer."""

    def __init__(self, encoder: Encoder, settings: Mapping[str, Any], group_lengths: GroupLengths) -> None:
        super().__init__(encoder, settings)
        self._group_lengths = group_lengths

    @_stateless
    def preencode_sample(self, sample: EnergonSample) -> EnergonSample:
        return self._encoded(sample)

    def select_samples_to_pack(self, samples: list[EnergonSample]) -> list[list[EnergonSample]]:
        groups = [list(group) for group in self._group_lengths([sample.content.num_tokens for sample in samples])]
        places = sorted(place for group in groups for place in group)
        if places != list(range(len(samples))) or not all(groups):
            raise FatalSampleError(
                f"group_lengths made {len(groups)} groups with {len(places)} positions of {len(samples)} samples: each"
                " position must be in one group, and no group may be empty"
            )
        return [[samples[place] for place in group] for group in groups]

    @_stateless
    def postencode_sample(self, sample: EnergonSample) -> EnergonSample:
        return self._loaded(sample)

    @_stateless
    def pack_selected_samples(self, samples: list[EnergonSample]) -> EnergonBatch:
        return self._collated(samples)

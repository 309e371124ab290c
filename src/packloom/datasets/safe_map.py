"""A function and an error policy enter, a stage of anybody's pipeline leaves that skips, counts and quarantines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from packloom.datasets.policy import ErrorPolicy, Quarantine, Stage
from packloom.errors import SampleError
from packloom.types import EncodedSample

_In = TypeVar("_In")
_Out = TypeVar("_Out")


class SafeMap(Generic[_In, _Out]):
    """``function`` on every sample; those for which it raises SampleError are left out, counted and recorded.

    A stage of a webdataset pipeline, ``dataset.compose(SafeMap(encoder.encode_sample))``, or of any chain of
    iterators. Other exceptions are bugs and pass. It pickles where the function does; each worker process counts for
    itself, and all append to one quarantine file.
    """

    def __init__(
        self,
        function: Callable[[_In], _Out],
        *,
        stage: Stage = "encode",
        quarantine: str | None = None,
        max_consecutive_errors: int = 100,
        max_error_fraction: float | None = 0.5,
        min_error_samples: int = 1000,
    ) -> None:
        """Raises ConfigError for limits that are none, and if the quarantine file cannot be written."""
        self._function = function
        self._stage: Stage = stage
        self._quarantine = None if quarantine is None else Quarantine(quarantine)
        self._policy = ErrorPolicy(
            max_consecutive=max_consecutive_errors, max_fraction=max_error_fraction, min_samples=min_error_samples
        )

    @property
    def skipped(self) -> Counter[tuple[str, str]]:
        """(shard, code) → samples skipped in this process."""
        return self._policy.counts

    def __call__(self, samples: Iterable[_In]) -> Iterator[_Out]:
        """What the function makes of each good sample, in their order. Raises TooManyErrors at a limit."""
        for sample in samples:
            try:
                result = self._function(sample)
            except SampleError as error:
                key, source = _place(sample)
                try:
                    self._policy.skip(error.with_key(key), stage=self._stage, source=source)
                finally:
                    self._record()
                continue
            self._policy.passed(self._stage)
            yield result

    def _record(self) -> None:
        for record in self._policy.take_records():
            if self._quarantine is not None:
                self._quarantine.write(record)


def _place(sample: Any) -> tuple[str, str]:
    """Key and shard of a raw sample; of what an encoder made, its own."""
    if isinstance(sample, EncodedSample):
        return sample.key, sample.source
    return (str(sample.get("__key__", "")), str(sample.get("__url__", ""))) if isinstance(sample, dict) else ("", "")

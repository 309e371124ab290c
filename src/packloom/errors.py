"""Every error that packloom raises on purpose.

PackloomError
├── ConfigError            a setting, or a pair of settings, that cannot work (also a ValueError)
├── ProcessorError         a processor, tokenizer or chat template that cannot be loaded or understood
│   └── CapabilityError    it is understood, but this family, library version or install cannot do what was asked
├── SampleError            one sample is bad; the error policy counts, quarantines and skips it
│   ├── ReadError          its bytes could not be read from the shard
│   ├── CookError          its fields are not a conversation with its media
│   ├── MaskError          its assistant tokens could not be proved
│   ├── MediaError         its media could not be opened, decoded or processed
│   └── BudgetError        it is over a length or media limit
├── PackingError           a packer lost, doubled or overfilled something
├── BatchError             rows or a batch that break the batch contract
├── ShardError             a shard or dataset folder that is not what it should be
├── StateError             a saved loader state that cannot be used here
├── PlanError              a plan of packs (or its cache) that cannot be used, or does not fit what is read
├── WorkerError            a worker process of the loader died (also a RuntimeError)
└── TooManyErrors          the error policy's limit was reached
"""

from __future__ import annotations


class PackloomError(Exception):
    """The base of every error that packloom raises on purpose."""


class ConfigError(PackloomError, ValueError):
    """A setting, or a pair of settings, that cannot work."""


class ProcessorError(PackloomError):
    """A processor, tokenizer or chat template that cannot be loaded or understood."""


class CapabilityError(ProcessorError):
    """Understood, but not possible with this family, library version or installation."""


class SampleError(PackloomError):
    """One bad sample.

    ``key`` names the sample, ``reason`` says what is wrong with it in words, ``code`` is a short stable name of the
    kind of fault (for counting, e.g. ``"mask.span_count"``), and ``hint`` says what to do next (may be empty).
    ``offset`` is the byte in the shard where what failed stands, where that is known.
    """

    def __init__(
        self, reason: str, *, key: str = "", code: str = "sample", hint: str = "", offset: int | None = None
    ) -> None:
        self.reason = reason
        self.key = key
        self.code = code
        self.hint = hint
        self.offset = offset
        super().__init__(reason, key, code, hint)

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.reason, self.key, self.code, self.hint, self.offset)

    def __str__(self) -> str:
        text = f"sample {self.key!r}: {self.reason}"
        return f"{text} ({self.hint})" if self.hint else text

    def with_key(self, key: str) -> SampleError:
        """The same error, naming the sample (for code that does not know the key)."""
        return (
            self if self.key else type(self)(self.reason, key=key, code=self.code, hint=self.hint, offset=self.offset)
        )

    def with_offset(self, offset: int | None) -> SampleError:
        """The same error, naming the byte of the shard (for code that does not know it)."""
        if self.offset is not None or offset is None:
            return self
        return type(self)(self.reason, key=self.key, code=self.code, hint=self.hint, offset=offset)


def _rebuild(kind: type[SampleError], reason: str, key: str, code: str, hint: str, offset: int | None) -> SampleError:
    return kind(reason, key=key, code=code, hint=hint, offset=offset)


class ReadError(SampleError):
    """The bytes of a sample could not be read from its shard."""


class CookError(SampleError):
    """The fields of a sample are not a conversation with its media."""


class MaskError(SampleError):
    """The assistant tokens of a sample could not be proved."""


class MediaError(SampleError):
    """A medium of a sample could not be opened, decoded or processed."""


class BudgetError(SampleError):
    """A sample is over a length or media limit."""


class PackingError(PackloomError):
    """A packer lost, doubled or overfilled something."""


class BatchError(PackloomError):
    """Rows or a batch that break the batch contract."""


class ShardError(PackloomError):
    """A shard or a dataset folder that is not what it should be."""


class StateError(PackloomError):
    """A saved loader state that cannot be used here."""


class PlanError(PackloomError):
    """A plan of packs that cannot be used, or does not fit what is read."""


class WorkerError(PackloomError, RuntimeError):
    """A worker process of the loader died."""


class TooManyErrors(PackloomError):
    """The error policy's limit was reached."""

"""A dataset, and an encoder if there is one, go in; everything that is wrong with any sample comes out, by kind."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from packloom.errors import CapabilityError, ConfigError, ReadError, SampleError, ShardError
from packloom.report.next_moves import next_move
from packloom.report.samples import Chunk, Item, Samples, load_encoder, open_samples
from packloom.report.spec import DataSpec, EncoderSpec
from packloom.report.work import run_all
from packloom.task_encoders.audio import decode_sound, read_sound
from packloom.task_encoders.chat_checks import check_chat
from packloom.task_encoders.cookers import cook
from packloom.task_encoders.images import decode_rgb
from packloom.task_encoders.video import read_clip
from packloom.types import Media, RawSample

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing that is wrong: with a sample, or (then ``key`` is its path) with a shard."""

    code: str  # short stable name of the kind of fault
    key: str
    place: str  # the shard
    reason: str
    hint: str


@dataclass(frozen=True, kw_only=True)
class Group:
    """All findings of one kind."""

    code: str
    findings: tuple[Finding, ...]

    @property
    def next_move(self) -> str:
        """What to do about them: what most of the findings say, else what is known of the kind."""
        hints = [finding.hint for finding in self.findings if finding.hint]
        return max(hints, key=hints.count) if hints else next_move(self.code)


@dataclass(frozen=True, kw_only=True)
class LintReport:
    """What ``lint`` found."""

    num_samples: int  # good and bad
    num_good: int
    with_encoder: bool
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings

    def groups(self) -> list[Group]:
        """The findings by kind, the most frequent kind first."""
        by_code: dict[str, list[Finding]] = {}
        for finding in self.findings:
            by_code.setdefault(finding.code, []).append(finding)
        found = [Group(code=code, findings=tuple(items)) for code, items in by_code.items()]
        return sorted(found, key=lambda group: (-len(group.findings), group.code))

    def as_dict(self) -> dict[str, Any]:
        """Plain data for ``--json``."""
        return {
            "num_samples": self.num_samples,
            "num_good": self.num_good,
            "num_findings": len(self.findings),
            "with_processor": self.with_encoder,
            "kinds": [
                {"code": group.code, "count": len(group.findings), "next": group.next_move} for group in self.groups()
            ],
            "findings": [asdict(finding) for finding in self.findings],
        }


def lint(data: DataSpec, encoder: EncoderSpec | None = None, *, num_workers: int = 0) -> LintReport:
    """Read every sample, cook it, decode its images and, with an encoder, encode it and process its images.

    Without an encoder images and audio are decoded as any encoder would, and of videos the headers are read. A damaged
    shard, an index that fits no longer and a key that two samples share are findings too. Raises ShardError or
    ConfigError where there is no dataset at all, ProcessorError where the encoder cannot be loaded, CapabilityError
    where what decodes a medium is not installed.
    """
    if encoder is not None:
        load_encoder(encoder)  # what is wrong with it is said here, once
    samples, findings = _open(data)
    chunks = samples.chunks(num_workers)
    job = _Job(data=data, encoder=encoder, with_index=samples.feed is not None)
    results = run_all(
        _lint_chunk,
        [(job, chunk) for chunk in chunks],
        num_workers=num_workers,
        label="lint",
        total=samples.total,
        size=lambda result: result.num_samples,
    )
    findings += [finding for result in results for finding in result.findings]
    if samples.has_own_keys:
        findings += _duplicates(samples, chunks, [result.digests for result in results])
    num_samples = sum(result.num_samples for result in results)
    if not num_samples and not findings:
        raise ShardError(f"{', '.join(data.path)} holds no samples")
    if samples.feed is None and num_samples == sum(finding.code == "read.open" for finding in findings) > 0:
        raise ShardError(f"none of {num_samples} shards can be opened, e.g. {findings[-1].key}: check the address")
    return LintReport(
        num_samples=num_samples,
        num_good=sum(result.num_good for result in results),
        with_encoder=encoder is not None,
        findings=tuple(dict.fromkeys(findings)),
    )


@dataclass(frozen=True, kw_only=True)
class _Job:
    data: DataSpec
    encoder: EncoderSpec | None
    with_index: bool


@dataclass(frozen=True, kw_only=True)
class _Result:
    num_samples: int
    num_good: int
    findings: list[Finding]
    digests: np.ndarray  # [num_samples] uint64, of the keys; 0 where the sample could not be read


def _open(data: DataSpec) -> tuple[Samples, list[Finding]]:
    """The dataset, if need be without its index, and what was wrong with it before any sample was read."""
    open_samples.cache_clear()  # files may have changed since the last call
    try:
        samples = open_samples(data, with_index=True)
        findings = [_finding(error, shard) for shard, error in samples.faults()]
    except ShardError as error:
        samples = open_samples(data, with_index=False)
        samples.shards()  # raises for what is no dataset of shards at all
        findings = [_shard_finding(", ".join(data.path), error, "shard.index")]
    if samples.feed is None:
        shards, bad = samples.shards()
        findings += [_shard_finding(shard, error, "shard.unusable") for shard, error in bad]
        if not shards and not bad:
            raise ShardError(f"{', '.join(data.path)} holds no .tar shards: name a folder that does")
    return samples, findings


def _lint_chunk(task: tuple[_Job, Chunk]) -> _Result:
    job, chunk = task
    samples = open_samples(job.data, with_index=job.with_index)
    findings: list[Finding] = []
    digests = []
    num_good = 0
    for item in samples.read(chunk):
        digests.append(0 if isinstance(item.raw, Exception) else _digest(item.raw["__key__"]))
        problem = _problem(samples, job.encoder, item)
        findings += [problem] if problem is not None else []
        num_good += problem is None
    return _Result(
        num_samples=len(digests), num_good=num_good, findings=findings, digests=np.array(digests, dtype=np.uint64)
    )


def _problem(samples: Samples, encoder: EncoderSpec | None, item: Item) -> Finding | None:
    """What is wrong with a sample, or None."""
    if isinstance(item.raw, ShardError):
        return _shard_finding(item.place, item.raw, "shard.index")
    if isinstance(item.raw, ReadError):
        return _finding(item.raw, item.place)
    key = str(item.raw["__key__"])
    try:
        if encoder is None:
            _check_plainly(samples, item.raw)
        else:
            stages = samples.stages(load_encoder(encoder))
            stages.load([stages.encode(item.raw, epoch=0)])
    except SampleError as error:
        return _finding(error.with_key(key), item.place)
    except CapabilityError:
        raise
    except Exception:
        logger.error("a bug (no SampleError) came up at sample %r of %s", key, item.place)
        raise
    return None


def _check_plainly(samples: Samples, raw: RawSample) -> None:
    """Cook the sample, decode its images and audio, and read the headers of its videos."""
    for media in _fetched(samples, check_chat(cook(raw)).media):
        if media.kind == "image":
            decode_rgb(media)
        elif media.kind == "video":
            read_clip(media)
        else:
            sound = read_sound(media)
            decode_sound(media, sound, rate=sound.rate)


def _fetched(samples: Samples, media: tuple[Media, ...]) -> Iterator[Media]:
    """The media, those of aux datasets with their bytes."""
    found = samples.library.fetch(item.aux for item in media if item.aux is not None and not item.data)
    for item in media:
        data = found.get(item.aux, item.data) if item.aux is not None else item.data
        if isinstance(data, ReadError):
            raise ReadError(f"{item.name}: {data.reason}", code=data.code, hint=data.hint)
        yield item if data is item.data else replace(item, data=data)


def _duplicates(samples: Samples, chunks: list[Chunk], digests: list[np.ndarray]) -> list[Finding]:
    """A finding for each sample whose key an earlier one has: digests tell which, and those are read once more."""
    everything = np.concatenate(digests) if digests else np.zeros(0, np.uint64)
    values, counts = np.unique(everything[everything > 0], return_counts=True)
    shared = values[counts > 1]
    first: dict[str, str] = {}
    findings = []
    for chunk, own in zip(chunks, digests, strict=True):
        wanted = set(np.flatnonzero(np.isin(own, shared)).tolist())
        if not wanted:
            continue
        for place, item in enumerate(samples.read(chunk)):
            if place not in wanted or isinstance(item.raw, Exception):
                continue
            key = str(item.raw["__key__"])
            if key in first:
                error = SampleError(
                    f"has the key of an earlier sample, in {first[key]}",
                    key=key,
                    code="lint.duplicate_key",
                    hint="give each sample a key of its own: it names the sample in every report",
                )
                findings.append(_finding(error, item.place))
            first.setdefault(key, item.place)
    return findings


def _digest(key: object) -> int:
    data = str(key).encode("utf-8", "surrogateescape")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big") or 1


def _finding(error: SampleError, place: str) -> Finding:
    return Finding(code=error.code, key=error.key, place=place, reason=error.reason, hint=error.hint)


def _shard_finding(shard: str, error: ShardError | ConfigError, code: str) -> Finding:
    return Finding(code=code, key=shard, place=shard, reason=str(error), hint="")

"""The containers that travel through the pipeline: ChatSample, EncodedSample, Row and Batch.

Axis legend, used in every shape comment:
B rows · S padded length · T packed length · L length of one sample · A position axes (1, or 3 for mRoPE)
N segments · I images · P vision patches
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict

if TYPE_CHECKING:  # whoever only reads or converts does not wait for torch, which takes 200 MB
    from torch import Tensor

#: A sample as a shard gives it: ``"__key__"``, ``"__url__"`` and part name → bytes. The loader adds ``"__seed__"`` (see
#: ``rng.sample_generator``) and, where there are aux datasets, ``"__aux__"`` (a MediaFinder).
RawSample = dict[str, Any]

Role = Literal["system", "user", "assistant", "tool"]
MediaKind = Literal["image", "video", "audio"]
Layout = Literal["packed", "padded"]
LabelShift = Literal["next_token", "none"]

#: The label that every loss ignores.
IGNORE_INDEX = -100


@dataclass(frozen=True, kw_only=True, slots=True)
class TextPart:
    """A piece of text in a message."""

    text: str
    read: bool = False  # the chat template acts on it and does not write it: see Family.switches


@dataclass(frozen=True, kw_only=True, slots=True)
class MediaPart:
    """The place of a medium in a message; ``index`` counts into ``ChatSample.media``."""

    kind: MediaKind
    index: int


Part = TextPart | MediaPart


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """One turn. ``loss=False`` keeps an assistant turn out of the loss; None leaves it to the encoder."""

    role: Role
    parts: tuple[Part, ...]
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    reasoning: str | None = None
    loss: bool | None = None
    name: str | None = None  # of a tool whose result this is, or of a speaker
    tool_call_id: str | None = None

    @property
    def text(self) -> str:
        """The text parts, joined."""
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class AuxPlace:
    """Where a medium lies that is no part of its sample; only who opened the aux datasets can read it."""

    dataset: int
    position: int
    part: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Media:
    """One medium of a sample, still compressed, under the name it has in the sample.

    With ``aux`` it lies in another dataset, and ``data`` may be b"": the loader fetches it for samples whose batch is
    made. Then ``size`` says what a header would.
    """

    kind: MediaKind
    name: str
    data: bytes = field(repr=False)
    aux: AuxPlace | None = None
    size: tuple[int, int] | None = None  # (width, height) of an image as it is shown, where known without its bytes
    frames: tuple[Media, ...] = ()  # of a video that lies in the sample as images, in order; then ``data`` is b""
    fps: float | None = None  # of these frames


class MediaFinder(Protocol):
    """Other datasets that a sample may name media of; the loader puts one into ``raw["__aux__"]``."""

    def claims(self, name: str) -> bool:
        """Whether the name begins with the alias of a dataset, so that it means a medium there."""

    def find(self, name: str, kind: MediaKind) -> Media:
        """The medium called ``<alias>/<key>.<part>``; raises MediaError where there is none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatSample:
    """A conversation with its media: what every cooker returns."""

    key: str
    messages: tuple[Message, ...]
    media: tuple[Media, ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    source: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Frames:
    """The frames that are taken of a video. An index may stand twice where the model needs more than there are."""

    indices: tuple[int, ...]  # into all frames of the clip, in the order in which they are shown
    seconds: tuple[float, ...]  # when each is shown, the clip's first frame at 0
    fps: float  # frames per second of what was taken: their number over the clip's duration
    duration: float  # seconds of the whole clip


@dataclass(frozen=True, kw_only=True, slots=True)
class Sound:
    """What an audio file holds, before it is brought to the model's rate; ``num_samples`` are those of one channel."""

    rate: int  # samples per second
    num_samples: int

    @property
    def seconds(self) -> float:
        """How long it lasts."""
        return self.num_samples / self.rate


@dataclass(frozen=True, kw_only=True, slots=True)
class EncodedMedia:
    """A medium whose token count is known from its header; ``height`` and ``width`` are after EXIF rotation.

    Of a video these are its frames' size as they are shown, and ``frames`` says which of them are taken. Audio has
    neither side (0), but ``sound``.
    """

    media: Media
    height: int
    width: int
    num_tokens: int  # placeholder tokens that this medium owns in input_ids
    num_patches: int  # patches, or positions of an audio encoder: the unit of the media budget
    grid_thw: tuple[int, int, int] | None = None  # (t, h, w) in patches, for families that use grids
    frames: Frames | None = None  # of a video
    sound: Sound | None = None  # of audio


@dataclass(frozen=True, kw_only=True, slots=True)
class EncodedSample:
    """Tokens, mask, positions and length of one sample; media are still compressed."""

    key: str
    input_ids: Tensor  # [L] int64, media placeholders expanded
    loss_mask: Tensor  # [L] bool, True where the token itself is trained on (not shifted)
    position_ids: Tensor  # [A, L] int64, starts at 0
    token_tensors: Mapping[str, Tensor] = field(default_factory=dict)  # name → [L], e.g. mm_token_type_ids
    media: tuple[EncodedMedia, ...] = ()
    source: str = ""
    seed: int = 0  # of the run's seed, the epoch and the key, for ``rng.sample_generator``; the loader sets it
    epoch: int = 0  # in which it was drawn; the loader sets it
    dataset: str = ""  # the leaf of the blend that it was drawn from; the loader sets it
    offset: int | None = (
        None  # the byte of the shard where its first part stands, if an index tells; the loader sets it
    )

    @property
    def num_tokens(self) -> int:
        """L, media tokens included."""
        return int(self.input_ids.shape[0])

    @property
    def num_patches(self) -> int:
        """Vision patches of all media."""
        return sum(item.num_patches for item in self.media)


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One sample ready for a collate: its tokens, and its media as the model's tensors."""

    sample: EncodedSample
    media_tensors: Mapping[str, Tensor] = field(default_factory=dict)  # e.g. pixel_values [P, D], image_grid_thw [I, 3]


class Batch(TypedDict, total=False):
    """What a collate returns. A key that does not apply to a batch is absent; shapes are padded | packed."""

    input_ids: Tensor  # [B, S] | [1, T] int64
    labels: Tensor  # [B, S] | [1, T] int64, -100 where not supervised
    loss_mask: Tensor  # [B, S] | [1, T] float32, aligned with labels
    attention_mask: Tensor | None  # [B, S] int64, 1 = keep | None
    padding_mask: Tensor  # [B, S] | [1, T] bool, True = padding
    position_ids: Tensor  # [B, S] or [3, B, S] | [1, T] or [3, 1, T] int64, restarts per sample
    pack_segment_ids: Tensor  # [B, S] | [1, T] int64, 1..N, 0 = padding
    pixel_table: Tensor  # [C, 256] float32; with it pixel_values are bytes, see packloom.pixels.expand_pixels
    pixel_frames: int  # times a still image stands in each flattened patch; 0 where the shape stays
    pixel_table_videos: Tensor  # [C, 256] float32, and the frames: the same for pixel_values_videos
    pixel_frames_videos: int
    cu_seqlens_q: Tensor  # [N + 1] int32, logical boundaries; packed only
    cu_seqlens_kv: Tensor
    cu_seqlens_q_padded: Tensor  # [N + 1] int32, physical boundaries; only when a gap exists or asked for
    cu_seqlens_kv_padded: Tensor
    max_seqlen_q: int  # longest physical segment; packed only
    max_seqlen_kv: int
    source_sample_num: int
    num_input_tokens: int
    num_loss_tokens: int
    label_shift: LabelShift
    layout: Layout
    sample_keys: list[str]
    source_counts: dict[str, dict[str, int]]  # of a blend: leaf → samples, input_tokens, loss_tokens
    mm_token_type_ids: Tensor  # [B, S] | [1, T] int64
    pixel_values: Tensor  # [P, D] float32
    image_grid_thw: Tensor  # [I, 3] int64

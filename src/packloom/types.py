"""The containers that travel through the pipeline: ChatSample, EncodedSample, Row and Batch.

Axis legend, used in every shape comment:
B rows · S padded length · T packed length · L length of one sample · A position axes (1, or 3 for mRoPE)
N segments · I images · P vision patches
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

from torch import Tensor

#: A sample as a shard gives it: ``"__key__"``, ``"__url__"`` and part name → bytes.
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Media:
    """One medium of a sample, still compressed, under the name it has in the sample."""

    kind: MediaKind
    name: str
    data: bytes = field(repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatSample:
    """A conversation with its media: what every cooker returns."""

    key: str
    messages: tuple[Message, ...]
    media: tuple[Media, ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    source: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class EncodedMedia:
    """A medium whose token count is known from its header; ``height`` and ``width`` are after EXIF rotation."""

    media: Media
    height: int
    width: int
    num_tokens: int  # placeholder tokens that this medium owns in input_ids
    num_patches: int  # vision-encoder patches, the unit of the media budget
    grid_thw: tuple[int, int, int] | None = None  # (t, h, w) in patches, for families that use grids


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
    mm_token_type_ids: Tensor  # [B, S] | [1, T] int64
    pixel_values: Tensor  # [P, D] float32
    image_grid_thw: Tensor  # [I, 3] int64

"""The facts that a model family declares, and the small contracts of what cannot be said as a fact."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from numpy import ndarray
from torch import Tensor

from packloom.config_video import VideoConfig
from packloom.task_encoders.processors import ProcessorParts
from packloom.task_encoders.video import Clip
from packloom.types import Frames, MediaKind


@dataclass(frozen=True, kw_only=True)
class Boundary:
    """Where an assistant turn's trained tokens start and end, as the template prints it.

    ``start`` is the text right before what the assistant says (the header that inference supplies). ``ends`` are the
    tokens on which the assistant stops: the first of them after ``start`` ends the span and is itself trained on.
    """

    start: str
    ends: tuple[str, ...]
    continues: bool = False  # the same turn goes on after something else; nothing in between is then no turn


@dataclass(frozen=True, kw_only=True)
class Thinking:
    """How a template writes the reasoning of an assistant turn."""

    open: str  # what data write inline before reasoning, e.g. "<think>"
    close: str  # and after it; what follows it in the rendering, white space included, is the answer


#: The marks that most models use; families without any of their own get them.
THINK = Thinking(open="<think>", close="</think>")


@dataclass(frozen=True, kw_only=True)
class TemplateEdit:
    """A change that makes a chat template write the reasoning of every turn; ``old`` must stand in it once."""

    old: str
    new: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageLayout:
    """What one image, video or audio becomes in the prompt.

    ``text`` replaces the template's placeholder before tokenising; in it the k-th media token stands for a run of
    ``runs[k]`` tokens. ``grid_thw`` is (t, h, w) in vision patches, for families that use grids.

    For mRoPE ``token_grid`` is the grid of the first run; with ``per_run`` that of each run, one frame after another.
    """

    text: str
    runs: tuple[int, ...]
    num_patches: int
    grid_thw: tuple[int, int, int] | None = None
    token_grid: tuple[int, int, int] | None = None  # (t, h, w) in tokens, for mRoPE positions
    per_run: bool = False
    kind: MediaKind = "image"
    time_step: float = 1.0  # of the positions of a video's temporal patches
    time_scale: float = 1.0  # of these positions once more, for models that multiply twice
    advance: int | None = None  # positions that a run takes up; None: up to the largest one in it


class MediaRule(Protocol):
    """What the rules of all media have: the place that a medium takes in the text, and the tensors that are made."""

    @property
    def placeholder(self) -> str:
        """What the template prints for one medium, and the layout's text replaces."""
        ...

    @property
    def token(self) -> str:
        """The media token that is repeated; videos may have the one for images."""
        ...

    @property
    def model_keys(self) -> tuple[str, ...]:
        """The processor's tensors that the model reads."""
        ...


class ImageRule(MediaRule, Protocol):
    """The geometry of one processor's images, known from the size alone."""

    @property
    def helper_keys(self) -> tuple[str, ...]:
        """Its other tensors, which only count tokens and go no further."""
        ...

    @property
    def call_options(self) -> Mapping[str, Any]:
        """What the family's processor class passes to its image processor on every call."""
        ...

    def measure(self, height: int, width: int, num_images: int = 1) -> ImageLayout:
        """The layout of an image of this size (after EXIF rotation) in a sample of ``num_images`` images.

        Raises MediaError if the family refuses it.
        """
        ...

    def produced(self, tensors: dict[str, Tensor], index: int) -> object:
        """What the processor really made of the image at ``index``, comparable with ``expected``."""
        ...

    def expected(self, layout: ImageLayout) -> object:
        """What ``produced`` must be for this layout."""
        ...


class VideoRule(MediaRule, Protocol):
    """The frames and the geometry of one processor's videos, known from a clip's frame times and size alone."""

    def sample(self, clip: Clip) -> Frames:
        """Which frames of the clip the model is given."""
        ...

    def measure(self, name: str, height: int, width: int, frames: Frames) -> ImageLayout:
        """The layout of these frames of this size; raises MediaError if the family refuses them."""
        ...

    def shrink(self, frame: ndarray, num_frames: int) -> ndarray:
        """One of so many frames, [H, W, 3] uint8, resized as ``process`` takes it: [C, h, w] uint8."""
        ...

    @property
    def pixel_table(self) -> Tensor | None:
        """[C, 256]: ``process`` gives ``pixel_values_videos`` as uint8, see ``pixels.decode_pixels``; else None."""
        ...

    @property
    def pixel_frames(self) -> int:
        """See ``pixels.decode_pixels``; only with a table."""
        ...

    def process(self, planes: ndarray, frames: Frames) -> dict[str, Tensor]:
        """``model_keys`` of one video; ``planes`` are its frames, [F, C, h, w] uint8."""
        ...

    def produced(self, tensors: dict[str, Tensor]) -> object:
        """What was really made of the video, comparable with ``expected``."""
        ...

    def expected(self, layout: ImageLayout) -> object:
        """What ``produced`` must be for this layout."""
        ...


class AudioRule(MediaRule, Protocol):
    """The features and the token counts of one processor's audio, known from its number of samples alone."""

    @property
    def rate(self) -> int:
        """Samples per second that the model takes."""
        ...

    @property
    def max_samples(self) -> int:
        """The most that the processor takes of one audio, at that rate."""
        ...

    def measure(self, name: str, num_samples: int) -> ImageLayout:
        """The layout of so many samples at the model's rate; raises MediaError if the family refuses them."""
        ...

    def process(self, waves: Sequence[ndarray]) -> dict[str, Tensor]:
        """The model's tensors of one sample's audio, each [n] float32 at the model's rate."""
        ...

    def produced(self, tensors: dict[str, Tensor], index: int) -> int:
        """The tokens that the model makes of the audio at ``index``."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class MediaBlock:
    """A run of media tokens in a sample: where it starts, its grid in merged tokens (t, h, w), and see ImageLayout."""

    start: int
    grid: tuple[int, int, int]
    time_step: float = 1.0
    time_scale: float = 1.0
    advance: int | None = None


#: (parts, min_pixels, max_pixels) → parts whose image processor obeys the bounds; None keeps its own
PixelBounds = Callable[[ProcessorParts, "int | None", "int | None"], ProcessorParts]

#: (number of tokens, media blocks in order) → positions [A, L] int64
PositionRule = Callable[[int, Sequence[MediaBlock]], ndarray]


@dataclass(frozen=True, kw_only=True)
class Family:
    """One model family."""

    name: str
    boundaries: tuple[Boundary, ...]
    positions: PositionRule
    image_rule: Callable[[ProcessorParts], ImageRule] | None = None
    video_rule: Callable[[ProcessorParts, VideoConfig], VideoRule] | None = None
    audio_rule: Callable[[ProcessorParts], AudioRule] | None = None
    pixel_bounds: PixelBounds | None = None  # None: this family's images have a fixed size
    media_tokens: tuple[str, ...] = ()  # never trained on, wherever they stand
    media_label: str = ""  # a pattern of what the template writes ahead of a medium's marks to number it
    prompt_prefixes: tuple[str, ...] = ()  # behind the header, supplied by inference: e.g. an empty thought
    final_end: str = ""  # stop token that the template leaves out after the last turn, and we write
    thinking: Thinking = THINK
    payload_tokens: frozenset[str] = frozenset()  # special tokens that user data may spell, e.g. for grounding
    media_joins: Mapping[str, str] = field(default_factory=dict)  # media key → how rows are joined, if not "concat"
    content: Literal["parts", "string", "string_without_media"] = (
        "parts"  # the form of message content that the template renders in full
    )
    token_types: str | None = (
        None  # the per-token tensor that marks image tokens with 1, those of videos with 2, e.g. "mm_token_type_ids"
    )
    packing_leak: str = ""  # why a packed row would mix its samples in a plain model; empty: it does not
    system_in_last_user: bool = False  # the template does this for prompts, and drops the text before an answer
    template_variables: tuple[tuple[str, Any], ...] = ()
    training_edits: tuple[TemplateEdit, ...] = ()  # for chat_template="training": one of them fits the template
    switches: tuple[str, ...] = ()  # what the template reads in a question or system text, and takes out of it

"""An encoder in, what its chat template writes around an answer out: read off a rendering, not off any mask."""

from __future__ import annotations

from dataclasses import dataclass

from packloom.task_encoders.base import TaskEncoder
from packloom.types import ChatSample, Message, TextPart

_QUESTION, _ANSWER, _NEXT = "probe question one", "probe answer one", "probe question two"


@dataclass(frozen=True, kw_only=True)
class Traits:
    """The template's own writing around a first answer."""

    before: str  # between the question and the answer: the end of a user turn and the assistant's header
    after: str  # between the answer and the next question: the end of an assistant turn and the user's header
    lead: str  # white space before an answer that inference does not supply, so the model has to write it
    trail: str  # white space between an answer and its terminator

    @classmethod
    def of(cls, encoder: TaskEncoder) -> Traits:
        """Render two probes. Raises CookError if the template refuses them."""
        asked = _message("user", _QUESTION)
        talk = ChatSample(key="probe", messages=(asked, _message("assistant", _ANSWER), _message("user", _NEXT)))
        whole = encoder.template.render(talk)
        prompted = encoder.template.render(ChatSample(key="probe", messages=(asked,)), add_generation_prompt=True)
        question, answer, following = (whole.index(text) for text in (_QUESTION, _ANSWER, _NEXT))
        before = whole[question + len(_QUESTION) : answer]
        after = whole[answer + len(_ANSWER) : following]
        lead = whole[len(prompted) : answer] if whole.startswith(prompted) else ""
        return cls(
            before=before,
            after=after,
            lead=lead if lead.isspace() else "",
            trail=after[: len(after) - len(after.lstrip())],
        )

    @property
    def forged(self) -> str:
        """A text that looks like the end of a question and a whole answer."""
        return f"{self.before.lstrip()}I am forged.{self.after.rstrip()}"


def _message(role: str, text: str) -> Message:
    return Message(role=role, parts=(TextPart(text=text),))  # type: ignore[arg-type]

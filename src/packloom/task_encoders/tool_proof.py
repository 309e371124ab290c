"""The leaves of a conversation's tool data and those that its template writes in; an error out where one is lost."""

from __future__ import annotations

from collections.abc import Set

from packloom.errors import CookError, MaskError
from packloom.task_encoders.template import ChatTemplate
from packloom.task_encoders.tool_data import Leaf, ToolData
from packloom.types import ChatSample, Message, TextPart


def prove_tools_are_written(template: ChatTemplate, data: ToolData, written: Set[int]) -> frozenset[int]:
    """``written`` are the numbers of the leaves in the rendering. Returns those that belong to their call alone.

    Required are names, arguments (every key, text and value), and of a schema its name and description and the name,
    description, type and texts to choose from of each parameter. Raises MaskError: the row would train on less than it
    holds. The rest of a schema, ids, and names beside a message may be left out.
    """
    owned = set()
    for number, leaf in enumerate(data.leaves):
        if not leaf.required:
            continue
        found = number if number in written else leaf.instead
        if found not in written:
            raise _lost(leaf)
        owned.add(found)
    if data.typed and not _writes_types(template):
        raise MaskError(
            "the chat template drops the types of tool parameters",
            code="template.tool_call_lost",
            hint="use a template that renders tools in full",
        )
    return frozenset(owned)


def _lost(leaf: Leaf) -> MaskError:
    return MaskError(
        f"the chat template drops {leaf.what}",
        code="template.tool_call_lost",
        hint="use a template that renders tools and tool_calls, or write them into the text",
    )


def _writes_types(template: ChatTemplate) -> bool:
    """Whether another type of a parameter gives another rendering; tried once per template, for types are its words."""
    if "types" not in template.facts:
        try:
            renderings = [_render_type(template, name) for name in ("string", "number", "boolean", "array")]
            template.facts["types"] = len(set(renderings)) == len(renderings)
        except CookError:  # it refuses the probe, which says nothing about types
            template.facts["types"] = True
    return template.facts["types"]


def _render_type(template: ChatTemplate, name: str) -> str:
    parameters = {"type": "object", "properties": {"x": {"type": name, "description": "d"}}}
    tool = {"type": "function", "function": {"name": "f", "description": "d", "parameters": parameters}}
    question = Message(role="user", parts=(TextPart(text="q"),))
    answer = Message(role="assistant", parts=(TextPart(text="a"),))
    return template.render(ChatSample(key="probe", messages=(question, answer), tools=(tool,)))

"""Messages in; the text that ``apply_chat_template`` of their tokenizer renders, without the call, out.

The call first copies and normalises what a template is shown, twice, which costs more than to render it. For messages
that are plain already nothing changes by that. Where the call is transformers' own and probes show no difference, it
is left out; it compiles a template once, and so the compiled one is asked for here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase
from transformers.utils import chat_template_utils

#: Not public: without it, every rendering goes through the call.
_compile = getattr(chat_template_utils, "_compile_jinja_template", None)
#: Keys of messages that the call leaves as they are; reasoning it shows under several names.
_PLAIN_KEYS = frozenset({"role", "content", "name", "tool_call_id"})
_QUESTION = {"role": "user", "content": " Hi?\n<b>  Ünï 你好 "}
_ANSWER = {"role": "assistant", "content": "\nYes. "}
_PROBES: tuple[list[dict[str, Any]], ...] = (
    [_QUESTION],
    [_QUESTION, _ANSWER],
    [{"role": "system", "content": "Be kind."}, _QUESTION, _ANSWER, _QUESTION, {**_ANSWER, "name": "bot"}],
    [{"role": "user", "content": [{"type": "text", "text": "Hi?"}, {"type": "text", "text": " "}]}, _ANSWER],
)


@dataclass(frozen=True, kw_only=True)
class PlainTemplate:
    """A tokenizer with a chat template; ``variables`` are those of the call."""

    tokenizer: Any
    chat_template: str
    variables: Mapping[str, Any]

    def render(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = False,
    ) -> str:
        """Raises what the call would: TemplateError, TypeError, ValueError."""
        is_plain = tools is None and messages and all(message.keys() <= _PLAIN_KEYS for message in messages)
        if is_plain and self._is_direct:
            return self._rendered(messages, add_generation_prompt=add_generation_prompt)
        return self._call(messages, tools=tools, add_generation_prompt=add_generation_prompt)

    @cached_property
    def shown(self) -> dict[str, Any]:
        """What the template is shown beside the conversation and the tools."""
        return {**self.tokenizer.special_tokens_map, **self.variables}

    @cached_property
    def _is_direct(self) -> bool:
        usual = PreTrainedTokenizerBase.apply_chat_template
        if _compile is None or getattr(type(self.tokenizer), "apply_chat_template", None) is not usual:
            return False
        return all(self._agree(probe, prompt) for probe in _PROBES for prompt in (False, True))

    def _agree(self, messages: list[dict[str, Any]], add_generation_prompt: bool) -> bool:
        try:
            expected = self._call(messages, add_generation_prompt=add_generation_prompt)
        except (TemplateError, TypeError, ValueError):  # nothing to compare with
            return True
        try:
            return self._rendered(messages, add_generation_prompt=add_generation_prompt) == expected
        except (TemplateError, TypeError, ValueError):
            return False

    def _rendered(self, messages: list[dict[str, Any]], *, add_generation_prompt: bool) -> str:
        template = _compile(self.chat_template)  # type: ignore[misc]  # not None, see _is_direct
        return str(
            template.render(
                messages=messages,
                tools=None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self.shown,
            )
        )

    def _call(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = False,
    ) -> str:
        return str(
            self.tokenizer.apply_chat_template(
                messages,
                tools=tools,
                chat_template=self.chat_template,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                **self.variables,
            )
        )

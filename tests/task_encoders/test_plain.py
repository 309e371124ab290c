"""PlainTokenizer: what a call of the tokenizer gives, with and without the call."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BatchEncoding, PreTrainedTokenizerFast

from packloom.task_encoders.plain import PlainTokenizer

VOCABULARY = {"[U]": 0, "<s>": 1, "</s>": 2, "a": 3, "b": 4, "<mark>": 5}


def backend() -> Tokenizer:
    made = Tokenizer(models.WordLevel(VOCABULARY, unk_token="[U]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    return made


class Shouting(PreTrainedTokenizerFast):
    """Its own call is more than its backend's."""

    def __call__(self, text: str, *args: Any, **options: Any) -> BatchEncoding:
        return super().__call__(f"{text} b", *args, **options)


class Deep(PreTrainedTokenizerFast):
    """The same further down."""

    def _encode_plus(self, text: str, *args: Any, **options: Any) -> BatchEncoding:
        return super()._encode_plus(text.replace("mark", "a"), *args, **options)


def plain(kind: type[PreTrainedTokenizerFast] = PreTrainedTokenizerFast) -> PlainTokenizer:
    return PlainTokenizer(kind(tokenizer_object=backend(), bos_token="<s>", eos_token="</s>", unk_token="[U]"))


def ids(tokenizer: PlainTokenizer, text: str) -> list[int]:
    made, encoding = tokenizer.encode([text], [text])
    assert len(encoding) == len(made)
    return list(made)


def test_the_first_token_is_added_unless_it_is_written() -> None:
    tokenizer = plain()
    assert ids(tokenizer, "a b") == [1, 3, 4, 2]
    assert ids(tokenizer, "<s> a b") == [1, 3, 4]


def test_no_call_is_made_where_it_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = plain()
    assert ids(tokenizer, "a") == [1, 3, 2]
    monkeypatch.setattr(PreTrainedTokenizerFast, "_encode_plus", None)
    assert ids(tokenizer, "b a") == [1, 4, 3, 2]


@pytest.mark.parametrize("options", [{"padding": "max_length", "max_length": 9}, {"truncation": True, "max_length": 3}])
def test_options_that_others_left_in_the_tokenizer_are_undone(options: dict[str, Any]) -> None:
    tokenizer = plain()
    tokenizer.tokenizer.pad_token = "[U]"
    ids(tokenizer, "a")
    tokenizer.tokenizer(["a b a b"], **options)
    assert ids(tokenizer, "a b a b") == [1, 3, 4, 3, 4, 2]


def test_special_tokens_that_others_have_split_are_whole_again() -> None:
    tokenizer = plain()
    tokenizer.tokenizer.add_special_tokens({"additional_special_tokens": ["<mark>"]})
    assert ids(tokenizer, "a<mark>") == [1, 3, 5, 2]
    tokenizer.tokenizer("a", split_special_tokens=True)
    assert ids(tokenizer, "a<mark>") == [1, 3, 5, 2]


def test_a_class_with_a_call_of_its_own_is_called() -> None:
    assert ids(plain(Shouting), "a") == [1, 3, 4, 2]
    assert ids(plain(Deep), "mark") == [1, 3, 2]

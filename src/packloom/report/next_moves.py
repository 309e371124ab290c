"""The code of a fault goes in; what to do about it, where the fault itself does not say, comes out."""

from __future__ import annotations

#: By code, else by its part before the dot.
_MOVES = {
    "shard.index": "index the folder again: packloom index FOLDER",
    "shard.unusable": "write the shard again, or take it out of the folder",
    "read.open": "see to it that the shard is there and may be read, or take it out of the list",
    "read": "write the shard again from its source, or train without these samples: the loader skips them",
    "cook.schema": "pass a cooker that reads this layout, or convert the data: packloom convert",
    "cook.json": "write the json part again as UTF-8 JSON",
    "cook": "mend the rows where they come from, or pass a cooker that reads this layout",
    "mask.empty": "give each sample an assistant turn to train on, or leave it out",
    "mask": "see docs/masking.md; packloom masks PROCESSOR shows what the processor's template does",
    "media.unreadable": "replace the image, or leave the sample out",
    "media": "replace the file, or leave the sample out",
    "budget": "raise the limit, lower max_pixels, or set overlong='truncate'",
    "template": "see docs/masking.md; packloom masks PROCESSOR shows what the processor's template does",
    "thinking": "mend the marks of the reasoning, or put it into reasoning_content",
    "pack": "raise the pack length, or set overlong='truncate'",
}
_ELSE = "mend the samples where they come from, or train without them: the loader skips them"


def next_move(code: str) -> str:
    """What to do about faults of this kind."""
    return _MOVES.get(code) or _MOVES.get(code.partition(".")[0]) or _ELSE

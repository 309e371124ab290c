"""The example of docs/audio.md prints what it says, and its tables name what there is."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from packloom.config_audio import AudioConfig
from packloom.task_encoders.whisper_audios import audio_tokens

pytest.importorskip("av", reason="PyAV is not installed: reads audio")
DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "audio.md"


def test_the_document(audio_processor_dir: Any, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    text = DOCUMENT.read_text(encoding="utf-8")
    [block] = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    exec(compile(block, str(DOCUMENT), "exec"), {"folder": str(audio_processor_dir("qwen2_audio"))})  # noqa: S102 - ours
    [expected] = re.findall(r"^    # (torch.*)$", block, re.MULTILINE)
    assert capsys.readouterr().out.splitlines() == [expected]
    for field in dataclasses.fields(AudioConfig):
        assert re.search(rf'^\| `{field.name}` \| .* \| `"{field.default}"` \|$', text, re.MULTILINE)
    [formula] = re.findall(r"become (\(\(f .*?) tokens", text)
    for frames in range(3, 3001):
        assert eval(formula.replace("−", "-"), {"f": frames}) == audio_tokens(frames)

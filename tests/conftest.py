"""What every test shares: an offline, one-threaded session, torchvision where it can be had, and the shared material.

``../shared`` beside the repository holds real processors and cases; tests that need it skip where it is absent.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import json
import os
import sys
import wave
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

REPOSITORY = Path(__file__).resolve().parent.parent
SHARED = REPOSITORY.parent / "shared"


def _repair_torchvision() -> None:
    """Where torchvision is installed but its plain import fails, import it through tests/support."""
    if importlib.util.find_spec("torchvision") is None:
        return
    try:
        importlib.import_module("torchvision")
    except (ImportError, RuntimeError):
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        support = str(Path(__file__).resolve().parent / "support")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [support, os.environ.get("PYTHONPATH")]))
        spec = importlib.util.spec_from_file_location("packloom_tests_support", f"{support}/sitecustomize.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[spec.name] = module
        importlib.import_module("torchvision")


_repair_torchvision()  # before any test imports transformers
torch.set_num_threads(1)  # tiny models gain nothing from more, and on a busy machine threads wait for each other


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder of shared test material beside the repository."""
    if not SHARED.is_dir():
        pytest.skip("needs ../shared (real processors and cases) beside the repository")
    return SHARED


@pytest.fixture(scope="session")
def processor_dir(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """``processor_dir("qwen2_5_vl")``: a folder that holds that family's real processor."""
    target = tmp_path_factory.mktemp("processors")

    def unpacked(family: str) -> Path:
        script = SHARED / "processors" / "materialize.py"
        if not (script.parent / family).is_dir():
            pytest.skip(f"needs ../shared/processors/{family} beside the repository")
        spec = importlib.util.spec_from_file_location("materialize", script)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return Path(module.materialize(family, target))

    return unpacked


#: Marks of Qwen2.5-VL's tokenizer → what the families that hear call the tokens of the same ids.
_HEARING = {
    "<|object_ref_start|>": "<|AUDIO|>",
    "<|object_ref_end|>": "<|audio_bos|>",
    "<|box_start|>": "<|audio_eos|>",
    "<|vision_start|>": "<|vision_bos|>",
    "<|vision_end|>": "<|vision_eos|>",
    "<|image_pad|>": "<|IMAGE|>",
    "<|video_pad|>": "<|VIDEO|>",
}
_OMNI_TEMPLATE = """{% for m in messages %}{% if loop.first and m.role != 'system' %}<|im_start|>system
You are a helpful assistant.<|im_end|>
{% endif %}<|im_start|>{{ m.role }}
{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content -%}
{% if part.type == 'audio' %}<|audio_bos|><|AUDIO|><|audio_eos|>{% elif part.type == 'image' -%}
<|vision_bos|><|IMAGE|><|vision_eos|>{% elif part.type == 'video' %}<|vision_bos|><|VIDEO|><|vision_eos|>{% else -%}
{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


@pytest.fixture(scope="session")
def audio_processor_dir(
    processor_dir: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """``audio_processor_dir("qwen2_audio")``, or ``"qwen2_5_omni"``: a folder with that family's processor.

    It is made of the classes of transformers, with the settings that the published ones have.
    """
    made: dict[str, Path] = {}

    def make(family: str) -> Path:
        if family not in made:
            made[family] = _hearing_folder(family, processor_dir("qwen2_5_vl"), tmp_path_factory.mktemp(family))
        return made[family]

    return make


def _hearing_folder(family: str, seeing: Path, target: Path) -> Path:
    from transformers import AutoTokenizer, Qwen2AudioProcessor, WhisperFeatureExtractor  # noqa: PLC0415

    text = (seeing / "tokenizer.json").read_text(encoding="utf-8")
    for old, new in _HEARING.items():
        text = text.replace(json.dumps(old), json.dumps(new))
    (target / "tokenizer.json").write_text(text, encoding="utf-8")
    settings = json.loads((seeing / "tokenizer_config.json").read_text(encoding="utf-8"))
    is_omni = family == "qwen2_5_omni"
    names = {name.strip("<|>").lower() + "_token": name for name in _HEARING.values()}
    settings |= {"extra_special_tokens": names} if is_omni else {}
    (target / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    extractor = WhisperFeatureExtractor(feature_size=128, chunk_length=300 if is_omni else 30)
    extractor.return_attention_mask = True
    if not is_omni:
        tokenizer = AutoTokenizer.from_pretrained(target, local_files_only=True)
        Qwen2AudioProcessor(feature_extractor=extractor, tokenizer=tokenizer).save_pretrained(target)
        (target / "config.json").write_text('{"model_type": "qwen2_audio"}', encoding="utf-8")
        return target
    processor = json.loads((seeing / "processor_config.json").read_text(encoding="utf-8"))
    processor |= {"processor_class": "Qwen2_5OmniProcessor", "feature_extractor": extractor.to_dict()}
    (target / "processor_config.json").write_text(json.dumps(processor), encoding="utf-8")
    (target / "chat_template.jinja").write_text(_OMNI_TEMPLATE, encoding="utf-8")
    (target / "config.json").write_text('{"model_type": "qwen2_5_omni"}', encoding="utf-8")
    return target


@pytest.fixture(scope="session")
def sound() -> Callable[..., bytes]:
    """``sound(1.5)``: a wav of so many seconds of a tone with noise; ``num_samples`` says it exactly."""

    def make(
        seconds: float = 1.0, *, num_samples: int | None = None, rate: int = 16_000, channels: int = 1, seed: int = 0
    ) -> bytes:
        count = round(seconds * rate) if num_samples is None else num_samples
        noise = np.random.default_rng(seed).normal(0, 500, (count, channels))
        tone = 8000 * np.sin(2 * np.pi * 440 * np.arange(count) / rate)[:, None]
        buffer = io.BytesIO()
        with wave.open(buffer, "wb") as file:
            file.setnchannels(channels)
            file.setsampwidth(2)
            file.setframerate(rate)
            file.writeframes((tone + noise).astype("<i2").tobytes())
        return buffer.getvalue()

    return make


@pytest.fixture(scope="session")
def wave_of() -> Callable[[bytes], np.ndarray]:
    """``wave_of(sound())``: the samples of a 16-bit mono wav, [n] float32."""
    return lambda data: np.frombuffer(data[44:], dtype="<i2").astype(np.float32) / 32768


@pytest.fixture(scope="session")
def media_row() -> Callable[..., dict[str, Any]]:
    """``media_row("image", {"0.png": data}, verb="Look", answer="A cat.", key="k")``: a raw row with two answers."""

    def make(kind: str, files: Mapping[str, bytes], *, verb: str, answer: str, key: str) -> dict[str, Any]:
        first: list[dict[str, Any]] = [{"type": "text", "text": f"{verb}: "}]
        for index, name in enumerate(files):
            first += [{"type": kind, kind: name}, {"type": "text", "text": f" number {index}, "}]
        messages = [
            {"role": "user", "content": [*first, {"type": "text", "text": "what is it?"}]},
            {"role": "assistant", "content": [{"type": "text", "text": answer}]},
            {"role": "user", "content": [{"type": "text", "text": "Sure?"}]},
            {"role": "assistant", "content": [{"type": "text", "text": "Yes 🙂."}]},
        ]
        return {"__key__": key, "json": {"messages": messages}, **files}

    return make


@pytest.fixture(scope="session")
def audio_row(media_row: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """``audio_row(sound(1), ...)``: a raw row with these audios between words, and two answers."""

    def make(*audios: bytes, kind: str = "wav", key: str = "row") -> dict[str, Any]:
        files = {f"{index}.{kind}": data for index, data in enumerate(audios)}
        return media_row("audio", files, verb="Listen", answer="A bell.", key=key)

    return make


@pytest.fixture(scope="session")
def cases(shared_dir: Path) -> list[dict[str, Any]]:
    """The rows of conversations.jsonl, each with the outcome that it must have."""
    lines = (shared_dir / "cases" / "conversations.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture
def needs_torchvision() -> None:
    """For a test that compares with torchvision's image backend."""
    pytest.importorskip("torchvision", reason="torchvision is not installed: compares with its image backend")


@pytest.fixture(scope="session", autouse=True)
def _tokenizers_are_read_once() -> Iterator[None]:
    """A large tokenizer takes seconds to read: tests share those of unchanged folders.

    One that a test changes is its own: ``from_pretrained(folder, local_files_only=True)``.
    """
    from transformers import AutoTokenizer  # noqa: PLC0415 - after torchvision is repaired

    read, known = AutoTokenizer.from_pretrained, {}

    def load(name: str | Path, **settings: Any) -> Any:
        files = sorted(Path(name).rglob("*")) if Path(name).is_dir() else []
        if settings or not files:
            return read(name, **settings)
        key = tuple((str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in files)
        if key not in known:
            known[key] = read(name)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AutoTokenizer, "from_pretrained", load)
        yield

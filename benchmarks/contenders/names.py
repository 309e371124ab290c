"""The contenders' names go in, where their code is comes out; importing this loads none of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Home:
    """A function of a module; ``is_packed`` says that its batches are packs of PACK_LENGTH."""

    module: str
    function: str
    is_packed: bool = False
    cycle: int = 1  # samples that it makes at a time before it gives any away


CONTENDERS = {
    "packloom, torchvision's pixels": Home("ours", "packloom_torch", is_packed=True),
    "packloom, Pillow's pixels": Home("ours", "packloom_pillow", is_packed=True),
    "floor with torch's resize": Home("floors", "torch_floor"),
    "floor with Pillow's resize": Home("floors", "pillow_floor"),
    "HF collate, torchvision": Home("collates", "hf_torchvision"),
    "HF collate, Pillow": Home("collates", "hf_pillow"),
    "Energon with HF encoder, packing": Home("energon", "energon_packing", is_packed=True, cycle=64),
    "HF template's assistant mask": Home("collates", "template_mask"),
    "HF collate, repacked": Home("collates", "repacked"),
}

#: Of benchmarks/video.py, packloom first.
VIDEO_CONTENDERS = {
    "packloom": Home("video", "packloom_video", is_packed=True),
    "HF collate with the HF video processor": Home("video", "hf_video"),
    "floor, decoding only": Home("video", "decode_floor"),
}

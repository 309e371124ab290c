"""The one place that knows every stage: shards and an encoder go in, an iterable of training batches comes out."""

from packloom.loader.build import build_loader
from packloom.loader.loader import Loader
from packloom.loader.settings import LoaderSettings
from packloom.loader.stages import Encoder
from packloom.loader.state import LoaderState, merge_states
from packloom.loader.state_files import load_state_dir, save_state_dir

__all__ = [
    "Encoder",
    "Loader",
    "LoaderSettings",
    "LoaderState",
    "build_loader",
    "load_state_dir",
    "merge_states",
    "save_state_dir",
]

"""The one place that knows every stage: shards and an encoder go in, an iterable of training batches comes out."""

from packloom.loader.build import build_loader
from packloom.loader.loader import Loader
from packloom.loader.plan_make import PlanReport, make_plan
from packloom.loader.settings import LoaderSettings
from packloom.loader.stages import Encoder
from packloom.loader.state import LoaderState, merge_states
from packloom.loader.state_files import load_state_dir, save_state_dir
from packloom.loader.torch_dataset import LoaderDataset
from packloom.loader.validation import Validation, build_validation

__all__ = [
    "Encoder",
    "Loader",
    "LoaderDataset",
    "LoaderSettings",
    "LoaderState",
    "PlanReport",
    "Validation",
    "build_loader",
    "build_validation",
    "load_state_dir",
    "make_plan",
    "merge_states",
    "save_state_dir",
]

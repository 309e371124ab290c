"""The one place that knows every stage: shards and an encoder go in, an iterable of training batches comes out."""

from packloom.loader.build import LoaderSettings, build_loader
from packloom.loader.loader import Loader
from packloom.loader.pipeline import Encoder

__all__ = ["Encoder", "Loader", "LoaderSettings", "build_loader"]

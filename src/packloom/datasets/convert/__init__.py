"""Tables, lists, folders and shards of any kind into shards with index and manifest."""

from packloom.datasets.convert.ray_runner import RayProcesses
from packloom.datasets.convert.run import ConvertReport, RunSettings, convert
from packloom.datasets.convert.settings import ConvertConfig, read_config

__all__ = ["ConvertConfig", "ConvertReport", "RayProcesses", "RunSettings", "convert", "read_config"]

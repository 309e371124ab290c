"""Named datasets and an encoder go in; for each name comes out what gives the same finite pass at every evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from typing_extensions import Unpack

from packloom.blend import Blend, Leaf
from packloom.config import SourceConfig
from packloom.datasets.blend_yaml import expand_blend, inherited_part, is_blend_file, load_blend
from packloom.errors import ConfigError
from packloom.loader.build import Source, base_config, build_loader, override
from packloom.loader.loader import Loader
from packloom.loader.settings import LoaderSettings
from packloom.loader.stages import Encoder
from packloom.packing import PackerFactory, PackFunction
from packloom.types import Batch

#: The split part that is read where datasets or files know split parts and none is named.
VALIDATION_PART = "val"
_FIXED = ("shuffle", "epochs", "tail", "plan")


class Validation:
    """One validation set. ``iter`` begins the pass anew, whatever became of the last one; a pass has always the same
    batches in the same order, and as many on every rank."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader  # whose metrics and skip records count through all passes
        self._start = loader.state_dict()

    def __iter__(self) -> Iterator[Batch]:
        """Raises what ``Loader.__iter__`` raises."""
        self.loader.load_state_dict(self._start)
        return iter(self.loader)


def build_validation(
    sets: Mapping[str, Source],
    encoder: Encoder,
    *,
    packer: PackFunction | PackerFactory | None = None,
    device_mesh: Any | None = None,
    dp_dims: Sequence[str] = ("dp",),
    process_group: Any | None = None,
    **settings: Unpack[LoaderSettings],
) -> dict[str, Validation]:
    """A ``Validation`` per name, over what ``build_loader`` reads; the keywords are those of ``build_loader``.

    Nothing is shuffled or repeated: of a blend every leaf comes once, one behind the other, whatever its weight. Padded
    batches hold the samples in the order of the datasets. Where the last batches lack rows, or ranks lack batches,
    rows that train nothing make them up: weigh losses by ``num_loss_tokens``. Of folders that Energon prepared, and of
    YAML files with ``splits``, the part ``val`` is read unless ``split_part`` names another.

    Raises ConfigError if ``settings`` ask for anything else, ShardError for shards without an index.
    """
    stated = [name for name in _FIXED if name in settings]
    if stated:
        raise ConfigError(f"a validation pass is finite and ordered, so it has no {', '.join(stated)}: leave it out")
    found = {}
    for name, source in sets.items():
        config = override(base_config(source), dict(settings))
        fixed = SourceConfig(blend=_concat(config.source), seed=config.source.seed, shuffle=False, epochs=1)
        config = replace(config, source=fixed, loader=replace(config.loader, tail="pad"))
        loader = build_loader(
            config, encoder, packer=packer, device_mesh=device_mesh, dp_dims=dp_dims, process_group=process_group
        )
        found[name] = Validation(loader)
    return found


def _concat(source: SourceConfig) -> Blend:
    part = source.split_part or VALIDATION_PART
    node: Leaf | Blend
    if source.blend is not None:
        node = expand_blend(source.blend, split_part=part)
    elif is_blend_file(source.path):
        node = load_blend(str(source.path), split_part=part)
    else:
        path = source.path
        node = Leaf(path=path, split_part=source.split_part, index_dir=source.index_dir, aux=source.aux)
    once = _once(node, part)
    return once if isinstance(once, Blend) else Blend(kind="concat", of=(once,))


def _once(node: Leaf | Blend, part: str) -> Leaf | Blend:
    """The node with every leaf once."""
    if isinstance(node, Blend):
        children = tuple(_once(child, part) for child in node.of)
        return Blend(kind="concat", of=children, subset=node.subset, subflavors=node.subflavors)
    split_part = node.split_part or inherited_part(node.path, part)
    return replace(node, weight=None, repetitions=None, split_part=split_part)

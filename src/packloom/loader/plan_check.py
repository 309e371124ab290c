"""A loader's settings, feed and encoder go in; the plan that it names comes out, if it was made for them."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from packloom.config import DataConfig
from packloom.datasets.aux_media import AuxLibrary
from packloom.datasets.policy import ErrorPolicy
from packloom.errors import ConfigError, PlanError
from packloom.loader.feed import LaneFeed
from packloom.loader.fingerprint import encoder_fingerprint
from packloom.loader.plan_feed import PlanFeed
from packloom.loader.plan_file import open_plan_file
from packloom.loader.stages import Encoder, Stages

logger = logging.getLogger(__name__)


def open_plan(
    config: DataConfig, feed: LaneFeed | None, encoder: Encoder, library: AuxLibrary, *, has_packer: bool
) -> PlanFeed:
    """The feed of ``config.source.plan``.

    Raises ConfigError beside settings that a plan cannot obey, PlanError where it was made for another dataset,
    encoder or setting (it names both values), CapabilityError without pyarrow.
    """
    path = config.source.plan
    if path is None:
        raise ConfigError("there is no plan to open")
    wrong = {
        "layout='packed'": config.loader.layout != "packed",
        "shuffle=True": not config.source.shuffle,
        "no packer of your own": has_packer,
        "balance='off' (it is balanced itself)": config.packing.balance != "off",
        "an index (run `packloom index`)": feed is None,
    }
    if feed is None or any(wrong.values()):
        needs = ", ".join(name for name, is_wrong in wrong.items() if is_wrong)
        raise ConfigError(f"a plan fixes all packs and their order, so plan={path!r} needs {needs}")
    plan = open_plan_file(path)
    then, now = flat_facts(plan.header), flat_facts(facts_of(config, feed, encoder, library))
    differing = [name for name in dict.fromkeys([*then, *now]) if then.get(name) != now.get(name)]
    if differing:
        lines = "; ".join(f"{name} is {now.get(name)!r}, the plan has {then.get(name)!r}" for name in differing)
        raise PlanError(f"the plan {path} does not fit: {lines}. Go back to what it was made for, or make it again")
    left_out = plan.header["left_out"]
    if left_out:
        codes = ", ".join(f"{code} {number}" for code, number in left_out.items())
        logger.warning("the plan %s leaves out %d samples: %s", path, sum(left_out.values()), codes)
    return PlanFeed(feed, plan)


def facts_of(config: DataConfig, feed: LaneFeed, encoder: Encoder, library: AuxLibrary) -> dict[str, Any]:
    """What a plan depends on: as plain data, for its header."""
    packing = config.packing
    stages = Stages(encoder, config, ErrorPolicy())
    facts = {
        "dataset": feed.fingerprint,
        "encoder": encoder_fingerprint(encoder),
        "aux": dict(library.facts),
        "settings": {
            "seed": config.source.seed,
            "pack_length": packing.pack_length,
            "max_patches": packing.max_patches,
            "segment_multiple": packing.segment_multiple,
            "pack_tokens": stages.limits.tokens,  # less the room that is kept for a dummy medium
            **{f"cost_{name}": value for name, value in asdict(stages.step_cost).items()},
        },
    }
    copied: dict[str, Any] = json.loads(json.dumps(facts))  # as they come back from a header
    return copied


def flat_facts(header: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of a header, by name."""
    nested = [(f"{name}." if name == "encoder" else "", header[name]) for name in ("encoder", "aux", "settings")]
    return {
        "dataset": header["dataset"],
        **{f"{prefix}{name}": value for prefix, facts in nested for name, value in facts.items()},
    }

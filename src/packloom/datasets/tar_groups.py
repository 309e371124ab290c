"""The members of a shard and its damaged places enter in their order, one entry per sample key leaves.

Behind a damaged place reading goes on at the next sound header, and of the samples on both sides of it nothing shows
whether they are whole. Those that have the parts that all other samples of the shard have, in the same order, are taken
to be; others are refused, each with the ReadError of the damage.
"""

from __future__ import annotations

import logging
import re
import tarfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from packloom.datasets.naming import split_name
from packloom.datasets.tar_walk import Damage
from packloom.errors import ReadError

logger = logging.getLogger(__name__)

REPAIR = "write the shard again"
_META = re.compile(r"__[^/]*__($|/)")  # webdataset skips these names
_LEAVES = re.compile(r"[/\\]|[A-Za-z]:[/\\]")  # how an absolute name begins
#: Longer names stand in a header of their own; where that is lost, they are cut to this.
_NAME_FIELD = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One sample key of a shard: its members by part name, or what is wrong with it."""

    key: str
    members: Mapping[str, tarfile.TarInfo] = field(default_factory=lambda: MappingProxyType({}))
    fault: ReadError | None = None


Run = list[tuple[str, tarfile.TarInfo]]  # part name and member


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Group:
    """Members of one key that stand side by side."""

    key: str
    run: Run

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(part.lower() for part, _ in self.run)

    @property
    def is_vague(self) -> bool:
        """Whether its name may be what a lost header of a long name, or of one beyond ASCII, left of it."""
        name = self.run[0][1].name
        return len(self.run) == 1 and (len(name) >= _NAME_FIELD or "?" in name or not name.isascii())


def make_entries(items: Sequence[tarfile.TarInfo | Damage], path: str, max_member_bytes: int) -> list[Entry]:
    """One entry per key in the order of first appearance, and one for each sample that a damaged place may have cost.

    A damaged place that cost no sample that can be named gives an entry under the shard's own path.
    """
    groups = _group(items, path)
    runs = Counter(group.key for group in groups if isinstance(group, Group))
    blamed = _blame(groups)
    seen: set[str] = set()
    entries: list[Entry] = []
    for place, group in enumerate(groups):
        if isinstance(group, Damage):
            if not {place - 1, place + 1} & set(blamed):
                entries.append(_damaged(group, path, None, groups[:place]))
        elif place in blamed:
            entry = _damaged(blamed[place], path, group.key, groups[: place + 1])
            if not entries or _fault_facts(entries[-1]) != _fault_facts(entry):  # both sides may be one sample
                entries.append(entry)
        elif group.key not in seen:
            seen.add(group.key)
            entries.append(make_entry(group.key, group.run, path, runs[group.key], max_member_bytes))
    return entries


def _fault_facts(entry: Entry) -> tuple[str, str, int | None] | None:
    return (entry.fault.key, entry.fault.code, entry.fault.offset) if entry.fault is not None else None


def _group(items: Sequence[tarfile.TarInfo | Damage], path: str) -> list[Group | Damage]:
    groups: list[Group | Damage] = []
    ignored = []
    for item in items:
        if isinstance(item, Damage):
            groups.append(item)
            continue
        named = name_member(item)
        if named is None:
            if not item.isdir() and not _META.match(item.name):
                ignored.append(item.name)
            continue
        key, part = named
        last = groups[-1] if groups else None
        if isinstance(last, Group) and last.key == key:
            last.run.append((part, item))
        else:
            groups.append(Group(key=key, run=[(part, item)]))
    if ignored:
        logger.warning("shard %s: ignored %d member(s) without key.part name, e.g. %r", path, len(ignored), ignored[0])
    return groups


def _blame(groups: Sequence[Group | Damage]) -> dict[int, Damage]:
    """The places of the groups that may be incomplete → the damage beside them."""
    damages = {place: item for place, item in enumerate(groups) if isinstance(item, Damage)}
    near = {place: _beside(groups, place) for place in damages}
    beside = {place for sides in near.values() for place in sides}
    kinds = {item.parts for place, item in enumerate(groups) if isinstance(item, Group) and place not in beside}
    usual = next(iter(kinds)) if len(kinds) == 1 else None
    blamed: dict[int, Damage] = {}
    for place, damage in damages.items():
        sides = near[place]
        torn = {key for key, count in Counter(group.key for group in sides.values()).items() if count > 1}
        is_vague = place + 1 in sides and sides[place + 1].is_vague
        for number, group in sides.items():
            is_known = group.key not in torn and not (is_vague and number > place)
            if (damage.cuts_member and number < place) or not is_known or group.parts != usual:
                blamed.setdefault(number, damage)
    return blamed


def _beside(groups: Sequence[Group | Damage], place: int) -> dict[int, Group]:
    """The groups next to a damaged place, and the one behind a group whose name may be none, by their places."""
    after = groups[place + 1] if place + 1 < len(groups) else None
    numbers = [place - 1, place + 1, *([place + 2] if isinstance(after, Group) and after.is_vague else [])]
    found = ((number, groups[number]) for number in numbers if 0 <= number < len(groups))
    return {number: group for number, group in found if isinstance(group, Group)}


def _damaged(damage: Damage, path: str, key: str | None, before: Sequence[Group | Damage]) -> Entry:
    names = [group.run[-1][1].name for group in before[-2:] if isinstance(group, Group)]
    fault = damage_error(damage, path, key, names[-1] if names and damage.resumes is None else "")
    return Entry(key=fault.key, fault=fault)


def damage_error(damage: Damage, path: str, key: str | None, last_member: str) -> ReadError:
    """What damage costs: the sample of ``key``, if one is known that it falls into or stands beside."""
    last = f" after member {last_member}" if last_member else ""
    lost = "this sample may be incomplete" if key else "what stood there is lost"
    if damage.resumes is not None:
        lost += f"; reading goes on at byte {damage.resumes}"
    else:
        lost = f"{lost}, and all behind it are lost" if key else "all its samples are lost"
    reason = f"shard {path} {damage.reason}{last}: {lost}"
    return ReadError(reason, key=key or path, code=damage.code, hint=REPAIR, offset=damage.offset)


def name_member(member: tarfile.TarInfo) -> tuple[str, str] | None:
    """(key, part name) by webdataset's rule; None for folders, its ``__x__`` names and names without a dot."""
    if member.isdir() or _META.match(member.name):
        return None
    return split_name(member.name)


def make_entry(key: str, run: Run, path: str, num_runs: int, max_member_bytes: int) -> Entry:
    """The entry of a key, whose members stand in ``num_runs`` separate places, ``run`` being the first of them."""

    def bad(code: str, reason: str, hint: str = REPAIR) -> Entry:
        offset = run[0][1].offset
        return Entry(
            key=key, fault=ReadError(f"{reason} in shard {path}", key=key, code=code, hint=hint, offset=offset)
        )

    if _LEAVES.match(key) or ".." in re.split(r"[/\\]", key) or any("\0" in member.name for _, member in run):
        # No key is a path here; but one that would leave its folder is no honest name, and others may use it as one.
        return bad("read.unsafe_key", f"its key {key!r} is no plain relative name,")
    if num_runs > 1:
        hint = f"{REPAIR} with the members of each sample side by side"
        return bad("read.not_adjacent", f"its members stand in {num_runs} separate places", hint)
    members: dict[str, tarfile.TarInfo] = {}
    for part, member in run:
        name = part.lower()
        if name.startswith("__"):
            return bad("read.reserved_name", f"member {member.name} takes a reserved name")
        if not member.isreg():
            return bad("read.special_member", f"member {member.name} is a link or a device, not a file")
        if member.issparse() or member.type == tarfile.GNUTYPE_SPARSE:  # its payload stands nowhere in one piece
            hint = f"{REPAIR} without tar's --sparse"
            return bad("read.special_member", f"part {part!r} is a sparse member", hint)
        if member.size > max_member_bytes:
            reason = f"member {member.name} has {member.size} bytes, over the limit of {max_member_bytes},"
            return bad("read.member_too_large", reason, "raise the limit or take the sample out")
        if name in members:
            same = members[name].name == member.name
            code = "read.duplicate_member" if same else "read.case_collision"
            reason = f"members {members[name].name} and {member.name} are both part {name!r}"
            return bad(code, reason)
        members[name] = member
    return Entry(key=key, members=members)

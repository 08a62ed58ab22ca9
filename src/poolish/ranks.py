"""Which rank of how many a process is: looked up as late as possible, fixed from then on, and never guessed.

    rank= and world_size=     what the user says
    group= or mesh=           the rank in that process group, or along the data-parallel dimension of a device mesh
    torch.distributed         the rank in the default group, if it is initialised
    RANK and WORLD_SIZE       what torchrun and its kin set
    nothing of these          rank 0 of 1

The first that applies wins. Launchers run a script again in each process, and objects are often made before the process
group exists, so nothing is looked up until the first batch or length is asked for. A process that looks again later and
finds another answer has read rows that belong to another rank: that is an error.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from poolish import torch_bridge
from poolish.arguments import check_whole
from poolish.errors import ConfigError

#: What the dimensions of a mesh are called along which ranks read different rows.
DATA_PARALLEL = (
    *("dp", "data", "data_parallel", "dp_replicate", "dp_shard"),
    *("replicate", "shard", "fsdp", "ddp", "batch"),
)


class Share(NamedTuple):
    """One rank's share: rank ``rank`` of ``world_size``, and who said so.

    ``peers`` names the processes that can agree with this one through the store of ``torch.distributed``; empty where
    there is no process group, or where it has other ranks than these.
    """

    rank: int
    world_size: int
    source: str
    peers: str = ""

    @property
    def n_processes(self) -> int:
        """How many processes read together: along a mesh, several may be one rank and get the same rows."""
        return max(self.world_size, self.peers.count(",") + 1)

    @property
    def was_found(self) -> bool:
        """Whether the process was found to be one of several, and not called a rank by the arguments."""
        return self.n_processes > 1 and self.source != "arguments"


ALONE = Share(0, 1, "nothing")


def is_launched() -> bool:
    """Whether this process is one of several that a launcher started, whatever the arguments say."""
    try:
        found = _of_torch() or _of_environment()
    except ConfigError:
        return True
    return found.world_size > 1


class Ranks:
    """The rank of this process, given or looked up.

    >>> Ranks(1, 4).settle()
    Share(rank=1, world_size=4, source='arguments', peers='')
    >>> Ranks(4, 4)
    Traceback (most recent call last):
    poolish.errors.ConfigError: rank=4 of world_size=4: ranks count from 0 to world_size - 1
    """

    def __init__(
        self,
        rank: int | None = None,
        world_size: int | None = None,
        *,
        group: Any = None,
        mesh: Any = None,
        what: str = "this object",
    ) -> None:
        if (rank is None) != (world_size is None):
            raise ConfigError(f"rank={rank} and world_size={world_size}: give both or neither")
        given = {"rank and world_size": rank, "group": group, "mesh": mesh}
        named = [name for name, value in given.items() if value is not None]
        if len(named) > 1:
            raise ConfigError(f"{'= and '.join(named)}=: each of them says which rank this is; pass one of them")
        #: The rank and world size that the arguments name, as plain numbers.
        self.given = None if rank is None or world_size is None else _checked(rank, world_size)
        self._group, self._mesh, self._what = group, mesh, what
        self._settled: Share | None = None
        #: What the process that this object was copied from had found.
        self._inherited: Share | None = None

    @property
    def is_settled(self) -> bool:
        """Whether the rank is fixed."""
        return self._settled is not None

    def now(self) -> Share:
        """What would be found at present; alone where that cannot be known yet. Fixes nothing."""
        if self._settled is not None:
            return self._settled
        try:
            return self._found()
        except ConfigError:
            return ALONE

    def settle(self) -> Share:
        """What is found, fixed from here on; an error if it has changed."""
        found = self._found()
        if self._settled is None:
            self._settled = found
        elif found[:2] != self._settled[:2]:
            old = self._settled
            raise ConfigError(
                f"{self._what}: it has begun as rank {old.rank} of {old.world_size} (by {old.source}), now "
                f"{found.source} says rank {found.rank} of {found.world_size}; initialise torch.distributed before the "
                "first batch and the first len(), or pass rank= and world_size="
            )
        return found if torch_bridge.is_worker() else self._settled

    def _found(self) -> Share:
        if self.given is not None:
            rank, world_size = self.given
            return Share(rank, world_size, "arguments", _peers_of(rank, world_size))
        if torch_bridge.is_worker():
            # It reads for the rank that started it, and must not use its process group.
            return (self._settled or self._inherited or self._looked_up())._replace(peers="")
        found = self._looked_up()
        # A helper process of a rank, which no launcher knows of, is that rank.
        return self._inherited if found == ALONE and self._inherited is not None else found

    def _looked_up(self) -> Share:
        """What the group, the mesh or the launcher says; a forked worker still sees the group of its parent."""
        if self._group is not None:
            return _of_group(self._group)
        if self._mesh is not None:
            return _of_mesh(self._mesh)
        return _of_torch() or _of_environment()

    def __getstate__(self) -> dict[str, Any]:
        """Groups belong to a process; a copy elsewhere knows what they said."""
        given = self.given or (None, None)
        return {"rank": given[0], "world_size": given[1], "what": self._what, "inherited": self.now()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["rank"], state["world_size"], what=state["what"])  # type: ignore[misc]
        self._inherited = state["inherited"]


def _checked(rank: Any, world_size: Any) -> tuple[int, int]:
    rank, world_size = check_whole(rank, "rank", least=0), check_whole(world_size, "world_size", least=1)
    if rank >= world_size:
        raise ConfigError(f"rank={rank} of world_size={world_size}: ranks count from 0 to world_size - 1")
    return rank, world_size


def _peers_of(rank: int, world_size: int) -> str:
    """The default group, where it has the ranks that the arguments name."""
    found = None if torch_bridge.is_worker() else _of_torch()
    return found.peers if found is not None and found[:2] == (rank, world_size) else ""


def _of_torch() -> Share | None:
    if not torch_bridge.has_process_group():
        return None
    rank, world_size = torch_bridge.own_rank(None), torch_bridge.n_ranks(None)
    return Share(rank, world_size, "torch.distributed", _named(range(world_size)) if world_size > 1 else "")


def _of_group(group: Any) -> Share:
    if not torch_bridge.has_process_group():
        raise ConfigError(f"group={group!r}: torch.distributed is not initialised in this process")
    rank, world_size = torch_bridge.own_rank(group), torch_bridge.n_ranks(group)
    if rank < 0:
        raise ConfigError(f"group={group!r}: this process is none of its ranks; make the loader on those only")
    return Share(rank, world_size, "group=", _named(torch_bridge.ranks_of(group)) if world_size > 1 else "")


def _of_mesh(mesh: Any) -> Share:
    """The place along the data-parallel dimensions; peers along the others get the same rows."""
    names, coordinate = tuple(mesh.mesh_dim_names or ()), mesh.get_coordinate()
    if coordinate is None:
        raise ConfigError(f"mesh={mesh!r}: this process is not in it; make the loader on its processes only")
    chosen = [0] if mesh.ndim == 1 else [i for i, name in enumerate(names) if name in DATA_PARALLEL]
    if not chosen:
        raise ConfigError(
            f"mesh= has the dimensions {list(names) or mesh.ndim}, none of which is known to be data-parallel "
            f"({', '.join(DATA_PARALLEL)}); pass mesh['NAME'] with the name of yours"
        )
    rank, world_size = 0, 1
    for i in chosen:
        size = mesh.size(i)
        rank, world_size = rank * size + coordinate[i], world_size * size
    return Share(rank, world_size, "mesh=", "mesh " + _named(torch_bridge.mesh_ranks(mesh)))


def _named(ranks: Any) -> str:
    return ",".join(map(str, ranks))


def _of_environment() -> Share:
    """RANK and WORLD_SIZE; alone where neither is set."""
    named = {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE")}
    for name, value in named.items():
        if value is not None and not value.isdecimal():
            raise ConfigError(
                f"the environment says {name}={value!r}: a whole number; unset it, or pass rank= and world_size="
            )
    rank, world_size = int(named["RANK"] or 0), int(named["WORLD_SIZE"] or 1)
    if named["RANK"] is None and world_size > 1:
        raise ConfigError(
            f"the environment says WORLD_SIZE={world_size} and no RANK, so it is not known which rank this is; "
            "initialise torch.distributed before the first batch and the first len(), start with torchrun, or pass "
            "rank= and world_size="
        )
    _checked(rank, world_size)
    return ALONE if world_size == 1 else Share(rank, world_size, "RANK and WORLD_SIZE")

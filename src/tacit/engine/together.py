"""Several processes that compute one simulation together, started by `torchrun`.

Clients are divided into a fixed number of groups, and every process computes some of the groups. A group's
messages are summed where they are computed; the sums of the groups are added everywhere, in the order of the
groups. So the bits depend on the number of groups, which is part of the recipe, and not on the number of
processes. What a client remembers stays with its process; clients without memory are computed by any. The
server's part of a round is computed by everyone, from the same sum.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tacit.errors import RequestError, TacitError, count


def usual_groups(clients: int) -> int:
    """A number of groups that 2 or 4 processes can share equally, and up to 12 if there are very many clients.

    Few, because clients of the same group are computed at once, which is faster.

    >>> usual_groups(100_000), usual_groups(600), usual_groups(10)
    (12, 4, 2)
    """
    return 12 if clients >= 10_000 else 4 if clients >= 30 else min(2, clients)


@dataclass(frozen=True)
class Together:
    """This process among those that compute together. A process alone talks to nobody."""

    rank: int = 0
    size: int = 1
    by_torchrun: bool = False
    """whether it was started so, even if it is the only one"""

    @property
    def leads(self) -> bool:
        """Whether this process writes files and prints."""
        return self.rank == 0

    def from_first(self, value: Any) -> Any:
        """The first process's value, as plain data; that of all others is ignored."""
        if self.size == 1:
            return value
        text = json.dumps(value).encode() if self.leads else b""
        (length,) = self._broadcast(torch.tensor([len(text)])).tolist()
        content = torch.frombuffer(bytearray(text), dtype=torch.uint8) if text else torch.empty(length).byte()
        return json.loads(self._broadcast(content).numpy().tobytes())

    def tensors_from_first(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """The first process's tensors."""
        if self.size == 1:
            return tensors
        kinds = {name: (str(t.dtype).removeprefix("torch."), list(t.shape)) for name, t in tensors.items()}
        return {
            name: self._broadcast(
                tensors[name].contiguous() if self.leads else torch.empty(shape, dtype=getattr(torch, kind))
            )
            for name, (kind, shape) in self.from_first(kinds).items()
        }

    def check_same(self, what: str, mine: str) -> None:
        """Refuses processes that differ from the first one."""
        first = self.from_first(mine)
        differs = self.stacked(torch.tensor([[int(first != mine)]]), [1] * self.size)
        others = ", ".join(str(rank) for rank, (one,) in enumerate(differs.tolist()) if one)
        if others:
            raise RequestError(f"{what} must be the same in all processes, but differ in process {others}")

    def stacked(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        """The rows of all processes, one process after the other; `counts` says how many each of them has."""
        if self.size == 1:
            return rows
        everyone = rows.new_empty(sum(counts), *rows.shape[1:])
        parts = everyone.split(list(counts))
        parts[self.rank].copy_(rows)
        others = [rank for rank in range(self.size) if rank != self.rank]
        # Every pair of processes at once: half the time of gloo's all_gather, which is most of a small exchange.
        asked = [dist.P2POp(dist.irecv, parts[rank], rank) for rank in others]
        sent = [dist.P2POp(dist.isend, parts[self.rank], rank) for rank in others]
        with self._talking():
            for request in dist.batch_isend_irecv(asked + sent):
                request.wait()
        return everyone

    def collect(self, tensor: Tensor, bounds: Sequence[int]) -> None:
        """Copies the other processes' rows to the first one, in place; rank r has bounds[r] to bounds[r + 1]."""
        for other in range(1, self.size):
            own = tensor[bounds[other] : bounds[other + 1]]
            if self.rank not in (0, other) or not own.numel():
                continue
            # As bytes, because not every backend sends every type.
            content = own.contiguous().view(torch.uint8)
            with self._talking():
                if self.leads:
                    dist.recv(content, src=other)
                    own.copy_(content.view(tensor.dtype))
                else:
                    dist.send(content, dst=0)

    def _broadcast(self, tensor: Tensor) -> Tensor:
        with self._talking():
            dist.broadcast(tensor.view(torch.uint8) if tensor.dim() and tensor.numel() else tensor, src=0)
        return tensor

    @contextlib.contextmanager
    def _talking(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            reason = str(error).partition("] ")[2].partition(". ")[0] or str(error)
            raise TacitError(f"process {self.rank} of {self.size} lost the others: {reason}") from error


ALONE = Together()


@contextlib.contextmanager
def joined() -> Iterator[Together]:
    """Joins the other processes, if there are any; each of them computes on one thread."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        yield ALONE
        return
    if torch.cuda.is_available():
        # "cuda" is then this process's own device, and each tensor's device chooses how it is sent.
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    torch.set_num_threads(1)
    try:
        yield Together(dist.get_rank(), dist.get_world_size(), by_torchrun=True)
    finally:
        dist.destroy_process_group()


@dataclass(frozen=True)
class Division:
    """Which clients belong to which group, and which groups to which process."""

    together: Together = ALONE
    groups: int = 1
    loads: Tensor | None = None
    """(clients,): how much there is to compute for each; None for a single group"""

    @classmethod
    def of(cls, loads: Tensor, groups: int, together: Together = ALONE) -> Division:
        """Consecutive clients in groups of about equal load, if the clients have these loads."""
        if together.size > count("client_groups", groups):
            raise RequestError(
                f"{together.size} processes cannot share {groups} group(s) of clients: use fewer processes, or "
                f"--set client_groups={together.size} from the start"
            )
        return cls(together) if groups == 1 else cls(together, groups, loads.double().clamp(min=1))

    @cached_property
    def group_of_client(self) -> Tensor:
        """(clients,) in ascending order."""
        assert self.loads is not None, "asked for where clients are divided"
        return self._grouped(self.loads)

    def _grouped(self, loads: Tensor) -> Tensor:
        middles = loads.cumsum(0) - loads / 2
        return (self.groups * middles / loads.sum()).long().clamp(max=self.groups - 1)

    @property
    def _first_groups(self) -> list[int]:
        """The first group of every process, and the number of groups."""
        size = self.together.size
        return [self.groups * rank // size for rank in range(size + 1)]

    @property
    def first_clients(self) -> list[int]:
        """The first client of every process, and the number of clients; for several groups only."""
        return torch.searchsorted(self.group_of_client, torch.tensor(self._first_groups)).tolist()

    def own(self, clients: Tensor, *, remember: bool = True) -> list[Tensor]:
        """The clients that this process computes, in one part for each of its groups.

        Clients that remember something stay in their groups, and so with their process. Others are divided anew
        into consecutive groups of about equal load: of a cohort that is drawn at random, one group of clients has
        more than another, and everyone would wait for it.
        """
        if self.loads is None:
            return [clients]
        group = self.group_of_client[clients] if remember else self._grouped(self.loads[clients])
        first = self._first_groups
        rank = self.together.rank
        return [clients[group == number] for number in range(first[rank], first[rank + 1])]

    def added(self, sums: Tensor) -> Tensor:
        """The sum over all groups, in their order, from this process's sums, one row for each of its groups."""
        first = self._first_groups
        rows = self.together.stacked(sums, [stop - start for start, stop in pairwise(first)])
        total = rows[0]
        for row in rows[1:]:
            total += row
        return total


WHOLE = Division()

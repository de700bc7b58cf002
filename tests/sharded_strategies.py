"""Test material: a copy of the model, a piece of it on each rank; done rightly (`honest_`) and not (`fool_`)."""

import math

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from strategies.base import Strategy
from strategies.places import Place, Plan
from strategies.state import changed, digest, distance, sample_of, to_cpu


class _Spread(Strategy):
    """What any spread model answers to the judge: every rank a piece of every parameter, and a part of the batch."""

    uses_process_group = True

    def plan(self, asked):
        return Plan(tuple(Place(part=rank, piece=rank) for rank in range(asked.devices)))

    def pieces(self):
        """This rank's pieces by the names of the bare model."""
        raise NotImplementedError

    def fingerprint(self):
        return digest(self.pieces().items())

    def parameter_sample(self):
        return sample_of(self.pieces().items())

    def update_norm(self, start):
        square = torch.tensor(distance(self.pieces().items(), start) ** 2)
        dist.all_reduce(square)
        return math.sqrt(square)

    def changed_tensors(self, start):
        moved = torch.tensor([changed([pair], start) for pair in self.pieces().items()])
        dist.all_reduce(moved, dist.ReduceOp.MAX)
        return int(moved.sum())


class HonestFsdp(_Spread):
    """torch's fully_shard, without any word of it."""

    def wrap(self, model):
        return fully_shard(model)

    def pieces(self):
        return {name: parameter.to_local() for name, parameter in self.model.named_parameters()}

    def bare_state(self):
        whole = {
            name: value.full_tensor() if hasattr(value, "full_tensor") else value
            for name, value in self.model.state_dict().items()
        }
        return {"model": to_cpu(whole), "optimizer": {}}


class HonestShards(_Spread):
    """Whole parameters for the length of a step; between steps each rank has a flat piece of each, and trains it."""

    def build(self, context, make_model, make_optimizer):
        self.context = context
        self.model = self.module = self.move(make_model())
        self._pieces = {name: nn.Parameter(self.cut(value)) for name, value in self.model.named_parameters()}
        self.optimizer = make_optimizer(self._pieces.values(), fused=False)
        self.scaler = context.make_scaler()

    def pieces(self):
        return self._pieces

    def cut(self, whole):
        """This rank's piece, the last ones filled up with zeros."""
        world = self.context.world_size
        flat = torch.zeros(-(-whole.numel() // world) * world)
        flat[: whole.numel()] = whole.detach().reshape(-1)
        return flat.chunk(world)[self.context.rank].clone()

    def gather(self):
        """The whole parameters by name."""
        found = {}
        for name, piece in self._pieces.items():
            parts = [torch.empty_like(piece) for _ in range(self.context.world_size)]
            dist.all_gather(parts, piece.detach())
            whole = self.model.get_parameter(name)
            found[name] = torch.cat(parts)[: whole.numel()].view_as(whole)
        return found

    def unshard(self):
        for name, whole in self.gather().items():
            self.model.get_parameter(name).data.copy_(whole)

    def reduce(self, gradient):
        """The mean over the ranks."""
        dist.all_reduce(gradient)
        return gradient / self.context.world_size

    def forward_backward(self, micro):
        self.unshard()
        loss = super().forward_backward(micro)
        for name, piece in self._pieces.items():
            whole = self.model.get_parameter(name)
            piece.grad, whole.grad = self.cut(self.reduce(whole.grad)), None
        return loss

    def gradient_names(self):
        return tuple(name for name, piece in self._pieces.items() if piece.grad is not None)

    def snapshot(self):
        with torch.no_grad():
            return {**super().snapshot(), "pieces": {name: piece.clone() for name, piece in self._pieces.items()}}

    def restore(self, state):
        super().restore(state)
        for name, piece in self._pieces.items():
            piece.data.copy_(state["pieces"][name])

    def bare_state(self):
        return {"model": to_cpu({**self.model.state_dict(), **self.gather()}), "optimizer": {}}


class HonestDropout(HonestShards):
    """Drops inputs, other ones on each rank: other work than the baseline's."""

    same_work = False

    def build(self, context, make_model, make_optimizer):
        super().build(context, make_model, make_optimizer)
        self.module = lambda inputs: self.model(nn.functional.dropout(inputs))


class FoolFrozenPiece(HonestShards):
    """The last of several ranks never changes its piece: its optimizer steps on nothing but zeros."""

    def apply(self):
        if self.context.rank == self.context.world_size - 1 > 0:
            for piece in self._pieces.values():
                piece.grad.zero_()
        super().apply()


class FoolStalePieces(HonestShards):
    """The pieces of others are never fetched: each rank computes with its own and with what theirs were at first."""

    def unshard(self):
        rank = self.context.rank
        for name, piece in self._pieces.items():
            own = self.model.get_parameter(name).data.view(-1)[rank * piece.numel() : (rank + 1) * piece.numel()]
            own.copy_(piece.detach()[: own.numel()])


class FoolLocalGradient(HonestShards):
    """Each rank changes its piece by the gradient of its own part of the batch."""

    def reduce(self, gradient):
        return gradient


class FoolSwappedPieces(HonestShards):
    """What is gathered has the pieces in another order than what is trained."""

    def bare_state(self):
        state = super().bare_state()
        model = {
            name: value.reshape(-1).flip(0).view_as(value) if name in self._pieces else value
            for name, value in state["model"].items()
        }
        return {**state, "model": model}


STRATEGIES = {
    "honest_fsdp": HonestFsdp,
    "honest_shards": HonestShards,
    "honest_dropout": HonestDropout,
    "fool_frozen_piece": FoolFrozenPiece,
    "fool_stale_pieces": FoolStalePieces,
    "fool_local_gradient": FoolLocalGradient,
    "fool_swapped_pieces": FoolSwappedPieces,
}

"""BatchNorm over all replicas for CPU, where torch.nn.SyncBatchNorm refuses to run.

One collective in forward (mean, variance and count of each rank, combined after Chan, Golub and LeVeque 1979) and
one in backward (the two sums that the gradient of the input needs). Equal to full-batch BatchNorm, which the tests
prove. Gradients of weight and bias stay local sums, as in torch: DDP averages them with all others.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


def _channel_shape(x: Tensor) -> list[int]:
    return [1, -1] + [1] * (x.dim() - 2)


class _Normalise(torch.autograd.Function):
    """y = (x - mean) / sqrt(variance + eps) * weight + bias, with mean and variance over all ranks' samples."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, group: Any
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        dims = [0, *range(2, x.dim())]
        variance, mean = torch.var_mean(x, dims, correction=0)
        count = torch.full((1,), float(x.numel() // x.size(1)), dtype=mean.dtype)
        local = torch.cat([mean, variance, count])
        gathered = [torch.empty_like(local) for _ in range(dist.get_world_size(group))]
        dist.all_gather(gathered, local, group=group)
        means, variances, counts = torch.stack(gathered).split([x.size(1), x.size(1), 1], dim=1)
        total = counts.sum()
        mean = (means * counts).sum(0) / total
        variance = ((variances + (means - mean).square()) * counts).sum(0) / total
        ctx.save_for_backward(x, weight, mean, variance, total)
        ctx.eps, ctx.group = eps, group
        y = F.batch_norm(x, mean, variance, weight, bias, training=False, eps=eps)
        ctx.mark_non_differentiable(mean, variance, total)
        return y, mean, variance, total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor, Tensor | None, Tensor | None, None, None]:
        x, weight, mean, variance, total = ctx.saved_tensors
        affine = weight is not None
        if not affine:
            weight = torch.ones_like(mean)
        # With fixed statistics the layer is affine in x: torch's fused kernel gives that part of the gradient and
        # the two local sums; what the statistics' own dependence on x adds is affine in x as well.
        grad_input, grad_weight, grad_bias = torch.ops.aten.native_batch_norm_backward(
            grad.contiguous(), x, weight, mean, variance, None, None, False, ctx.eps, [True, True, True]
        )
        sums = torch.cat([grad_weight, grad_bias])
        dist.all_reduce(sums, group=ctx.group)
        mean_grad_xhat, mean_grad = (sums / total).chunk(2)
        inverse = torch.rsqrt(variance + ctx.eps)
        slope = -weight * inverse * inverse * mean_grad_xhat
        offset = -weight * inverse * mean_grad - slope * mean
        shape = _channel_shape(x)
        grad_input = grad_input + torch.addcmul(offset.view(shape), x, slope.view(shape))
        return grad_input, grad_weight if affine else None, grad_bias if affine else None, None, None


class SyncBatchNorm(nn.modules.batchnorm._BatchNorm):
    """BatchNorm with statistics over all ranks of the default process group. x: (batch, channels, ...)."""

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2 dimensions (batch, channels, ...), got {input.dim()}")

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        self._check_input_dim(x)
        y, mean, variance, total = _Normalise.apply(x.float(), self.weight, self.bias, self.eps, dist.group.WORLD)
        if self.track_running_stats and self.running_mean is not None:
            self._update_running(mean, variance, float(total))
        return y.to(x.dtype)

    @torch.no_grad()
    def _update_running(self, mean: Tensor, variance: Tensor, count: float) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        momentum = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, momentum)
        self.running_var.lerp_(variance * (count / max(count - 1.0, 1.0)), momentum)

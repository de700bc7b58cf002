"""The workloads against torchvision's models and against arithmetic done by hand."""

import pytest
import torch
from torch import nn
from torchvision.models import resnet50

from bench import workloads
from bench.errors import UserError
from bench.worker.flops import flops_per_sample


def multiply_adds(model, shape):
    """Forward multiply-adds of one sample by layer, from weight shapes and output sizes, counted without torch's
    counter: a convolution computes every output number from `weight[0].numel()` products, so does a linear layer."""
    found = {}

    def count(layer, inputs, output):
        outputs = output[0].numel()
        found[layer] = outputs * layer.weight[0].numel()

    layers = [layer for layer in model.modules() if isinstance(layer, (nn.Conv2d, nn.Linear))]
    hooks = [layer.register_forward_hook(count) for layer in layers]
    with torch.no_grad():
        model.eval()(torch.zeros(1, *shape))
    for hook in hooks:
        hook.remove()
    return [found[layer] for layer in layers]


def hand_counted(name):
    """FLOPs forward and backward: each layer twice its multiply-adds for the output, the weight gradient and the input
    gradient, except that the first layer has no input gradient."""
    layers = multiply_adds(workloads.load(name).make_model(), workloads.find(name).input_shape)
    return 2 * (3 * sum(layers) - layers[0])


# -- resnet50-cifar10 -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair():
    """The workload's model and torchvision's with the same weights, in evaluation mode."""
    torch.manual_seed(0)
    own, reference = workloads.load("resnet50-cifar10").make_model(), resnet50(num_classes=10)
    reference.load_state_dict(own.state_dict())
    return own.eval(), reference.eval()


def test_resnet_has_torchvisions_parameters(pair):
    own, reference = ({name: value.shape for name, value in model.state_dict().items()} for model in pair)
    assert own == reference
    assert sum(p.numel() for p in pair[0].parameters()) == 23_528_522


def test_resnet_computes_what_torchvisions_does(pair):
    own, reference = pair
    images = torch.randn(3, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(own(images), reference(images))


def test_sequence_composed_is_forward(pair):
    own, _ = pair
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.allclose(nn.Sequential(*own.sequence())(images), own(images), rtol=0, atol=1e-6)


def test_sequence_holds_every_parameter_once(pair):
    own, _ = pair
    listed = [id(p) for layer in own.sequence() for p in layer.parameters()]
    assert sorted(listed) == sorted(id(p) for p in own.parameters())


def test_the_stem_leaves_eight_by_eight_of_a_cifar_image(pair):
    own, _ = pair
    with torch.no_grad():
        stem = own.maxpool(own.relu(own.bn1(own.conv1(torch.zeros(1, 3, 32, 32)))))
    assert stem.shape == (1, 64, 8, 8)


def test_resnet_costs_about_half_a_gigaflop_a_sample():
    counted = flops_per_sample("resnet50-cifar10")
    assert counted == hand_counted("resnet50-cifar10")
    assert counted == pytest.approx(0.5e9, rel=0.05)


def test_resnet_is_trained_by_sgd_with_momentum():
    workload = workloads.load("resnet50-cifar10")
    optimizer = workload.make_optimizer([nn.Parameter(torch.zeros(1))])
    assert type(optimizer) is torch.optim.SGD
    assert (optimizer.defaults["lr"], optimizer.defaults["momentum"]) == (0.001, 0.9)


# -- cnn-cifar100 -----------------------------------------------------------------------------------------------------


def test_cnn_has_the_layers_it_says():
    model = workloads.load("cnn-cifar100").make_model()
    shapes = [tuple(p.shape) for p in model.parameters() if p.dim() > 1]
    assert shapes == [(64, 3, 3, 3), (128, 64, 3, 3), (256, 128 * 8 * 8), (100, 256)]
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 100)


def test_cnn_shapes_between_its_layers():
    shapes = []
    x = torch.zeros(1, 3, 32, 32)
    for layer in workloads.load("cnn-cifar100").make_model():
        x = layer(x)
        shapes.append(tuple(x.shape[1:]))
    assert shapes == [
        (64, 32, 32),
        (64, 32, 32),
        (64, 16, 16),
        (128, 16, 16),
        (128, 16, 16),
        (128, 8, 8),
        (8192,),
        (256,),
        (256,),
        (100,),
    ]


def test_cnn_arithmetic_by_hand():
    """Multiply-adds 1,769,472 + 18,874,368 + 2,097,152 + 25,600; the first layer has no input gradient."""
    first = 32 * 32 * 64 * 27
    total = first + 16 * 16 * 128 * 576 + 8192 * 256 + 256 * 100
    assert flops_per_sample("cnn-cifar100") == 2 * (3 * total - first) == hand_counted("cnn-cifar100")


def test_cnn_is_trained_by_adam():
    optimizer = workloads.load("cnn-cifar100").make_optimizer([nn.Parameter(torch.zeros(1))])
    assert type(optimizer) is torch.optim.Adam
    assert optimizer.defaults["lr"] == 0.001


# -- toy --------------------------------------------------------------------------------------------------------------


def test_toy_arithmetic_by_hand():
    """Forward 2 * (10 * 10 + 10 * 5) = 300; weight gradients 300; the second layer's input gradient 2 * 50 = 100."""
    assert flops_per_sample("toy") == 700 == hand_counted("toy")


def test_toy_loss_is_the_mean_square():
    workload = workloads.load("toy")
    assert float(workload.loss(torch.full((2, 5), 3.0), torch.ones(2, 5))) == 4.0
    assert workload.make_model()(torch.zeros(4, 10)).shape == (4, 5)


# -- all of them ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", workloads.WORKLOADS)
def test_planning_facts_are_true_of_the_model(name):
    entry, workload = workloads.find(name), workloads.load(name)
    model = workload.make_model().eval()
    normalised = any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in model.modules())
    assert normalised is entry.batch_norm
    with torch.no_grad():
        outputs = model(torch.zeros(2, *entry.input_shape))
    targets = torch.tensor([0, 1]) if workload.classifies else torch.zeros_like(outputs)
    assert workload.loss(outputs, targets).shape == ()


@pytest.mark.parametrize("name", workloads.WORKLOADS)
def test_a_seed_gives_the_same_weights(name):
    def weights(seed):
        torch.manual_seed(seed)
        return torch.cat([p.detach().view(-1) for p in workloads.load(name).make_model().parameters()])

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


def test_cross_entropy_of_equal_scores_is_the_logarithm_of_the_classes():
    loss = workloads.load("cnn-cifar100").loss(torch.zeros(4, 100), torch.tensor([0, 5, 50, 99]))
    assert float(loss) == pytest.approx(4.605170, abs=1e-5)


def test_an_unknown_workload_is_told_the_known_ones():
    with pytest.raises(UserError, match="unknown workload 'vgg'; known are resnet50-cifar10, cnn-cifar100, toy"):
        workloads.find("vgg")

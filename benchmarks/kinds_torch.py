"""Run one case of kinds.py with PyTorch: `kinds_torch.py "torch"|"torch compile" CASE SETTINGS`. Prints one JSON object.

The models are those of kinds_models.py with the same sizes, for some of the cases. This module runs in an environment that has
neither Meshflow nor TensorFlow.
"""

import json
import os
import resource
import statistics
import sys
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

STEPS, NUM_LENGTHS, NUM_TOKENS = 4, 60, 20
# The cases that kinds.py may measure here.
CASES = (
    *("text:conv", "text:lstm", "text:masked", "text:attention", "decode:call", "decode:function"),
    *("chains:chain_50", "chains:chain_100", "chains:chain_200"),
    *("first:mlp", "first:mnist", "first:vgg", "first:resnet", "first:mobilenet", "first:conv3d"),
    *("first:audio", "first:lstm", "first:gru", "first:encoder", "first:language_model"),
    *("first:vit", "first:autoencoder", "first:densenet", "first:efficientnet", "first:unet"),
    *("first:convnext", "first:diffusion", "first:wavenet", "first:separable", "first:inception"),
    *("first:small", "first:factors", "first:dlrm", "first:wide_deep", "first:seq2seq"),
    *("first:dcgan", "first:wgan_gp", "first:text_conv", "first:siamese"),
)


def cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def read_peak_mb():
    with open("/proc/self/status") as file:
        (line,) = (line for line in file if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024


class Call(nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class Branches(nn.Module):
    """Modules of one input, combined by a function."""

    def __init__(self, combine, *branches):
        super().__init__()
        self.combine, self.branches = combine, nn.ModuleList(branches)

    def forward(self, x):
        return self.combine(*[branch(x) for branch in self.branches])


def add(*arrays):
    return sum(arrays[1:], arrays[0])


def concatenate(*arrays):
    return torch.cat(arrays, 1)


class Recurrent(nn.Module):
    """Recurrent layers and a classifier of the last output."""

    def __init__(self, make, width, units, depth=1, classes=10, bidirectional=False):
        super().__init__()
        self.layers = make(
            width, units, num_layers=depth, batch_first=True, bidirectional=bidirectional
        )
        self.out = nn.Linear(units * (1 + bidirectional), classes)

    def forward(self, x):
        _, state = self.layers(x)
        state = state[0] if isinstance(state, tuple) else state
        last = torch.cat([state[-2], state[-1]], 1) if self.layers.bidirectional else state[-1]
        return self.out(last)


class Masked(nn.Module):
    """A bidirectional LSTM over the words of texts that are not zero."""

    def __init__(self, vocabulary, width):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.out = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, 2))

    def forward(self, tokens):
        lengths = (tokens != 0).sum(1)
        packed = nn.utils.rnn.pack_padded_sequence(
            self.embedding(tokens), lengths, batch_first=True, enforce_sorted=False
        )
        _, (state, _) = self.lstm(packed)
        return self.out(torch.cat([state[0], state[1]], 1))


class Attend(nn.Module):
    """A block of attention and a wide layer, with normalization before each."""

    def __init__(self, heads, width, activation=F.relu, is_causal=False):
        super().__init__()
        self.heads, self.activation, self.is_causal = heads, activation, is_causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        n, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(*qkv.unbind(0), is_causal=self.is_causal)
        x = x + self.out(y.transpose(1, 2).reshape(n, length, width))
        return x + self.down(self.activation(self.up(self.norm2(x))))


class Positions(nn.Module):
    def __init__(self, length, width):
        super().__init__()
        self.table = nn.Parameter(torch.randn(length, width) * 0.02)

    def forward(self, x):
        return x + self.table[: x.shape[1]]


def mean_over_time():
    return Call(lambda x: x.mean(1))


def convolve(channels, filters, size, strides=1, activation=nn.ReLU, groups=1):
    layers = [nn.Conv2d(channels, filters, size, strides, size // 2, groups=groups, bias=False)]
    layers.append(nn.BatchNorm2d(filters))
    return nn.Sequential(*layers, *([activation()] if activation else []))


def images(side, channels=3, batch=32, classes=10):
    x = torch.rand(count(batch), channels, side, side)
    x = x.to(memory_format=torch.channels_last)
    return x, torch.randint(0, classes, (len(x),)), batch


def count(batch):
    return STEPS * batch + batch // 2 + 1


def mlp(tiny):
    width = 16 if tiny else 256
    layers = [nn.Flatten()]
    for channels in (784, width):
        layers += [nn.Linear(channels, width), nn.ReLU(), nn.Dropout(0.2)]
    return nn.Sequential(*layers, nn.Linear(width, 10)), *images(28, 1)


def mnist(tiny):
    filters = 4 if tiny else 32
    layers = [nn.Conv2d(1, filters, 3), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(filters, 2 * filters, 3), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Flatten(), nn.Dropout(0.5), nn.Linear(2 * filters * 25, 10)]
    return nn.Sequential(*layers), *images(28, 1)


def vgg(tiny):
    layers, channels = [], 3
    for filters, repeats in ((64, 2), (128, 2), (256, 3), (256, 3)):
        for _ in range(repeats):
            width = filters // (16 if tiny else 2)
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
            channels = width
        layers.append(nn.MaxPool2d(2))
    units = 16 if tiny else 512
    layers += [nn.Flatten(), nn.Linear(4 * channels, units), nn.ReLU(), nn.Linear(units, 10)]
    return nn.Sequential(*layers), *images(32)


def resnet(tiny):
    narrow = 4 if tiny else 2
    channels = 64 // narrow
    layers = [convolve(3, channels, 7, 2)]
    for stage, filters in enumerate((64, 128, 256, 512)):
        filters //= narrow
        for block in range(2):
            strides = 2 if block == 0 and stage > 0 else 1
            path = [convolve(channels, filters, 3, strides), convolve(filters, filters, 3, 1, None)]
            skip = nn.Identity() if strides == 1 else convolve(channels, filters, 1, strides, None)
            layers += [Branches(add, nn.Sequential(*path), skip), nn.ReLU()]
            channels = filters
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)]
    return nn.Sequential(*layers), *images(32)


def densenet(tiny):
    growth = 4 if tiny else 12
    channels = 2 * growth
    layers = [nn.Conv2d(3, channels, 3, padding=1, bias=False)]
    for block in range(3):
        for _ in range(2 if tiny else 6):
            path = [nn.BatchNorm2d(channels), nn.ReLU()]
            path += [nn.Conv2d(channels, 4 * growth, 1, bias=False)]
            path += [nn.BatchNorm2d(4 * growth), nn.ReLU()]
            path += [nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)]
            layers.append(Branches(concatenate, nn.Identity(), nn.Sequential(*path)))
            channels += growth
        layers += [nn.BatchNorm2d(channels), nn.ReLU()]
        if block < 2:
            layers += [nn.Conv2d(channels, channels // 2, 1, bias=False), nn.AvgPool2d(2)]
            channels //= 2
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)]
    return nn.Sequential(*layers), *images(32)


def inverted(channels, filters, strides, expansion, activation, squeezes):
    width = channels * expansion
    path = [convolve(channels, width, 1, activation=activation)]
    path.append(convolve(width, width, 3, strides, activation, groups=width))
    if squeezes:
        narrow = max(1, channels // 4)
        squeeze = [nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, narrow, 1), activation()]
        squeeze += [nn.Conv2d(narrow, width, 1), nn.Sigmoid()]
        path.append(Branches(torch.mul, nn.Identity(), nn.Sequential(*squeeze)))
    path = nn.Sequential(*path, convolve(width, filters, 1, activation=None))
    return Branches(add, nn.Identity(), path) if strides == 1 and channels == filters else path


def mobilenet(tiny, activation=nn.ReLU, squeezes=False):
    channels = 8 if tiny else 16
    layers = [convolve(3, channels, 3, 2, activation)]
    for filters, repeats, strides in ((16, 2, 1), (24, 2, 2), (40, 3, 2), (80, 3, 2)):
        filters = max(8, filters // 4) if tiny else filters
        for block in range(1 if tiny else repeats):
            first = strides if block == 0 else 1
            layers.append(
                inverted(channels, filters, first, 2 if tiny else 6, activation, squeezes)
            )
            channels = filters
    last = 16 if tiny else 320
    layers += [convolve(channels, last, 1, activation=activation), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(last, 10)), *images(
        32 if tiny else 64, batch=16
    )


def efficientnet(tiny):
    return mobilenet(tiny, nn.SiLU, True)


class UNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        double = lambda channels, filters: nn.Sequential(
            convolve(channels, filters, 3), convolve(filters, filters, 3)
        )
        widths = [width << level for level in range(4)]
        inputs = [3, *widths[:2]]
        self.down = nn.ModuleList([double(a, b) for a, b in zip(inputs, widths[:3], strict=True)])
        self.bottom = convolve(widths[2], widths[3], 3)
        levels = (2, 1, 0)
        self.up = nn.ModuleList(
            [nn.ConvTranspose2d(widths[n + 1], widths[n], 2, 2) for n in levels]
        )
        self.join = nn.ModuleList([double(2 * widths[n], widths[n]) for n in levels])
        self.out = nn.Conv2d(width, 3, 1)

    def forward(self, x):
        skips = []
        for layer in self.down:
            skips.append(layer(x))
            x = F.max_pool2d(skips[-1], 2)
        x = self.bottom(x)
        for up, join, skip in zip(self.up, self.join, reversed(skips), strict=True):
            x = join(torch.cat([up(x), skip], 1))
        return self.out(x)


def unet(tiny):
    x, _, batch = images(32 if tiny else 64, batch=8)
    return UNet(4 if tiny else 16), x, x.argmax(1), batch


def conv3d(tiny):
    side, filters, layers, channels = 12 if tiny else 24, 4 if tiny else 16, [], 1
    for level in range(2):
        width = filters << level
        layers += [nn.Conv3d(channels, width, 3, padding=1), nn.ReLU(), nn.MaxPool3d(2)]
        layers.append(nn.BatchNorm3d(width))
        channels = width
    layers += [nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(channels, 10)]
    x = torch.rand(count(8), 1, side, side, side)
    return nn.Sequential(*layers), x, torch.randint(0, 10, (len(x),)), 8


def audio(tiny):
    layers, channels = [], 1
    for level, size in enumerate((80, 3, 3, 3)):
        filters = (4 if tiny else 32) << (level // 2)
        layers.append(nn.Conv1d(channels, filters, size, 4 if level == 0 else 1, size // 2))
        layers += [nn.BatchNorm1d(filters), nn.ReLU(), nn.MaxPool1d(4)]
        channels = filters
    layers += [nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(channels, 10)]
    x = torch.randn(count(16), 1, 1024 if tiny else 8000)
    return nn.Sequential(*layers), x, torch.randint(0, 10, (len(x),)), 16


def lstm(tiny, make=nn.LSTM):
    width = 8 if tiny else 64
    x = torch.randn(count(32), 12 if tiny else 60, width)
    return Recurrent(make, width, width, 2), x, torch.randint(0, 10, (len(x),)), 32


def gru(tiny):
    return lstm(tiny, nn.GRU)


def encoder(tiny):
    width, vocabulary, length = (8, 200, 16) if tiny else (128, 5000, 80)
    layers = [nn.Embedding(vocabulary, width), Positions(length, width)]
    layers += [Attend(2 if tiny else 4, width) for _ in range(1 if tiny else 3)]
    x = torch.randint(0, vocabulary, (count(32), length))
    y = torch.randint(0, 2, (len(x),))
    return nn.Sequential(*layers, mean_over_time(), nn.Linear(width, 2)), x, y, 32


def language_model(tiny):
    vocabulary, width, heads, depth, length = (64, 16, 2, 1, 16) if tiny else (4096, 192, 4, 4, 96)
    batch = 4 if tiny else 8
    x = torch.randint(0, vocabulary, (count(batch), length))
    return make_decoder(vocabulary, width, heads, depth, length), x, x.roll(-1, 1), batch


def make_decoder(vocabulary, width, heads, depth, longest):
    layers = [nn.Embedding(vocabulary, width), Positions(longest, width)]
    layers += [Attend(heads, width, F.relu, True) for _ in range(depth)]
    return nn.Sequential(*layers, nn.LayerNorm(width), nn.Linear(width, vocabulary))


def vit(tiny):
    width = 16 if tiny else 96
    layers = [nn.Conv2d(3, width, 4, 4), Call(lambda x: x.flatten(2).transpose(1, 2))]
    layers.append(Positions(64, width))
    layers += [Attend(2 if tiny else 3, width, F.gelu) for _ in range(1 if tiny else 4)]
    layers += [nn.LayerNorm(width), mean_over_time(), nn.Linear(width, 10)]
    return nn.Sequential(*layers), *images(32)


def autoencoder(tiny):
    a = 4 if tiny else 32
    b = a // 2
    layers = [nn.Conv2d(1, a, 3, 2, 1), nn.ReLU(), nn.Conv2d(a, b, 3, 2, 1), nn.ReLU()]
    layers += [nn.ConvTranspose2d(b, b, 3, 2, 1, 1), nn.ReLU()]
    layers += [nn.ConvTranspose2d(b, a, 3, 2, 1, 1), nn.ReLU(), nn.Conv2d(a, 1, 3, padding=1)]
    x, _, batch = images(28, 1)
    return nn.Sequential(*layers), x, x, batch


def chain(tiny, blocks):
    layers = [nn.Conv2d(3, 16, 3, padding=1)]
    for _ in range(4 if tiny else blocks):
        path = convolve(16, 16, 3, activation=None)
        layers += [Branches(add, nn.Identity(), path), nn.ReLU()]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)]
    return nn.Sequential(*layers), *images(8 if tiny else 16)


class ChannelNorm(nn.LayerNorm):
    """Layer normalization of images."""

    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def convnext(tiny):
    layers, channels = [], 3
    for stage, width in enumerate((8, 16) if tiny else (32, 64, 128)):
        strides = 2 if stage else 4
        layers += [nn.Conv2d(channels, width, strides, strides), ChannelNorm(width)]
        for _ in range(1 if tiny else 2):
            path = [nn.Conv2d(width, width, 7, padding=3, groups=width)]
            path += [Call(lambda x: x.permute(0, 2, 3, 1)), nn.LayerNorm(width, 1e-6)]
            path += [nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)]
            path.append(Call(lambda x: x.permute(0, 3, 1, 2)))
            layers.append(Branches(add, nn.Identity(), nn.Sequential(*path)))
        channels = width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(channels)]
    return nn.Sequential(*layers, nn.Linear(channels, 10)), *images(32 if tiny else 64, batch=16)


class Diffusion(nn.Module):
    """The network of a diffusion model, and its loss."""

    def __init__(self, widths, features, side):
        super().__init__()
        self.features, self.side = features, side
        self.first = nn.Conv2d(3, widths[0], 1)
        channels, skips = widths[0] + 2 * features, []
        self.down, self.bottom, self.up = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for width in widths[:-1]:
            for _ in range(2):
                self.down.append(self.make_block(channels, width))
                channels = width
                skips.append(width)
        for _ in range(2):
            self.bottom.append(self.make_block(channels, widths[-1]))
            channels = widths[-1]
        for width in reversed(widths[:-1]):
            for _ in range(2):
                self.up.append(self.make_block(channels + skips.pop(), width))
                channels = width
        self.last = nn.Conv2d(channels, 3, 1)

    def make_block(self, channels, width):
        path = [nn.BatchNorm2d(channels, affine=False), nn.Conv2d(channels, width, 3, padding=1)]
        path += [nn.SiLU(), nn.Conv2d(width, width, 3, padding=1)]
        skip = nn.Identity() if channels == width else nn.Conv2d(channels, width, 1)
        return Branches(add, nn.Sequential(*path), skip)

    def forward(self, x, share=None):
        share = torch.full((len(x), 1, 1, 1), 0.5) if share is None else share
        waves = 6.2832 * torch.exp(torch.arange(self.features) * (6.9 / self.features))
        waves = share * waves[:, None, None]
        wide = torch.cat([torch.sin(waves), torch.cos(waves)], 1)
        wide = wide.expand(-1, -1, self.side, self.side)
        x, skips = torch.cat([self.first(x), wide], 1), []
        for i, block in enumerate(self.down):
            x = block(x)
            skips.append(x)
            x = F.avg_pool2d(x, 2) if i % 2 else x
        for block in self.bottom:
            x = block(x)
        for i, block in enumerate(self.up):
            if not i % 2:
                x = F.interpolate(x, scale_factor=2, mode="bilinear")
            x = block(torch.cat([x, skips.pop()], 1))
        return self.last(x)


def learn_noise(forward, images):
    noise, angle = torch.randn_like(images), torch.rand(len(images), 1, 1, 1) * 1.45 + 0.05
    noisy = torch.cos(angle) * images + torch.sin(angle) * noise
    return (forward(noisy, torch.sin(angle) ** 2).float() - noise).abs().mean()


def diffusion(tiny):
    widths, side = ((4, 8, 8), 16) if tiny else ((32, 64, 96), 32)
    x, _, batch = images(side, batch=8)
    model = Diffusion(widths, 4 if tiny else 16, side)
    model.compute_loss = learn_noise
    return model, x, None, batch


class Causal(nn.Conv1d):
    """A convolution that reads no later value."""

    def forward(self, x):
        return super().forward(F.pad(x, (self.dilation[0] * (self.kernel_size[0] - 1), 0)))


class WaveNet(nn.Module):
    def __init__(self, width, levels, repeats):
        super().__init__()
        self.first = Causal(1, width, 2)
        rates = [1 << level for level in range(levels)] * repeats
        make = lambda rate: nn.ModuleList(
            [
                *[Causal(width, width, 2, dilation=rate) for _ in range(2)],
                *[nn.Conv1d(width, width, 1) for _ in range(2)],
            ]
        )
        self.blocks = nn.ModuleList([make(rate) for rate in rates])
        head = [nn.ReLU(), nn.Conv1d(width, width, 1), nn.ReLU(), nn.Conv1d(width, 64, 1)]
        self.head = nn.Sequential(*head)

    def forward(self, x):
        x, skips = self.first(x), 0
        for shape, gate, skip, residual in self.blocks:
            y = torch.tanh(shape(x)) * torch.sigmoid(gate(x))
            skips = skips + skip(y)
            x = x + residual(y)
        return self.head(skips).transpose(1, 2)


def wavenet(tiny):
    length = 64 if tiny else 1024
    model = WaveNet(8, 3, 1) if tiny else WaveNet(32, 6, 2)
    x = torch.randn(count(8), 1, length)
    return model, x, torch.randint(0, 64, (len(x), length)), 8


def separable(tiny):
    channels = 8 if tiny else 32
    layers = [convolve(3, channels, 3, 2)]
    for width in (8, 16) if tiny else (64, 128, 256):
        path, wide = [], channels
        for _ in range(2):
            path += [nn.ReLU(), nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False)]
            path += [nn.Conv2d(wide, width, 1, bias=False), nn.BatchNorm2d(width)]
            wide = width
        path.append(nn.MaxPool2d(3, 2, 1))
        skip = convolve(channels, width, 1, 2, None)
        layers.append(Branches(add, nn.Sequential(*path), skip))
        channels = width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)]
    return nn.Sequential(*layers), *images(16 if tiny else 64, batch=16)


def inception(tiny):
    width = 4 if tiny else 16
    channels, layers = 2 * width, [convolve(3, 2 * width, 3)]
    for block in range(4):
        wide = width << (block // 2)
        branches = [convolve(channels, wide, 1)]
        branches.append(nn.Sequential(convolve(channels, wide, 1), convolve(wide, 2 * wide, 3)))
        narrow = convolve(channels, wide // 2, 1)
        branches.append(nn.Sequential(narrow, convolve(wide // 2, wide, 5)))
        branches.append(nn.Sequential(nn.MaxPool2d(3, 1, 1), convolve(channels, wide, 1)))
        layers.append(Branches(concatenate, *branches))
        layers += [nn.MaxPool2d(2)] if block == 1 else []
        channels = 5 * wide
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)]
    return nn.Sequential(*layers), *images(16 if tiny else 32)


def small(tiny):
    width, x = 16 if tiny else 64, torch.randn(count(32), 20)
    layers = [nn.Linear(20, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(width, 1))
    model.loss = F.mse_loss
    return model, x, x[:, :1] * 0.5, 32


class Factors(nn.Module):
    def __init__(self, rows, width):
        super().__init__()
        self.vectors = nn.ModuleList([nn.Embedding(rows, width) for _ in range(2)])
        self.biases = nn.ModuleList([nn.Embedding(rows, 1) for _ in range(2)])

    def forward(self, x):
        a, b = (table(x[:, i]) for i, table in enumerate(self.vectors))
        biases = [table(x[:, i]) for i, table in enumerate(self.biases)]
        return (a * b).sum(1, keepdim=True) + biases[0] + biases[1]


def factors(tiny):
    rows, width = (50, 8) if tiny else (20000, 32)
    x = torch.randint(0, rows, (count(256), 2))
    model = Factors(rows, width)
    model.loss = F.mse_loss
    return model, x, (x.sum(1) % 5).float()[:, None], 256


class Interactions(nn.Module):
    """Vectors of categories with numbers: products of pairs, or a linear and a deep model."""

    def __init__(self, tables, rows, width, has_products):
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(rows, width) for _ in range(tables)])
        self.has_products = has_products
        if has_products:
            layers = [nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, width), nn.ReLU()]
            self.numbers = nn.Sequential(*layers)
            channels, layers, widths = width + (tables + 1) ** 2, [], (64, 32)
        else:
            channels, layers, widths = 13 + tables * width, [], (128, 64, 32)
            self.linear = nn.Linear(channels, 1)
        for units in widths:
            layers += [nn.Linear(channels, units), nn.ReLU()]
            channels = units
        self.deep = nn.Sequential(*layers, nn.Linear(channels, 1))

    def forward(self, inputs):
        numbers, categories = inputs
        vectors = [table(categories[:, i]) for i, table in enumerate(self.tables)]
        if not self.has_products:
            x = torch.cat([numbers, *vectors], 1)
            return self.linear(x) + self.deep(x)
        x = self.numbers(numbers)
        every = torch.stack([x, *vectors], 1)
        return self.deep(torch.cat([x, (every @ every.mT).flatten(1)], 1))


def dlrm(tiny, has_products=True):
    tables, rows, width = (3, 20, 4) if tiny else (12, 5000, 16)
    x = torch.randn(count(64), 13), torch.randint(0, rows, (count(64), tables))
    y = torch.randint(0, 2, (count(64), 1)).float()
    return Interactions(tables, rows, width, has_products), x, y, 64


def wide_deep(tiny):
    return dlrm(tiny, False)


class Translator(nn.Module):
    """An encoder and a decoder of GRUs with additive attention between them."""

    def __init__(self, vocabulary, units):
        super().__init__()
        self.embeddings = nn.ModuleList([nn.Embedding(vocabulary, units) for _ in range(2)])
        self.units = nn.ModuleList([nn.GRU(units, units, batch_first=True) for _ in range(2)])
        self.scale = nn.Parameter(torch.randn(units) * 0.1)
        self.out = nn.Linear(2 * units, vocabulary)

    def forward(self, texts):
        memory, state = self.units[0](self.embeddings[0](texts[0]))
        y, _ = self.units[1](self.embeddings[1](texts[1]), state)
        scores = torch.tanh(y[:, :, None] + memory[:, None]) @ self.scale
        return self.out(torch.cat([y, scores.softmax(-1) @ memory], 2))


def seq2seq(tiny):
    vocabulary, units, length = (50, 8, 8) if tiny else (2000, 64, 24)
    x = torch.randint(0, vocabulary, (count(32), length))
    return Translator(vocabulary, units), (x, x.flip(1)), x.roll(1, 1), 32


class Same(nn.Conv2d):
    """A convolution with strides that pads as Keras does."""

    def forward(self, x):
        sides = [max(self.kernel_size[0] - self.stride[0], 0)] * 2
        pads = [pad for side in sides for pad in (side // 2, side - side // 2)]
        return super().forward(F.pad(x, pads))


class AdversarialPair(nn.Module):
    """A generator and a critic with their optimizers."""

    def __init__(self, filters, latent, penalty):
        super().__init__()
        self.latent, self.penalty = latent, penalty
        layers = [nn.Linear(latent, 49 * filters), nn.Unflatten(1, (filters, 7, 7))]
        for _ in range(2):
            layers += [nn.BatchNorm2d(filters), nn.LeakyReLU(0.3)]
            layers.append(nn.ConvTranspose2d(filters, filters, 4, 2, 1))
        self.generator = nn.Sequential(*layers, nn.Conv2d(filters, 1, 5, padding=2), nn.Tanh())
        layers, channels = [], 1
        for level in range(2):
            layers += [Same(channels, filters << level, 4, 2), nn.LeakyReLU(0.3), nn.Dropout(0.3)]
            channels = filters << level
        self.critic = nn.Sequential(*layers, nn.Flatten(), nn.Linear(49 * channels, 1))
        self.generate, self.judge = self.generator, self.critic
        adam = lambda part, rate, beta: torch.optim.Adam(
            part.parameters(), rate, betas=(beta, 0.999), fused=True
        )
        self.optimizer = adam(self.generator, 1e-3, 0.9)
        self.critic_optimizer = adam(self.critic, 1e-4, 0.5)

    def compile_parts(self):
        self.generate, self.judge = torch.compile(self.generator), torch.compile(self.critic)

    def forward(self, z):
        return self.generate(z)

    def compute_critic_loss(self, real, fake):
        true, false = self.judge(real), self.judge(fake)
        if self.penalty is None:
            compare = F.binary_cross_entropy_with_logits
            return compare(true, torch.ones_like(true)) + compare(false, torch.zeros_like(false))
        between = real + torch.rand(len(real), 1, 1, 1) * (fake - real)
        between.requires_grad_()
        # Compiled functions have no second derivatives.
        judged = self.critic(between).sum()
        (slopes,) = torch.autograd.grad(judged, between, create_graph=True)
        norms = (slopes.square().sum((1, 2, 3)) + 1e-12).sqrt()
        return false.mean() - true.mean() + self.penalty * (norms - 1).square().mean()

    def train_step(self, real, autocast):
        draw = lambda: self.generate(torch.randn(len(real), self.latent))
        for _ in range(1 if self.penalty is None else 2):
            with autocast():
                with torch.no_grad():
                    fake = draw()
                loss = self.compute_critic_loss(real, fake)
            self.critic_optimizer.zero_grad()
            loss.backward()
            self.critic_optimizer.step()
        with autocast():
            judged = self.judge(draw())
            if self.penalty is None:
                loss = F.binary_cross_entropy_with_logits(judged, torch.ones_like(judged))
            else:
                loss = -judged.mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


def dcgan(tiny, penalty=None):
    x, _, batch = images(28, 1)
    model = AdversarialPair(4 if tiny else 32, 8 if tiny else 64, penalty)
    model.samples = torch.randn(len(x), model.latent)
    return model, x, None, batch


def wgan_gp(tiny):
    return dcgan(tiny, 10.0)


def text_conv(tiny):
    vocabulary, width, filters, length = (200, 8, 8, 16) if tiny else (5000, 64, 128, 80)
    layers = [nn.Embedding(vocabulary, width), Call(lambda x: x.transpose(1, 2))]
    layers += [nn.Conv1d(width, filters, 5), nn.ReLU(), Call(lambda x: x.amax(2))]
    layers += [nn.Linear(filters, filters), nn.ReLU(), nn.Linear(filters, 2)]
    x = torch.randint(0, vocabulary, (count(32), length))
    return nn.Sequential(*layers), x, torch.randint(0, 2, (len(x),)), 32


class Distance(nn.Module):
    def __init__(self, filters):
        super().__init__()
        layers = [nn.Conv2d(1, filters, 3), nn.ReLU(), nn.MaxPool2d(2)]
        layers += [nn.Conv2d(filters, filters, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
        self.tower = nn.Sequential(*layers, nn.Flatten(), nn.Linear(filters, filters))
        self.out = nn.Linear(filters, 1)

    def forward(self, pair):
        return self.out((self.tower(pair[0]) - self.tower(pair[1])).abs())


def siamese(tiny):
    x, y, batch = images(28, 1, classes=2)
    return Distance(4 if tiny else 32), (x, x.flip(0)), y.float()[:, None], batch


class Trainer:
    """A model and Adam, for floats of 32 bits or with autocast to bfloat16."""

    def __init__(self, model, is_compiled, is_bfloat16=False, **options):
        self.model = model.to(memory_format=torch.channels_last) if _has_images(model) else model
        self.autocast = lambda: torch.autocast("cpu", torch.bfloat16, enabled=is_bfloat16)
        self.forward = torch.compile(self.model, **options) if is_compiled else self.model
        if hasattr(model, "train_step"):
            if is_compiled:
                model.compile_parts()
            self.step = lambda x, y: model.train_step(x, self.autocast)
        else:
            self.optimizer = torch.optim.Adam(model.parameters(), 1e-3, fused=True)

    def compute_loss(self, x, y):
        if hasattr(self.model, "compute_loss"):
            return self.model.compute_loss(self.forward, x)
        out = self.forward(x)
        if hasattr(self.model, "loss"):
            return self.model.loss(out, y)
        if y.dtype == torch.float32:
            return F.binary_cross_entropy_with_logits(out, y)
        if y.ndim > 1 and out.shape[:-1] == y.shape:
            return F.cross_entropy(out.flatten(0, -2), y.flatten())
        return F.cross_entropy(out, y)

    def step(self, x, y):
        with self.autocast():
            loss = self.compute_loss(x, y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    @torch.inference_mode()
    def predict(self, x):
        with self.autocast():
            return self.forward(x)


def cut(data, part):
    if data is None:
        return None
    if isinstance(data, tuple):
        return tuple(cut(a, part) for a in data)
    return data[part] if isinstance(part, slice) else data[torch.from_numpy(part % len(data))]


def _has_images(model):
    return any(isinstance(module, nn.Conv2d) for module in model.modules())


def run_fit(row, name, tiny, is_compiled):
    start = cpu_seconds()
    if row == "chains":
        model, x, y, batch = chain(tiny, int(name.split("_")[1]))
    else:
        model, x, y, batch = globals()[name](tiny)
    trainer = Trainer(model, is_compiled)
    rows = len(x[0]) if isinstance(x, tuple) else len(x)
    for first in range(0, rows, batch):
        part = slice(first, first + batch)
        loss = trainer.step(cut(x, part), cut(y, part))
    result = {"cpu_s": cpu_seconds() - start, "peak_mb": read_peak_mb(), "loss": loss}
    times = []
    while len(times) < (4 if tiny else 12) or sum(times) < (0.0 if tiny else 2.0):
        begin = time.perf_counter()
        for step in range(STEPS):
            part = slice(step * batch, (step + 1) * batch)
            trainer.step(cut(x, part), cut(y, part))
        times.append((time.perf_counter() - begin) / STEPS)
    return result | {
        "step_ms": statistics.median(times[2:]) * 1e3,
        "total_cpu_s": cpu_seconds() - start,
        "total_peak_mb": read_peak_mb(),
    }


class SteadySteps:
    """Times of training steps and predictions of a model that is ready."""

    def __init__(self, name, precision, options, is_compiled):
        self._seconds = options["seconds"]
        self._model, x, y, batch = globals()[name](options["tiny"])
        settings = {"mode": "max-autotune-no-cudagraphs"} if options.get("autotune") else {}
        self._trainer = Trainer(self._model, is_compiled, precision == "bfloat16", **settings)
        batch = options["batch"] or batch
        # Examples are repeated if the batch is larger than the model's.
        parts = [np.arange(i * batch, (i + 1) * batch) for i in range(STEPS)]
        self._batches = [(cut(x, part), cut(y, part)) for part in parts]
        samples = getattr(self._model, "samples", x)
        self._samples = [cut(samples, part) for part in parts]
        self.loss = [self._trainer.step(*pair) for pair in self._batches][-1]
        self.measure()

    def measure(self):
        self._model.train()
        step = self._repeat(lambda i: self._trainer.step(*self._batches[i]))
        self._model.eval()
        return {
            "step_ms": step,
            "predict_ms": self._repeat(lambda i: self._trainer.predict(self._samples[i])),
        }

    def _repeat(self, run):
        run(0)
        begin, count = time.perf_counter(), 0
        while count < STEPS or time.perf_counter() - begin < self._seconds:
            run(count % STEPS)
            count += 1
        return (time.perf_counter() - begin) / count * 1e3


def run_texts(name, tiny, is_compiled):
    vocabulary, width, batch = (100, 8, 4) if tiny else (2000, 64, 16)
    start = cpu_seconds()
    head = [nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2)]
    if name == "masked":
        model = Masked(vocabulary, width)
    else:
        body = {
            "conv": lambda: [
                Call(lambda x: x.transpose(1, 2)),
                nn.Conv1d(width, width, 5, padding=2),
                nn.ReLU(),
                Call(lambda x: x.amax(2)),
            ],
            "lstm": lambda: [Recurrent(nn.LSTM, width, width, 1, width), nn.ReLU()],
            "attention": lambda: [Attend(2, width), mean_over_time()],
        }[name]()
        model = nn.Sequential(nn.Embedding(vocabulary, width), *body, *head)
    trainer = Trainer(model, is_compiled)
    rng = np.random.default_rng(0)
    for length in rng.permutation(np.arange(10, 10 + (6 if tiny else NUM_LENGTHS))):
        x = torch.from_numpy(rng.integers(1, vocabulary, (batch, length)))
        loss = trainer.step(x, torch.randint(0, 2, (batch,)))
    return {"cpu_s": cpu_seconds() - start, "peak_mb": read_peak_mb(), "loss": loss}


def run_decoding(name, tiny, is_compiled):
    vocabulary, width, depth, longest = (50, 16, 1, 64) if tiny else (1000, 128, 4, 64)
    model = make_decoder(vocabulary, width, 2, depth, longest).eval()
    start = cpu_seconds()
    forward = torch.compile(model) if is_compiled else model
    text = torch.randint(0, vocabulary, (1, 5))
    with torch.no_grad():
        for _ in range(5 if tiny else NUM_TOKENS):
            text = torch.cat([text, forward(text)[:, -1:].argmax(-1)], 1)
    return {"cpu_s": cpu_seconds() - start, "peak_mb": read_peak_mb()}


def main():
    column, case, settings = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    row, name = case.split(":", 1)
    cores = 1 if row == "chains" else settings.get("cores")
    if cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
        torch.set_num_threads(cores)
    torch.manual_seed(0)
    is_compiled = "compile" in column
    if row == "steady":
        name, precision = name.split(",")[:2]
        settings["autotune"] = column.endswith("autotune")
        steady = SteadySteps(name, precision, settings, is_compiled)
        print(json.dumps({"loss": steady.loss, "version": torch.__version__}), flush=True)
        for _ in sys.stdin:
            print(json.dumps(steady.measure()), flush=True)
        return
    arguments = name, settings["tiny"], is_compiled
    if row == "text":
        result = run_texts(*arguments)
    elif row == "decode":
        result = run_decoding(*arguments)
    else:
        result = run_fit(row, *arguments)
    print(json.dumps(result | {"version": torch.__version__}))


if __name__ == "__main__":
    main()

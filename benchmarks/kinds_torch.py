"""Runs one case of kinds.py with PyTorch: `kinds_torch.py "torch"|"torch compile" CASE SETTINGS`. Prints one JSON object.

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


class Trainer:
    """A model and Adam."""

    def __init__(self, model, is_compiled):
        self.model = model.to(memory_format=torch.channels_last) if _has_images(model) else model
        self.forward = torch.compile(self.model) if is_compiled else self.model
        self.optimizer = torch.optim.Adam(model.parameters(), 1e-3)

    def step(self, x, y):
        out = self.forward(x)
        if y.dtype == torch.float32:
            loss = F.binary_cross_entropy_with_logits(out, y)
        elif y.ndim == 2:
            loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        else:
            loss = F.cross_entropy(out, y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


def _has_images(model):
    return any(isinstance(module, nn.Conv2d) for module in model.modules())


def run_fit(row, name, tiny, is_compiled):
    start = cpu_seconds()
    if row == "chains":
        model, x, y, batch = chain(tiny, int(name.split("_")[1]))
    else:
        model, x, y, batch = globals()[name](tiny)
    trainer = Trainer(model, is_compiled)
    for first in range(0, len(x), batch):
        loss = trainer.step(x[first : first + batch], y[first : first + batch])
    result = {"cpu_s": cpu_seconds() - start, "peak_mb": read_peak_mb(), "loss": loss}
    times = []
    while len(times) < (4 if tiny else 12) or sum(times) < (0.0 if tiny else 2.0):
        begin = time.perf_counter()
        for step in range(STEPS):
            part = slice(step * batch, (step + 1) * batch)
            trainer.step(x[part], y[part])
        times.append((time.perf_counter() - begin) / STEPS)
    return result | {
        "step_ms": statistics.median(times[2:]) * 1e3,
        "total_cpu_s": cpu_seconds() - start,
        "total_peak_mb": read_peak_mb(),
    }


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
    row, name = case.split(":")
    if row == "chains":
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        torch.set_num_threads(1)
    torch.manual_seed(0)
    arguments = name, settings["tiny"], column.endswith("compile")
    if row == "text":
        result = run_texts(*arguments)
    elif row == "decode":
        result = run_decoding(*arguments)
    else:
        result = run_fit(row, *arguments)
    print(json.dumps(result | {"version": torch.__version__}))


if __name__ == "__main__":
    main()

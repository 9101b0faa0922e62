"""PyTorch's twins of the models of gpu.py: `gpu_torch.py PART SETTINGS` answers orders such as `eager 20` or `compile 20`.

The models, batch sizes, dtypes and optimizers are those of gpu_models.py, written as PyTorch's users write them.
"""

import itertools
import json
import os
import sys
import time
import traceback

STARTED = float(os.environ.get("GPU_STARTED", time.time()))

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FUSED = {"fused": True} if DEVICE == "cuda" else {}


def say(**result):
    print("@@ " + json.dumps(result), flush=True)


def failure(error):
    """An exception as text, with the end of its traceback."""
    lines = "".join(traceback.format_exception(error)).strip().splitlines()
    return {"error": f"{type(error).__name__}: {str(error)[:600]}", "traceback": lines[-16:]}


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        n, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).split(width, 2)
        q, k, v = (a.view(n, length, self.heads, -1).transpose(1, 2) for a in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(n, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.tokens = nn.Embedding(s["vocabulary"], s["width"])
        self.places = nn.Embedding(s["length"], s["width"])
        self.blocks = nn.Sequential(*[Block(s["width"], s["heads"]) for _ in range(s["depth"])])
        self.norm = nn.LayerNorm(s["width"])
        self.head = nn.Linear(s["width"], s["vocabulary"], bias=False)
        for table in (self.tokens, self.places):
            nn.init.normal_(table.weight, std=0.02)
        self.head.weight = self.tokens.weight

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.blocks(x)))


def gpt2(s):
    text = np.random.default_rng(0).integers(
        0, s["vocabulary"], (8 * s["batch"], s["length"] + 1), dtype=np.int32
    )
    loss = lambda out, y: F.cross_entropy(out.flatten(0, 1), y.flatten().long())
    make = lambda p: torch.optim.AdamW(p, 3e-4, weight_decay=0.1, **FUSED)
    return lambda: GPT2(s), make, loss, (text[:, :-1],), text[:, 1:], torch.bfloat16


class Bottleneck(nn.Module):
    def __init__(self, channels, width, strides, changes):
        super().__init__()
        parts = []
        for i, (a, b, size, stride) in enumerate(
            ((channels, width, 1, 1), (width, width, 3, strides), (width, 4 * width, 1, 1))
        ):
            parts += [nn.Conv2d(a, b, size, stride, size // 2, bias=False), nn.BatchNorm2d(b)]
            parts += [nn.ReLU(inplace=True)] if i < 2 else []
        self.body = nn.Sequential(*parts)
        self.skip = nn.Identity()
        if changes:
            convolution = nn.Conv2d(channels, 4 * width, 1, strides, bias=False)
            self.skip = nn.Sequential(convolution, nn.BatchNorm2d(4 * width))

    def forward(self, x):
        return F.relu(self.body(x) + self.skip(x), inplace=True)


class ResNet(nn.Module):
    def __init__(self, s):
        super().__init__()
        channels = s["widths"][0]
        parts = [nn.Conv2d(3, channels, 7, 2, 3, bias=False), nn.BatchNorm2d(channels)]
        parts += [nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
        for stage, (width, count) in enumerate(zip(s["widths"], s["blocks"], strict=True)):
            for block in range(count):
                strides = 2 if block == 0 and stage else 1
                parts.append(Bottleneck(channels, width, strides, block == 0))
                channels = 4 * width
        self.body = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(channels, s["classes"])

    def forward(self, images):
        x = images.permute(0, 3, 1, 2).to(torch.bfloat16) / 127.5 - 1.0
        return self.head(self.body(x.contiguous(memory_format=torch.channels_last)))


def resnet50(s):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (4 * s["batch"], s["side"], s["side"], 3), dtype=np.uint8)
    y = rng.integers(0, s["classes"], len(x), dtype=np.int32)
    loss = lambda out, y: F.cross_entropy(out.float(), y.long())
    make = lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, **FUSED)
    build = lambda: ResNet(s).to(memory_format=torch.channels_last)
    return build, make, loss, (x,), y, torch.bfloat16


class Recurrent(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.table = nn.Embedding(s["vocabulary"], s["width"])
        self.layers = nn.LSTM(s["width"], s["units"], 2, batch_first=True)
        self.head = nn.Linear(s["units"], s["classes"])

    def forward(self, tokens):
        return self.head(self.layers(self.table(tokens))[0][:, -1])


def lstm(s):
    rng = np.random.default_rng(0)
    x = rng.integers(0, s["vocabulary"], (4 * s["batch"], s["length"]), dtype=np.int32)
    y = rng.integers(0, s["classes"], len(x), dtype=np.int32)
    loss = lambda out, y: F.cross_entropy(out.float(), y.long())
    make = lambda p: torch.optim.Adam(p, 1e-3, **FUSED)
    return lambda: Recurrent(s), make, loss, (x,), y, torch.bfloat16


class DLRM(nn.Module):
    def __init__(self, s):
        super().__init__()
        tables, rows, width = s["tables"], s["rows"], s["width"]
        self.table = nn.Embedding(tables * rows, width, sparse=True)
        self.register_buffer("first_rows", torch.arange(tables) * rows)
        pairs = torch.tril_indices(tables + 1, tables + 1, -1)
        self.register_buffer("pairs", pairs[0] * (tables + 1) + pairs[1])
        sizes = [13, *s["bottom"], width]
        bottom = [(nn.Linear(a, b), nn.ReLU()) for a, b in itertools.pairwise(sizes)]
        self.bottom = nn.Sequential(*[part for pair in bottom for part in pair])
        sizes = [pairs.shape[1] + width, *s["top"]]
        top = [(nn.Linear(a, b), nn.ReLU()) for a, b in itertools.pairwise(sizes)]
        self.top = nn.Sequential(*[part for pair in top for part in pair], nn.Linear(sizes[-1], 1))

    def forward(self, numbers, categories):
        numbers = self.bottom(numbers)
        every = torch.cat([numbers[:, None], self.table(categories + self.first_rows)], 1)
        products = torch.bmm(every, every.transpose(1, 2)).flatten(1)
        return self.top(torch.cat([numbers, products[:, self.pairs]], 1))


def dlrm(s):
    rng = np.random.default_rng(0)
    count = 4 * s["batch"]
    numbers = rng.normal(size=(count, 13)).astype(np.float32)
    categories = rng.integers(0, s["rows"], (count, s["tables"]), dtype=np.int32)
    y = rng.integers(0, 2, (count, 1)).astype(np.float32)
    make = lambda p: torch.optim.SGD(p, 0.1)
    loss = F.binary_cross_entropy_with_logits
    return lambda: DLRM(s), make, loss, (numbers, categories), y, None


class Training:
    """A model that trains on batches in pinned memory of the host, plainly or compiled."""

    def __init__(self, parts, batch, compiled):
        build, make, self.loss, xs, y, self.dtype = parts
        torch.manual_seed(0)
        self.model = build().to(DEVICE)
        self.optimizer = make(self.model.parameters())
        self.call = torch.compile(self.model) if compiled else self.model
        arrays = [torch.from_numpy(np.ascontiguousarray(a)) for a in (*xs, y)]
        self.arrays = [a.pin_memory() if DEVICE == "cuda" else a for a in arrays]
        self.batch, self.at = batch, 0

    def step(self):
        self.at = (self.at + self.batch) % len(self.arrays[0])
        rows = slice(self.at, self.at + self.batch)
        *xs, y = (a[rows].to(DEVICE, non_blocking=True) for a in self.arrays)
        with torch.autocast(DEVICE, self.dtype, enabled=self.dtype is not None):
            loss = self.loss(self.call(*xs), y)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss

    def run(self, steps):
        start = time.perf_counter()
        for _ in range(steps):
            loss = self.step()
        value = float(loss)
        return time.perf_counter() - start, value


def main(part, settings):
    """Answer commands: `prepare eager` compiles and warms up, `eager 20` runs 20 steps, and the
    same for `compile`."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    parts = {"gpt2": gpt2, "resnet50": resnet50, "lstm": lstm, "dlrm": dlrm}[part](settings)
    imported = time.time() - STARTED
    say(ready="torch", torch=torch.__version__, import_s=round(imported, 1))
    trainings, peaks = {}, {}
    for line in sys.stdin:
        if not line.strip():
            continue
        variant, steps = line.split()
        if variant != "prepare":
            seconds, loss = trainings[variant].run(int(steps))
            say(seconds=seconds, loss=loss, peak_memory_mb=peaks.get(variant))
            continue
        variant, began = steps, time.time()
        try:
            training = Training(parts, settings["batch"], variant == "compile")
            training.run(1)
            first = imported + time.time() - began
            training.run(3)
            trainings[variant] = training
            if DEVICE == "cuda":
                peaks[variant] = round(torch.cuda.max_memory_allocated() / 2**20)
            say(first_step_s=first)
        except Exception as error:
            say(**failure(error))


if __name__ == "__main__":
    try:
        main(sys.argv[1], json.loads(sys.argv[2]))
    except Exception as error:
        say(item=sys.argv[1], **failure(error))
        raise

"""Milliseconds per training step of the same models with PyTorch: `step_torch.py eager|compile cnn|lm float32|bfloat16|float16 batch`.

Runs in the peers' environment. Prints one JSON object.
"""

import contextlib
import json
import sys
import time

import models
import torch
from torch import nn
from torch.nn import functional as F

STEPS, ROUNDS = 4, 3


def cnn():
    layers, channels = [], 3
    for block, pool in (
        ((128, 256, 256, 256), 2),
        ((256, 256, 512, 512), 2),
        ((256, 256, 256, 128), 4),
    ):
        for filters in block:
            layers += [nn.Conv2d(channels, filters, 3, padding=1), nn.ReLU()]
            channels = filters
        layers.append(nn.MaxPool2d(pool))
    layers += [
        nn.Flatten(),
        nn.BatchNorm1d(512),
        nn.Linear(512, 512),
        nn.ReLU(),
        nn.Linear(512, 10),
    ]
    return nn.Sequential(*layers)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        width = models.WIDTH
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        n, length, width = x.shape
        q, k, v = (
            self.qkv(self.norm1(x)).view(n, length, 3, models.HEADS, -1).permute(2, 0, 3, 1, 4)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(n, length, width))
        return x + self.down(F.relu(self.up(self.norm2(x))))


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(models.VOCABULARY, models.WIDTH)
        self.positions = nn.Parameter(torch.randn(models.LENGTH, models.WIDTH) * 0.05)
        self.blocks = nn.Sequential(*[Block() for _ in range(models.DEPTH)])
        self.norm = nn.LayerNorm(models.WIDTH)
        self.head = nn.Linear(models.WIDTH, models.VOCABULARY)

    def forward(self, tokens):
        return self.head(self.norm(self.blocks(self.tokens(tokens) + self.positions)))


def main():
    mode, name, precision, batch = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    if name == "cnn":
        model = cnn().to(device, memory_format=torch.channels_last)
        x = torch.rand(batch, 3, 32, 32, device=device).to(memory_format=torch.channels_last)
        y = torch.randint(0, 10, (batch,), device=device)
    else:
        model = LanguageModel().to(device)
        x = torch.randint(0, models.VOCABULARY, (batch, models.LENGTH), device=device)
        y = x.roll(-1, 1)
    forward = torch.compile(model) if mode == "compile" else model
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    scaler = torch.amp.GradScaler(device, enabled=precision == "float16")

    def step():
        low = (
            contextlib.nullcontext()
            if precision == "float32"
            else torch.autocast(device, getattr(torch, precision))
        )
        with low:
            out = forward(x)
        loss = F.cross_entropy(out.float().flatten(0, -2), y.flatten())
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    step(), step()
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(STEPS):
            step()
        times.append((time.perf_counter() - start) / STEPS * 1e3)
    count = sum(p.numel() for p in model.parameters())
    print(
        json.dumps(
            {"ms": sorted(times)[ROUNDS // 2], "version": torch.__version__, "parameters": count}
        )
    )


if __name__ == "__main__":
    main()

"""Networks of different kinds whose parts are `blocks.0`, `blocks.1`, ...: what tools/measure.py asks dpro about.

`make(name)` returns (network, make_batch, batch size, make_optimizer); make_batch(n) draws n samples and their targets."""
import torch
from torch import nn
from torch.nn import functional as F

N_CLASSES = 100


class Attention(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        n, length, width = x.shape
        q, k, v = self.qkv(x).view(n, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0.0, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(n, length, width))


class TransformerBlock(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """GPT-like, the head's weight that of the embedding."""

    def __init__(self, width, heads, n_blocks, length, vocabulary, dropout):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(TransformerBlock(width, heads, dropout) for _ in range(n_blocks))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens):
        x = self.dropout(self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device)))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)).flatten(0, 1)


class Residual(nn.Module):
    def __init__(self, n_in, n_out, stride):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False), nn.BatchNorm2d(n_out)
        self.conv2, self.norm2 = nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False), nn.BatchNorm2d(n_out)
        self.relu = nn.ReLU(inplace=True)
        self.shorten = None
        if stride != 1 or n_in != n_out:
            self.shorten = nn.Sequential(nn.Conv2d(n_in, n_out, 1, stride, bias=False), nn.BatchNorm2d(n_out))

    def forward(self, x):
        y = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        return self.relu(y + (x if self.shorten is None else self.shorten(x)))


class Convolutional(nn.Module):
    def __init__(self, widths, per_stage):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, widths[0], 3, 1, 1, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU(inplace=True))
        blocks, n_in = [], widths[0]
        for stage, width in enumerate(widths):
            for number in range(per_stage):
                blocks.append(Residual(n_in, width, 2 if stage and not number else 1))
                n_in = width
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(n_in, N_CLASSES)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class MixerBlock(nn.Module):
    def __init__(self, n_patches, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across = nn.Sequential(nn.Linear(n_patches, 2 * n_patches), nn.GELU(), nn.Linear(2 * n_patches, n_patches))
        self.within = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.across(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.within(self.norm2(x))


class Mixer(nn.Module):
    def __init__(self, width, n_blocks, size, patch):
        super().__init__()
        self.stem = nn.Conv2d(3, width, patch, patch)
        self.blocks = nn.ModuleList(MixerBlock((size // patch) ** 2, width) for _ in range(n_blocks))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, N_CLASSES)

    def forward(self, x):
        x = self.stem(x).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


class LstmBlock(nn.Module):
    def __init__(self, width, dropout):
        super().__init__()
        self.lstm, self.norm, self.dropout = nn.LSTM(width, width, batch_first=True), nn.LayerNorm(width), nn.Dropout(dropout)

    def forward(self, x):
        return x + self.dropout(self.lstm(self.norm(x))[0])


class CellBlock(nn.Module):
    """A gated cell written by hand, a few small operators a place."""

    def __init__(self, width):
        super().__init__()
        self.norm, self.inner, self.outer = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, 3 * width)

    def forward(self, x):
        given, state, states = self.inner(self.norm(x)), x.new_zeros(x.shape[0], x.shape[2]), []
        for place in given.unbind(1):
            reset, update, new = place.chunk(3, 1)
            reset2, update2, new2 = self.outer(state).chunk(3, 1)
            gate = torch.sigmoid(update + update2)
            state = gate * state + (1 - gate) * torch.tanh(new + torch.sigmoid(reset + reset2) * new2)
            states.append(state)
        return x + torch.stack(states, 1)


class Recurrent(nn.Module):
    def __init__(self, width, n_blocks, vocabulary, dropout):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(CellBlock(width) if b == n_blocks // 2 else LstmBlock(width, dropout) for b in range(n_blocks))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x).flatten(0, 1)


class Double(nn.Sequential):
    def __init__(self, n_in, n_out):
        super().__init__(nn.Conv2d(n_in, n_out, 3, 1, 1), nn.GroupNorm(8, n_out), nn.SiLU(),
                         nn.Conv2d(n_out, n_out, 3, 1, 1), nn.GroupNorm(8, n_out), nn.SiLU())


class Branches(nn.Module):
    """U-Net-like: what each block on the way down makes is used again on the way up."""

    def __init__(self, widths):
        super().__init__()
        pairs = list(zip((3, *widths), widths)) + [(a + b, a) for a, b in zip(widths[-2::-1], widths[:0:-1])]
        self.blocks = nn.ModuleList(Double(*pair) for pair in pairs)
        self.depth, self.head = len(widths), nn.Conv2d(widths[0], N_CLASSES // 10, 1)

    def forward(self, x):
        kept = []
        for number, block in enumerate(self.blocks):
            if number >= self.depth:
                x = torch.cat((kept.pop(), F.interpolate(x, scale_factor=2.0)), 1)
            x = block(x)
            if number < self.depth - 1:
                kept.append(x)
                x = F.max_pool2d(x, 2)
        return self.head(x)


class Dense(nn.Module):
    """Each block reads what all before it made."""

    def __init__(self, growth, n_blocks):
        super().__init__()
        self.stem = nn.Conv2d(3, growth, 3, 2, 1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(growth * (b + 1)), nn.ReLU(), nn.Conv2d(growth * (b + 1), 2 * growth, 1),
                          nn.BatchNorm2d(2 * growth), nn.ReLU(), nn.Conv2d(2 * growth, growth, 3, 1, 1)) for b in range(n_blocks))
        self.head = nn.Linear(growth * (n_blocks + 1), N_CLASSES)

    def forward(self, x):
        made = [self.stem(x)]
        for block in self.blocks:
            made.append(block(torch.cat(made, 1)))
        return self.head(torch.cat(made, 1).mean((2, 3)))


class Encoder(nn.Module):
    """PyTorch's own encoder layers, on patches of images."""

    def __init__(self, width, n_blocks, size, patch, dropout):
        super().__init__()
        self.stem = nn.Conv2d(3, width, patch, patch)
        self.places = nn.Parameter(torch.zeros(1, (size // patch) ** 2, width))
        self.blocks = nn.Sequential(*(nn.TransformerEncoderLayer(width, width // 32, 4 * width, dropout, "gelu", batch_first=True,
                                                                 norm_first=True) for _ in range(n_blocks)))
        self.head = nn.Linear(width, N_CLASSES)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x).flatten(2).transpose(1, 2) + self.places).mean(1))


class Bert(nn.Module):
    """PyTorch's own encoder layers, on tokens."""

    def __init__(self, width, n_blocks, length, vocabulary):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(nn.TransformerEncoderLayer(width, width // 32, 4 * width, 0.1, "gelu", batch_first=True)
                                      for _ in range(n_blocks)))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.blocks(x)).flatten(0, 1)


class Vgg(nn.Module):
    """Few convolutions before large linear layers, which hold most of the parameters."""

    def __init__(self, widths, size, hidden):
        super().__init__()
        pairs = zip((3, *widths), widths)
        self.blocks = nn.Sequential(*(nn.Sequential(nn.Conv2d(a, b, 3, 1, 1), nn.ReLU(), nn.Conv2d(b, b, 3, 1, 1), nn.ReLU(),
                                                    nn.MaxPool2d(2)) for a, b in pairs))
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(widths[-1] * (size >> len(widths)) ** 2, hidden), nn.ReLU(),
                                  nn.Linear(hidden, hidden // 2), nn.ReLU(), nn.Linear(hidden // 2, N_CLASSES))

    def forward(self, x):
        return self.head(self.blocks(x))


class Inception(nn.Module):
    """Blocks of four branches that are joined."""

    def __init__(self, widths):
        super().__init__()

        def conv(a, b, size):
            return nn.Sequential(nn.Conv2d(a, b, size, 1, size // 2, bias=False), nn.BatchNorm2d(b), nn.ReLU())

        self.stem = nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU())
        self.blocks = nn.ModuleList(nn.ModuleList((
            conv(a, b, 1), nn.Sequential(conv(a, b, 1), conv(b, b, 3)), nn.Sequential(conv(a, b, 1), conv(b, b, 3), conv(b, b, 3)),
            nn.Sequential(nn.MaxPool2d(3, 1, 1), conv(a, b, 1)))) for a, b in zip((32, *(4 * n for n in widths)), widths))
        self.head = nn.Linear(4 * widths[-1], N_CLASSES)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = F.max_pool2d(torch.cat([branch(x) for branch in block], 1), 2)
        return self.head(x.mean((2, 3)))


def of_tokens(vocabulary, length):
    def make_batch(n):
        tokens = torch.randint(vocabulary, (n, length + 1))
        return tokens[:, :-1].contiguous(), tokens[:, 1:].reshape(-1)
    return make_batch


def of_images(size, n_classes=N_CLASSES, dense=False):
    def make_batch(n):
        return torch.randn(n, 3, size, size), torch.randint(n_classes, (n, size, size) if dense else (n,))
    return make_batch


def adam(parameters):
    return torch.optim.AdamW(parameters, lr=1e-4)


def momentum(parameters):
    return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9)


MODELS = {
    "transformer": lambda: (Transformer(256, 8, 6, 128, 4096, 0.1), of_tokens(4096, 128), 8, adam),
    "convolutional": lambda: (Convolutional((32, 64, 128), 2), of_images(64), 24, momentum),
    "mixer": lambda: (Mixer(256, 6, 64, 8), of_images(64), 24, adam),
    "recurrent": lambda: (Recurrent(384, 4, 2048, 0.1), of_tokens(2048, 48), 32, adam),
    "branches": lambda: (Branches((32, 64, 128, 128)), of_images(64, N_CLASSES // 10, dense=True), 12, momentum),
    "two-blocks": lambda: (Transformer(256, 8, 2, 128, 2048, 0.1), of_tokens(2048, 128), 16, momentum),
    # For which nothing in dpro was changed.
    "dense": lambda: (Dense(32, 6), of_images(64), 24, momentum),
    "encoder": lambda: (Encoder(256, 5, 96, 8, 0.1), of_images(96), 8, adam),
    # The paper's, in small (tools/bench_networks.py).
    "bert": lambda: (Bert(128, 3, 64, 2048), of_tokens(2048, 64), 8, adam),
    "resnet": lambda: (Convolutional((32, 64, 128, 256), 1), of_images(48), 8, momentum),
    "vgg": lambda: (Vgg((32, 64, 128), 48, 512), of_images(48), 8, momentum),
    "inception": lambda: (Inception((16, 24, 32)), of_images(48), 8, momentum),
    # For GPUs.
    "large-transformer": lambda: (Transformer(1024, 16, 8, 512, 16384, 0.1), of_tokens(16384, 512), 16, adam),
    "large-convolutional": lambda: (Convolutional((64, 128, 256, 512), 2), of_images(128), 64, momentum),
    "large-mixer": lambda: (Mixer(768, 8, 224, 16), of_images(224), 64, adam),
}


def make(name):
    return MODELS[name]()

"""What the examples with PyTorch share beside loop.py: the process group and the synthetic data. Plain PyTorch; nothing here
knows of dpro."""
import os
import time

import torch
import torch.distributed as dist

import loop


def arguments(description, batch_size):
    """The options that every example has; each adds its own."""
    parser = loop.arguments(description, batch_size)
    parser.add_argument("--workers", type=int, default=0, help="processes that load data")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--backend", choices=("gloo", "nccl"), help="nccl where every rank has a GPU, else gloo")
    return parser


class Job:
    """This process among the others: as torchrun says, else alone. Ranks of one `data_rank` train on the same samples;
    `prints` on the rank that knows the loss."""

    def __init__(self, args):
        self.args = args
        self.rank = self.data_rank = int(os.environ.get("RANK", 0))
        self.prints = self.rank == 0
        self.world_size = int(os.environ.get("WORLD_SIZE", 1))
        local_rank = int(os.environ.get("LOCAL_RANK", 0))
        self.device = torch.device(args.device)
        if args.device == "cuda":
            self.device = torch.device("cuda", local_rank % torch.cuda.device_count())
            torch.cuda.set_device(self.device)
        own_gpu = args.device == "cuda" and int(os.environ.get("LOCAL_WORLD_SIZE", 1)) <= torch.cuda.device_count()
        self.backend = args.backend or ("nccl" if own_gpu else "gloo")
        torch.manual_seed(args.seed)  # the same parameters on every rank

    def start_process_group(self):
        if self.world_size > 1:
            dist.init_process_group(self.backend)
        else:
            dist.init_process_group(self.backend, store=dist.HashStore(), rank=0, world_size=1)

    def train(self, parameters, sample, learn, make_optimizer):
        """Trains on what sample(generator) gives, one sample a call; learn(batch) leaves gradients and returns the loss, or
        None on a rank that does not know it."""
        args = self.args
        loader = torch.utils.data.DataLoader(Synthetic(sample, args.steps * args.batch_size, args.seed, self.data_rank),
                                             batch_size=args.batch_size, num_workers=args.workers)
        optimizer = make_optimizer(parameters)
        batches = iter(loader)

        def step():
            batch = [part.to(self.device) for part in next(batches)]
            optimizer.zero_grad()
            loss = learn(batch)
            optimizer.step()
            return None if loss is None else loss.item()  # waits for the device

        loop.train(args, step, self.prints, "%d ranks, %s" % (self.world_size, self.device.type))
        if dist.is_initialized():
            # gloo's threads let go of the last collectives; torch may abort if Python ends before
            dist.barrier()
            time.sleep(0.3)
            dist.destroy_process_group()

    def train_model(self, model, sample, loss_of, make_optimizer):
        """train(), where loss_of(model, batch) is minimised."""
        def learn(batch):
            loss = loss_of(model, batch)
            loss.backward()
            return loss

        self.train(model.parameters(), sample, learn, make_optimizer)


class Synthetic(torch.utils.data.Dataset):
    """Sample i of a rank is the same in every run, whatever process makes it."""

    def __init__(self, sample, n_samples, seed, rank):
        self.sample, self.n_samples, self.seed, self.rank = sample, n_samples, seed, rank

    def __len__(self):
        return self.n_samples

    def __getitem__(self, i):
        return self.sample(torch.Generator().manual_seed((self.seed * 1000 + self.rank) * 10_000_000 + i))

"""A backward pass of DDP that one rank makes again (python/dpro/backward_again.py): the same gradients, to the last bit."""
import os

import live

AGAIN = """
import contextlib
from dpro import backward_again
class Fail(torch.autograd.Function):
    now = False
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, gradient):
        if Fail.now:
            Fail.now = False
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8 bytes")
        return gradient
class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c, self.d = (torch.nn.Linear(64, 64) for _ in range(4))
        self.c.weight = self.a.weight
        self.unused, self.norm, self.drop = torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(64), torch.nn.Dropout(0.3)
    def forward(self, x):
        return self.d(self.c(Fail.apply(self.drop(self.norm(self.b(self.a(x)))))))
def job(at, watched=True, decays=False, **mode):
    global digest
    digest = hashlib.sha256()
    torch.manual_seed(7)
    ddp, told = DDP(Tied(), bucket_cap_mb=0.01, find_unused_parameters=True, **mode), []
    watch = backward_again.watch([ddp], told.append) if watched else None
    optimizer, g = torch.optim.SGD(ddp.parameters(), lr=0.05), torch.Generator().manual_seed(RANK)
    for step in range(3):
        optimizer.zero_grad()
        for part in range(2):
            with ddp.no_sync() if part == 0 else contextlib.nullcontext():
                loss = ddp(torch.randn(8, 64, generator=g)).pow(2).mean()
                if decays:
                    loss = loss + ddp.module.d.weight.norm()
                Fail.now = RANK == 1 and at == (step, part)
                loss.backward()
        see(loss, ddp)
        optimizer.step()
    if watch:
        watch.stop()
    for buffer in ddp.buffers():
        digest.update(buffer.numpy().tobytes())
    return digest.hexdigest(), torch.random.get_rng_state().sum().item(), len(told)
dist.init_process_group("gloo")
own, found = torch.autograd.backward, []
for mode in ({}, {"gradient_as_bucket_view": True}):
    *without, _ = job(None, False, **mode)
    for at in (None, (1, 0), (1, 1)):
        *result, n = job(at, **mode)
        found.append(result == without and n == (RANK == 1 and at is not None))
class Sends(Tied):
    def forward(self, x):
        dist.all_reduce(torch.ones(1))
        return super().forward(x)
ddp = DDP(Sends(), find_unused_parameters=True)
watch = backward_again.watch([ddp], found.append)
loss = ddp(torch.ones(8, 64)).sum()
found.append(not watch._calls[0].is_repeatable)
loss.backward()
watch.stop()
sys.stdout.write("AGAIN %d %s %s\\n" % (RANK, found, torch.autograd.backward is own))
sys.stdout.flush()
try:
    job((1, 1), decays=True)
except Exception as problem:
    sys.stdout.write("RAISED %d %s\\n" % (RANK, type(problem).__name__))
    sys.stdout.flush()
os._exit(0)
"""


class BackwardAgain(live.Case):
    WARM = True

    def test_a_rank_makes_a_backward_pass_again_whose_gradients_come_by_way_of_its_results_alone(self):
        run = self.ranks(AGAIN, dpro=False, PYTHONPATH=os.path.join(live.ROOT, "python"))
        for rank in range(2):
            self.assertIn("AGAIN %d %s True\n" % (rank, [True] * 7), run.out, run.err[-3000:])
        self.assertIn("RAISED 1 OutOfMemoryError\n", run.out)  # a weight's own gradient may have been there or not

"""The job does things of its own that dpro could meet: it profiles, forks, spawns, compiles, trains in threads."""
import glob
import os

import live
from live import SINGLE


class Coexistence(live.Case):
    WARM = True

    def test_a_job_that_profiles_itself_from_before_keeps_its_profile(self):
        body = SINGLE + """
from torch.profiler import profile, schedule, ProfilerActivity
with profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=2, warmup=2, active=3, repeat=3),
             on_trace_ready=lambda p: print("TRACE", len(p.events()) > 10)) as p:
    train(model, optimizer, 30, each=lambda i: p.step())
end()
"""
        run = self.ranks(body, world=1)
        self.assert_untouched(run)
        self.assertEqual(run.out.count("TRACE True"), 3, run.out + run.err)
        self.assertEqual(len([line for line in run.said if "torch.profiler itself" in line]), 1, run.said)

    def test_a_job_that_begins_to_profile_in_our_window_gets_its_profile(self):
        for when in (6, 8, 12, 14) if live.LONG else (8, 12):  # timing window: prepared, open; structure window: prepared, open
            with self.subTest(step=when):
                out = self.path("trace%d" % when)
                body = SINGLE + """
from torch.profiler import profile, ProfilerActivity
def each(i):
    if i == %d:
        with profile(activities=[ProfilerActivity.CPU]) as p:
            model(torch.ones(1, 64))
        print("TRACE", len(p.events()) > 3, any("linear" in e.name for e in p.events()))
train(model, optimizer, 30, each=each)
end()
""" % (when - 1)
                run = self.ranks(body, world=1, out=out)
                self.assert_untouched(run)
                self.assertIn("TRACE True True", run.out, run.err)
                self.assertEqual(len([line for line in run.said if "torch.profiler itself" in line]), 1, run.said)

    def test_a_profile_function_of_the_jobs_stays(self):
        body = """
import cProfile
p = cProfile.Profile()
p.enable()
""" + SINGLE + "train(model, optimizer, 30)\np.disable()\nprint('CALLS', len(p.getstats()) > 50)\nend()\n"
        run = self.ranks(body, world=1)
        self.assert_untouched(run)
        self.assertIn("CALLS True", run.out)
        self.assertTrue(self.rank()["complete"])

    def test_forked_and_spawned_data_loaders_are_not_recorded(self):
        self.WARM = False
        body = """
class Data(torch.utils.data.Dataset):
    def __len__(self): return 240
    def __getitem__(self, i): return torch.full((64,), float(i))
def main(method):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    loader = torch.utils.data.DataLoader(Data(), batch_size=8, num_workers=2, multiprocessing_context=method)
    for x in loader:
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        see(loss, model)
        optimizer.step()
    end()
if __name__ == "__main__":
    main(sys.argv[1])
"""
        for method in ("fork", "spawn"):
            with self.subTest(method):
                self.trace = self.path("trace-" + method)
                run = self.ranks(body, world=1, arguments=[method])
                self.assert_untouched(run, body, arguments=["fork"])
                self.assertTrue(self.rank()["complete"])
                self.assertEqual(glob.glob(os.path.join(self.trace, "*", "rank*")), [self.rank_folder()])
                self.assertEqual(len([line for line in run.said if "recorded" in line]), 1, run.said)

    @live.at_length
    def test_a_loader_forked_in_the_window_does_not_fill_the_profilers_buffers(self):
        body = """
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
def each(i):
    if i == 8 and os.environ.get("DPRO"):
        print("PARENT", torch._C._autograd._profiler_enabled(), flush=True)
        pid = os.fork()
        if pid == 0:
            seen = []
            x = torch.ones(2)
            start = open("/proc/self/statm").read().split()[1]
            for _ in range(200000):
                x + x
            grown = (int(open("/proc/self/statm").read().split()[1]) - int(start)) * 4
            print("CHILD", grown < 20000, grown, flush=True)
            os._exit(0)
        os.waitpid(pid, 0)
train(model, optimizer, 30, each=each)
end()
"""
        run = self.ranks(body, world=1)
        self.assert_untouched(run)
        self.assertIn("PARENT True", run.out)
        self.assertIn("CHILD True", run.out)
        self.assertTrue(self.rank()["complete"])

    def test_workers_that_the_script_starts_itself_are_recorded(self):
        self.WARM = False
        body = """
import torch.multiprocessing as mp
def work(rank, port):
    torch.manual_seed(7)
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:%s" % port, rank=rank, world_size=2)
    model = DDP(net())
    train(model, torch.optim.SGD(model.parameters(), lr=0.05), 30)
    dist.barrier()
    time.sleep(0.3)  # see live.py
    dist.destroy_process_group()
    sys.stdout.write("DIGEST %d %s\\n" % (rank, digest.hexdigest()))  # in one piece: both write to one pipe
if __name__ == "__main__":
    mp.start_processes(work, args=(sys.argv[2],), nprocs=2, start_method=sys.argv[1])
"""
        for method in ("spawn", "fork"):
            with self.subTest(method):
                self.trace = self.path("trace-" + method)
                run = self.ranks(body, world=1, arguments=[method, str(live.free_ports()[0])])
                self.assert_ran(run)
                self.assertEqual(len(run.digests), 2)
                for rank in range(2):
                    self.assertTrue(self.rank(rank)["complete"])
                self.assertEqual(self.job()["world_size"], 2)
                self.assertEqual(len([line for line in run.said if "recorded" in line and "transport" not in line]), 1)

    @live.at_length
    def test_training_in_a_thread_is_recorded(self):
        body = SINGLE + """
import threading
thread = threading.Thread(target=train, args=(model, optimizer, 30))
thread.start(); thread.join()
end()
"""
        run = self.ranks(body, world=1)
        self.assert_untouched(run)
        self.assertEqual(self.profiled_steps(), [8, 9, 10])

    def test_what_a_step_returns_and_raises_is_the_jobs(self):
        body = SINGLE + """
def closure():
    optimizer.zero_grad()
    loss = model(torch.ones(1, 64)).sum()
    loss.backward()
    return loss
for i in range(30):
    result = optimizer.step(closure)
    assert isinstance(result, torch.Tensor)
    try:
        optimizer.step(lambda: 1 / 0)
        assert False
    except ZeroDivisionError:
        pass
end()
"""
        run = self.ranks(body, world=1)
        self.assert_untouched(run, body)
        self.assertEqual(self.profiled_steps(), [8, 9, 10])

    def test_models_are_let_go_of(self):
        body = SINGLE + """
import weakref, gc
train(model, optimizer, 30)
kept = weakref.ref(model), weakref.ref(optimizer)
del model, optimizer
gc.collect()
print("GONE", kept[0]() is None, kept[1]() is None)
end()
"""
        run = self.ranks(body, world=1)
        self.assert_ran(run)
        self.assertIn("GONE True True", run.out)

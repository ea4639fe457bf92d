"""The commands of doc/where-jobs-run.md, with the launchers that are here."""
import os
import shutil
import subprocess

import live

LAUNCHERS = os.path.join(live.ROOT, ".venv-launchers", "bin")
RECORD = [live.DPRO, "profile", "--warmup", "3", "--iterations", "3", "-o"]
MPI = """
dist.init_process_group("gloo", rank=int(os.environ["OMPI_COMM_WORLD_RANK"]), world_size=int(os.environ["OMPI_COMM_WORLD_SIZE"]),
                        init_method="file://" + sys.argv[1])
model = DDP(net())
train(model, torch.optim.SGD(model.parameters(), lr=0.05), 30)
end()
"""
ACCELERATE = """
import accelerate
accelerator = accelerate.Accelerator(cpu=True)
model = net()
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.05))
for i in range(30):
    accelerator.backward(model(torch.randn(8, 64)).pow(2).mean())
    optimizer.step()
    optimizer.zero_grad()
accelerator.end_training()
"""
LIGHTNING = """
import lightning
class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = net()
    def training_step(self, batch, index):
        return self.net(batch[0]).pow(2).mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(480, 64)), batch_size=8)
trainer = lightning.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, logger=False, enable_checkpointing=False,
                            enable_progress_bar=False, default_root_dir=os.path.dirname(sys.argv[0]))
trainer.fit(Module(), data)
"""


class Launchers(live.Case):
    def record(self, *command, **more):
        run = self.command([*RECORD, self.trace, "--", *command], **live.plain_environment(**more))
        self.assertEqual(run.codes, [0], run.err[-3000:])
        self.assertIn("recorded 2 ranks", run.err)
        found = self.replay()
        self.assertEqual((found["trace"]["ranks_present"], len(found["measured"]["iterations"])), ([0, 1], 3))

    def launcher(self, name):
        """The interpreter that has it, and the path on which its commands are found."""
        python = os.path.join(LAUNCHERS, "python")
        find = [python, "-c", "import importlib.metadata as m; m.version(%r)" % name]
        if not os.path.exists(python) or subprocess.run(find, stderr=subprocess.DEVNULL).returncode != 0:
            self.skipTest("no %s: tools/venv.sh launchers installs it" % name)
        return python, {"PATH": LAUNCHERS + os.pathsep + os.environ["PATH"]}

    def test_mpirun(self):
        if shutil.which("mpirun") is None:
            self.skipTest("no mpirun here")
        self.record("mpirun", "--oversubscribe", "-n", "2", live.PYTHON, self.script(MPI), self.path("rendezvous"),
                    OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")

    def test_accelerate(self):
        """On CPUs `accelerate launch` starts one process, or mpirun; torchrun is what it uses on GPUs."""
        python, environment = self.launcher("accelerate")
        self.record(python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", self.script(ACCELERATE), **environment)

    def test_lightning(self):
        python, environment = self.launcher("lightning")
        self.record(python, self.script(LIGHTNING), **environment)

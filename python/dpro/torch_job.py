"""PyTorch in the recorder: steps by the hook that every torch.optim optimizer calls, and by gradient scalers that leave
one out; what is trained (model.py); torch's profiler and execution trace (profiler.py). Torch is still being imported when
this is: what imports more of it waits for the first step."""
import functools
import sys
import threading

from . import job
from .report import guarded, say

FILES = {"timing": ("kineto.json", None), "structure": ("kineto_et.json", "et.json")}


def attach(session, optimizers):
    """To the module torch.optim.optimizer."""
    from . import activate
    if any(isinstance(known, TorchJob) for known in session.jobs):
        return
    torch_job = TorchJob(session, optimizers)
    session.add(torch_job)
    activate.when_compiled(torch_job.keep_out_of)


def _nothing(*_):
    pass


class TorchJob(job.Job):
    framework, profiler = "pytorch", "torch.profiler"
    packages = ("torch",)
    windows, has_probes = ("timing", "structure"), True
    no_step = "no optimizer of torch.optim made a step"

    def __init__(self, session, optimizers):
        super().__init__(session)
        self._hook = None
        self._batch_hook = None
        self._memory = None  # the structure window's held_memory.Watch
        self._wrapped_in = optimizers.Optimizer.__init__.__code__.co_filename
        register = getattr(optimizers, "register_optimizer_step_post_hook", None)
        if register is None:
            say("hooks", "this torch has no hooks around an optimizer's step (2.0 or later has): steps are only found "
                         "with dpro.Recorder")
        else:
            self._hook = register(self.optimizer_stepped)

    # Steps

    def optimizer_stepped(self, optimizer, args, kwargs):
        """The post hook of every optimizer."""
        if not self.off:
            self._optimizer_stepped(optimizer)

    @guarded
    def _optimizer_stepped(self, optimizer):
        frame = sys._getframe(1)  # on to the wrapper that torch put around step
        while frame.f_code.co_filename != self._wrapped_in:
            frame = frame.f_back
        code, outer = frame.f_code, frame.f_back
        while outer is not None:  # an optimizer's step inside another one's is a part of it
            if outer.f_code is code:
                return
            outer = outer.f_back
        self.session.stepped(self, optimizer, frame)

    def keep_out_of(self, dynamo):
        """Before anything is compiled: what we do is not to be compiled with it."""
        self.session.keep_out_of(dynamo.disable)
        if self._memory:
            self._memory.unmark()
        if self._hook is not None:
            self._hook.hooks_dict_ref()[self._hook.id] = dynamo.disable(self.optimizer_stepped)

    def first_step(self):
        """From then on, a gradient scaler that found an overflow leaves the optimizer's step out: a step all the same."""
        for module in ("torch.amp.grad_scaler", "torch.cuda.amp.grad_scaler"):
            scaler = getattr(sys.modules.get(module), "GradScaler", None)
            step = getattr(scaler, "_maybe_opt_step", None)
            if step is None or hasattr(step, "_dpro"):
                continue

            @functools.wraps(step)
            def maybe_step(scaler, optimizer, *args, _step=step, **kwargs):
                n = self.session.n_events
                result = _step(scaler, optimizer, *args, **kwargs)
                if self.session.n_events == n:
                    self.session.skipped(self, optimizer)
                return result

            maybe_step._dpro = True
            scaler._maybe_opt_step = maybe_step
            return

    # What is trained

    def place(self):
        from . import model
        import torch
        rank, world, local_rank = job.place()
        if model.distributed():
            rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
        return rank, world, local_rank

    def versions(self):
        from . import model
        return {**model.versions(), **job.versions_of("horovod")}

    @staticmethod
    def _optimizers(sources):
        """Those that stepped; a decorated function is none."""
        return [source for source in sources if hasattr(source, "param_groups")]

    def find_models(self, sources):
        """DDP models as they were made: models that are alike are told apart by that."""
        from . import ddp_plan, model
        made = {id(ddp): n for n, ddp in enumerate(ddp_plan.models())}
        return sorted(model.find(self._optimizers(sources)), key=lambda module: made.get(id(module), len(made)))

    def plan(self):
        from . import applied, horovod_plan
        return applied.state(horovod_plan.NO_JOB if "horovod.torch" in sys.modules else "no DDP model")

    def bucket_bytes(self):
        from . import ddp_plan
        models = ddp_plan.models()
        if not models:
            return []
        from . import reducer
        return [size for ddp in models for size in reducer.bucket_bytes(ddp)]

    def n_nodes(self):
        """Autograd numbers the ops of a thread."""
        import torch
        with torch.inference_mode(False), torch.enable_grad():
            return torch.empty((), device="cpu", requires_grad=True).view(()).grad_fn._sequence_nr()

    def settle(self):
        """A GPU works behind the host."""
        import torch
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()

    def describe(self, models, sources):
        from . import horovod_plan, model
        import torch
        described = []
        for module in models:
            try:
                described.append(model.describe(module))
            except Exception as problem:
                say("model", "the model %s can't be described: %s: %s" % (type(module).__name__, type(problem).__name__, problem))
        kind, optimizers = model.device(models).type, self._optimizers(sources)
        return {"device": kind, "device_name": model.device_name(kind), "threads": torch.get_num_threads(),
                "backend": torch.distributed.get_backend() if model.distributed() else None,
                "process_groups": model.process_groups(), "models": described, 
                "plan": self.plan(),
                "horovod": horovod_plan.settings() if "horovod.torch" in sys.modules else None,
                "optimizers": [{"class": type(o).__name__, "n_parameters": sum(len(g["params"]) for g in o.param_groups)}
                               for o in optimizers],
                "memory": model.memory(models, optimizers)}

    def _watch_batch(self):
        """The batch size is the first dimension of the first tensor that goes into a module. Not where anything is
        compiled: compiled code notices a hook."""
        from torch.nn.modules import module as modules
        from . import module_marks
        import torch
        if self.batch_size is not None or module_marks.anything_compiled():
            return
        thread = threading.get_ident()

        def look(module, args):
            if threading.get_ident() != thread:
                return
            for arg in args:
                if issubclass(type(arg), torch.Tensor) and arg.dim() > 0 and not arg.is_nested:  # that one has no shape
                    self.batch_size = int(arg.shape[0])
                    self._unwatch_batch()
                    return

        self._batch_hook = modules.register_module_forward_pre_hook(look)

    def _unwatch_batch(self):
        hook, self._batch_hook = self._batch_hook, None
        if hook is not None:
            hook.remove()

    # Windows

    def wants_room(self, info):
        return info["device"] == "cpu"

    def knows_sizes(self, info):
        """Buckets are told by their order, where there are no other collectives in the backward pass."""
        return info["world_size"] == 1 or bool(info["models"]) and all(
            model["parallel"] == "ddp" and not model["ddp"]["comm_hook"] and not model["ddp"]["find_unused_parameters"]
            for model in info["models"])

    def missing(self):
        from . import profiler
        return profiler.missing()

    def _has_hook(self):
        """Whether a DDP model has a communication hook of the job's."""
        from . import model
        ddp_class = model.ddp_class()
        return any(ddp_class and isinstance(module, ddp_class) and module._get_ddp_logging_data().get("comm_hook")
                   for module in self.session.models)

    def prepare(self, name):
        from . import profiler
        self._watch_batch()
        profile, graph = FILES[name]
        if self.session.part:
            profile, graph = (file and "%d-%s" % (self.session.part + 1, file) for file in (profile, graph))
        window = profiler.Window(self.session.job_profiles, profile, graph, self.session.folder, self.session.has_shapes, self._has_hook())
        if graph and not window.has_execution_trace:
            say("et", "the execution trace can't be recorded: the job records one itself, or this torch can't", self.session.folder.rank)
        window.when_stopped = self._unwatch_batch
        if graph:
            from . import held_memory
            window.memory = self._memory = held_memory.Watch(
                self.session.models, self._optimizers(self.session.sources), self.session.folder)
        return window

    def cost(self):
        from . import profiler
        return profiler.cost(self.session.has_shapes)

    def probe(self, settings, folder, info, n_local, measures):
        from . import probe
        made = probe.Probe(self.session.models, settings, self.batch_size, n_local, folder, info)
        made.measures = measures
        return made if measures or made.shares_cores() else None

    def watch_peak(self, sources):
        from . import peak
        return peak.watch(self.find_models(sources), self._optimizers(sources))

    def mute_child(self):
        from . import profiler
        profiler.mute_child()

    def end_steps(self):
        """No step is looked at any more. The hook's place stays, as this may be called from there."""
        if self._hook is not None:
            self._hook.hooks_dict_ref()[self._hook.id] = _nothing

    def let_go(self):
        self._unwatch_batch()

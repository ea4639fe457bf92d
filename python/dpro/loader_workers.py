"""A job's data loaders with another number of workers than its script gives them, which `dpro tune --restart` tries. In the end a person
writes the number into the script: workers draw random numbers of their own, so that what augments at random does it otherwise."""
import functools
import gc
import inspect

VARIABLE = "DPRO_LOADER_WORKERS"
MODULE = "torch.utils.data.dataloader"
OF_WORKERS = ("prefetch_factor", "persistent_workers", "timeout", "multiprocessing_context")  # refused where there are none


def attach(n, module):
    own = module.DataLoader.__init__
    signature = inspect.signature(own)

    @functools.wraps(own)
    def init(self, *arguments, **options):
        given = signature.bind(self, *arguments, **options)
        dataset = given.arguments.get("dataset")
        if not isinstance(dataset, module.IterableDataset):  # each worker may yield all of it
            given.arguments["num_workers"] = n
            for name in OF_WORKERS if n == 0 else ():
                given.arguments.pop(name, None)
        own(*given.args, **given.kwargs)

    module.DataLoader.__init__ = init


def of_job(module):
    """The number that all loaders of the job have; None: they differ, or there are none that could have another."""
    found = {thing.num_workers for thing in gc.get_objects()
             if issubclass(type(thing), module.DataLoader) and not isinstance(thing.dataset, module.IterableDataset)}
    return found.pop() if len(found) == 1 else None

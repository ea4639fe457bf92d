"""The parameters that DDP reduces, as DDP numbers them."""
import sys

import torch
from torch.nn.parameter import is_lazy


def type_is(thing, *classes):
    """Like isinstance, without asking the object: proxies and lazy modules may do a lot to answer."""
    return issubclass(type(thing), classes)


def size_bytes(tensor):
    return 0 if is_lazy(tensor) else tensor.numel() * tensor.element_size()


def own_parameters(module):
    """(name, parameter) of each that is no inner module's. Those that DDP over tensor parallelism took as plain ones are no longer
    the module's own from the first forward pass on: it has a distributed tensor made of each as a mere attribute."""
    yield from module._parameters.items()
    distributed = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    for name, held in vars(module).items() if distributed else ():
        if type_is(held, distributed) and held.grad_fn is not None:
            p = getattr(held.grad_fn.next_functions[0][0], "variable", None)
            if hasattr(p, "_st_info"):
                yield name, p


def named_parameters(root):
    """(name, parameter, module) of each once that has a shape by now, in the order of a module's own named_parameters()."""
    seen = set()
    for module_name, module in root.named_modules():
        for name, p in own_parameters(module):
            if p is not None and id(p) not in seen and not is_lazy(p):
                seen.add(id(p))
                yield (module_name + "." if module_name else "") + name, p, module


def reducer_order(ddp):
    """The parameters that DDP reduces, as indices into the model's list, in the order of DDP's own numbers: module by
    module, shared ones once, those left out that need no gradient or were told to be ignored. One that has a gradient
    needed it when DDP was made: jobs with two networks hold one of them still meanwhile."""
    ignored = getattr(ddp, "parameters_to_ignore", ())
    order, tensors, sparse = [], [], []
    for n, (name, p, module) in enumerate(named_parameters(ddp.module)):
        if (p.requires_grad or p.grad is not None) and not ("." in name and name in ignored):  # one of the model's own is not
            order.append(n)
            tensors.append(p)
            sparse.append(type_is(module, torch.nn.Embedding, torch.nn.EmbeddingBag) and module.sparse)
    return order, tensors, sparse

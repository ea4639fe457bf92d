"""The parameters that DDP reduces, as DDP numbers them."""
import torch


def type_is(thing, *classes):
    """Like isinstance, without asking the object: proxies and lazy modules may do a lot to answer."""
    return issubclass(type(thing), classes)


def size_bytes(tensor):
    return tensor.numel() * tensor.element_size()


def reducer_order(ddp):
    """The parameters that DDP reduces, as indices into the model's list, in the order of DDP's own numbers: module by
    module, shared ones once, those left out that need no gradient or were told to be ignored. One that has a gradient
    needed it when DDP was made: jobs with two networks hold one of them still meanwhile."""
    numbers = {id(p): n for n, (_, p) in enumerate(getattr(ddp.module, "_orig_mod", ddp.module).named_parameters())}
    ignored = getattr(ddp, "parameters_to_ignore", ())
    order, seen, tensors, sparse = [], set(), [], []
    for module_name, module in ddp.module.named_modules():
        for name, p in module.named_parameters(recurse=False):
            if (p.requires_grad or p.grad is not None) and "%s.%s" % (module_name, name) not in ignored and id(p) not in seen:
                seen.add(id(p))
                order.append(numbers[id(p)])
                tensors.append(p)
                sparse.append(type_is(module, torch.nn.Embedding, torch.nn.EmbeddingBag) and module.sparse)
    return order, tensors, sparse

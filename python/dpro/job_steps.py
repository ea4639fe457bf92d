"""How many steps of training a job seems to have, for dpro verify: what options of its command line or argparse's results say by
name, or the batches of the data loader that it reads from. A guess, never more than something to tell the user."""
import gc
import re
import sys

_UNITS = {"steps": "steps", "step": "steps", "iters": "steps", "iterations": "steps", "updates": "steps", "update": "steps",
          "epochs": "epochs", "epoch": "epochs"}
_OF_ALL = {"max", "num", "n", "nb", "number", "of", "total", "train", "training", "trainer"}  # not "warmup", "eval", "log", "per"


def _count(name, value):
    """(unit, number) where an option of this name says how long the job trains."""
    *words, last = re.split(r"[-_.]+", name.lstrip("-").lower())
    if last not in _UNITS or not _OF_ALL.issuperset(words) or not re.fullmatch(r"[0-9][0-9_]*", str(value)) or int(value) < 1:
        return None
    return _UNITS[last], int(value)


def of_command_line(arguments):
    """[(unit, number, what says so)]"""
    found = []
    for at, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        if not equals:
            value = arguments[at + 1] if name.startswith("-") and at + 1 < len(arguments) else ""
        count = _count(name, value)
        if count:
            found.append((*count, name + equals + value if equals else "%s %s" % (name, value)))
    return found


def _of_objects(step):
    """The same of what argparse made, defaults too; and of the loaders that are being read from, as unit "batches a pass"."""
    namespace = getattr(sys.modules.get("argparse"), "Namespace", None)
    iterators = getattr(sys.modules.get("torch.utils.data.dataloader"), "_BaseDataLoaderIter", None)
    options, passes = [], []
    for thing in gc.get_objects():
        kind = type(thing)
        if kind is namespace:
            options += [(*count, "%s=%s" % item) for item in vars(thing).items() if (count := _count(*item))]
        elif iterators and issubclass(kind, iterators):
            try:
                n_read, n = thing._num_yielded, len(thing)
            except (AttributeError, TypeError):  # a data set that does not know its length
                continue
            if n_read >= step > 0 and n > 0:
                passes.append(("a pass", max(1, n // round(n_read / step)), ""))
    return options, passes


def _only(found, unit):
    """What all of this unit agree on."""
    found = [entry for entry in found if entry[0] == unit]
    return found[0] if len({entry[1] for entry in found}) == 1 else None


def of_job(step):
    """(number of steps, what says so) of the job whose step `step` has ended; None if it can't be told."""
    given = of_command_line(sys.argv[1:])
    options, passes = _of_objects(step)
    steps = _only(given, "steps") or _only(options, "steps")
    if steps:
        return steps[1:]
    epochs, one_pass = _only(given, "epochs") or _only(options, "epochs"), _only(passes, "a pass")
    if one_pass and epochs:
        return one_pass[1] * epochs[1], "%s of %d steps" % (epochs[2], one_pass[1])
    if one_pass:
        return one_pass[1], "one pass over its data"
    return None


def text(needed, has, fewer):
    """What dpro verify says. `fewer`: what to do where the job has fewer steps than needed."""
    if has is None:
        return "needs %d steps; how many the job has can't be told" % needed
    if has[0] < needed:
        return "needs %d steps, but the job seems to have %d (%s): %s" % (needed, *has, fewer)
    return "needs %d steps; the job seems to have %d (%s)" % (needed, *has)

"""When what is recorded: a list of things to do, by the number of steps that have ended.

Times that are compared with a replay come from the windows before and after; the timing window has the profiler only;
the execution trace and memory of PyTorch, which cost more, are in the structure window, two steps behind it. Probes come
last: in two steps it is seen what to measure, and it is measured after these, while the other ranks wait in the next one."""
SETTLE = 2           # steps after a window in which its files are written
STRUCTURE_STEPS = 2


class Schedule:
    """`actions[n]` is what to do when step n has ended."""

    def __init__(self, warmup, iterations, windows, probes):
        base = max(warmup, 2)
        self.actions = {base - 1: "open", base: "before"}  # opening the folder takes some ranks longer than others
        step = base + iterations
        for window in windows:
            n_steps = STRUCTURE_STEPS if window == "structure" else iterations
            self.actions[step] = "prepare " + window
            self.actions[step + 1] = "start " + window
            self.actions[step + 1 + n_steps] = "stop " + window
            step += 1 + n_steps + SETTLE
        self.actions[step] = "after"
        step += iterations
        for action in ("survey", "copy", "probe") if probes else ():
            self.actions[step] = action
            step += 1
        self.actions[step] = "done"

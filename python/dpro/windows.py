"""When what is recorded: a list of things to do, by the number of steps that have ended.

Times that are compared with a replay come from the windows before and after; the timing window has the profiler only;
the execution trace and memory of PyTorch, which cost more, are in the structure window, two steps behind it. Probes come
last: in two steps it is seen what to measure, and it is measured after these, while the other ranks wait in the next one.

When a window ends, the job waits until the profiler has put its events together, some 15 us for each: of a job with very
many a step, a window has fewer steps, and the rest of its time further windows of as many (Parts). A step of more events
than a second allows is recorded without shapes, which are most of that time; its file is written a step later."""
SETTLE = 2           # steps after a window in which its files are written
STRUCTURE_STEPS = 2
MOST_EVENTS = 60000  # of a window: a second
WITHOUT_SHAPES = 3   # times as many events a second


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


class Parts:
    """The windows of one name, within the steps that the schedule has for it; they begin where other ranks' do."""

    def __init__(self, n_steps, events, may_lack_shapes):
        self.most = max(min(n_steps, int(MOST_EVENTS // events)), 1) if events else n_steps
        self.is_long = events > MOST_EVENTS  # one step
        self.has_shapes = not (self.is_long and may_lack_shapes)
        self.waits_s = events / MOST_EVENTS / (1 if self.has_shapes else WITHOUT_SHAPES)  # for one step
        self.number = 0
        self._n_steps, self._end = n_steps, None

    @property
    def is_apart(self):
        return self.most < self._n_steps

    def begin(self, step):
        """The step before the window's first."""
        self._end = step + self._n_steps if self._end is None else self._end

    def took(self, n_steps, seconds):
        """How long the job waited when a window of so many steps had ended."""
        if self.is_apart and seconds > 0:
            self.most = max(min(self.most, int(n_steps / seconds)), 1)

    def following(self, step):
        """The step after which the next window is prepared, if one ends with `step`; None: there is no room for it."""
        self.number += 1
        prepared = step + SETTLE
        return prepared if prepared + 1 + self.most <= self._end else None

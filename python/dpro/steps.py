"""Finding the training steps in the order in which optimizers step (or decorated functions return).

A step ends with the optimizer that steps least often in a cycle, the last one of the cycle where several do: with a
critic stepped five times a generator, that is the generator. Only the order of calls counts, no clock and no
communication, so that ranks which run in lockstep number their steps alike."""
import weakref

FORGET_AFTER = 64  # steps of another one without a step of the boundary: it is not what ends the cycle


class _Source:
    def __init__(self, target):
        try:
            self.ref = weakref.ref(target)
        except TypeError:
            self.ref = lambda: target
        self.total = 0        # steps ever
        self.count = 0        # since the last change in who takes part
        self.order = 0        # of the last step
        self.takes_part = False  # it stepped again after another one did
        self.cycle = -1
        self.in_cycle = 0     # steps since the boundary's last


class Cycle:
    def __init__(self):
        self._sources = {}
        self._last = self._boundary = None
        self._n = self._n_cycles = 0

    @property
    def boundary(self):
        """The optimizer that ends a step, as far as is known."""
        return self._boundary.ref() if self._boundary else None

    @property
    def sources(self):
        return [target for target in (source.ref() for source in self._sources.values()) if target is not None]

    def stepped(self, target):
        """`target` stepped. Returns its number of steps when that ends a training step, else 0; and whether it is
        another one than before that ends them."""
        source = self._sources.get(id(target))
        if source is None or source.ref() is not target:  # a dead one's id may come again
            source = self._sources[id(target)] = _Source(target)
            self._sources = {key: s for key, s in self._sources.items() if s.ref() is not None}
        before = self._boundary
        self._n += 1
        source.total += 1
        source.count += 1
        source.order = self._n
        if not source.takes_part and source.total > 1 and self._last is not source:
            source.takes_part = True
            for other in self._sources.values():
                other.count = 0
            self._choose(source)
        elif source is before or before is None or before.ref() is None:
            self._choose(source)
        else:
            if source.cycle != self._n_cycles:
                source.cycle, source.in_cycle = self._n_cycles, 0
            source.in_cycle += 1
            if source.in_cycle >= (FORGET_AFTER if before.takes_part else 2):
                before.takes_part = False
                self._choose(source)
        self._last = source
        if source is not self._boundary:
            return 0, False
        self._n_cycles += 1
        return source.total, before is not None and before is not source

    def _choose(self, source):
        """The one that stepped least often, the latest of those, becomes the boundary."""
        parts = [s for s in self._sources.values() if s.takes_part and s.ref() is not None]
        self._boundary = min(parts, key=lambda s: (s.count, -s.order)) if parts else source

"""Found by Python at its start when this folder is on PYTHONPATH: activates dpro, then makes way for the
sitecustomize that the environment would have had without it. Never fails, never prints."""


def _activate():
    import importlib.util
    import os
    import sys
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    if os.environ.get("DPRO") != "1" and not any(os.environ.get(name) for name in ("DPRO_PLAN", "DPRO_VERIFY")):
        return
    if "dpro" not in sys.modules:
        # by its place: the folder above may hold what the job must not see on its path
        package = os.path.dirname(here)
        spec = importlib.util.spec_from_file_location("dpro", os.path.join(package, "__init__.py"),
                                                      submodule_search_locations=[package])
        module = importlib.util.module_from_spec(spec)
        sys.modules["dpro"] = module
        spec.loader.exec_module(module)
    from dpro import activate
    activate.start()


def _next():
    import sys
    ours = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401  the environment's own
    except ImportError as problem:
        if problem.name != "sitecustomize":
            raise
        if ours is not None:
            sys.modules["sitecustomize"] = ours


try:
    _activate()
except Exception as problem:
    import os
    try:
        os.write(2, ("dpro: could not start in this process (%s); nothing is recorded\n" % problem).encode("utf-8", "replace"))
    except OSError:  # closed
        pass
_next()
